from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from moescope.core.batchlog import BatchLogReader
from moescope.core.vocabulary import RowFlag
from moescope.core.wire import decode_batch
from moescope.producers.agent import Agent

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/record-routing.md"


PROMPT, GENERATED = 12, 20
BATCH = {"req-2": 5, "req-3": 3}


def recorded_requests(folder: Path, programs: list[str]) -> Counter[str]:
    """How many tokens of each request programs of the page record, run in turn in one process."""
    subprocess.run([sys.executable, "-c", "\n".join(programs)], cwd=folder, check=True)
    data = folder / "moescope-data"
    with Agent(data / "ring", data / "log") as agent:
        agent.drain()
    (node,) = (path.name for path in (data / "log").iterdir() if path.is_dir())
    found = Counter[str]()
    with BatchLogReader(data / "log", node) as reader:
        for record in reader.read(0).records:
            batch = decode_batch(record.payload)
            if batch.tokens is not None:
                rows = batch.tokens.request[(batch.tokens.flags & RowFlag.CONTEXT) == 0]
                found.update(batch.requests.ids[number] for number in rows.tolist())
    return found


def test_the_programs_for_transformers_run_as_written(tmp_path: Path) -> None:
    """Whoever pastes them gets prompts and generated tokens recorded, and no padding."""
    programs = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    alone, batched = programs
    (tmp_path / "alone").mkdir()
    one = {"req-1": PROMPT + GENERATED - 1}
    assert recorded_requests(tmp_path / "alone", [alone]) == one
    (tmp_path / "batched").mkdir()
    several = {name: prompt + GENERATED - 1 for name, prompt in BATCH.items()}
    assert recorded_requests(tmp_path / "batched", [alone, batched]) == one | several
