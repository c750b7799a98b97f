from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from moescope.producers.agent import Agent

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/record-routing.md"


def test_the_program_for_transformers_runs_as_written(tmp_path: Path) -> None:
    """Whoever pastes it gets the prompt's and the generated tokens recorded."""
    (program,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    data = tmp_path / "moescope-data"
    with Agent(data / "ring", data / "log") as agent:
        agent.drain()
        assert agent.counters().shipped.rows == 12 + 19
