from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.command_line import MOESCOPE, TIMEOUT_SECONDS, environment, moescope, query

from moescope.producers import Recorder
from moescope.storage import connect
from moescope.storage.query.errors import QuerySourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYERS, EXPERTS, TOP_K = 3, 16, 2
PROMPT = 128
GENERATED = 40


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`moescope run all` over the folder `data`."""
    process = subprocess.Popen(
        [MOESCOPE, "run", "all", "--data", "data", "--json"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def rows_when_there(data: Path, text: str) -> list[dict[str, Any]]:
    """What a query finds, asked again and again until it finds something."""
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < give_up:
        try:
            with connect(data) as connection:
                while time.monotonic() < give_up:
                    rows = connection.sql(text).to_dicts()
                    if rows:
                        return rows
                    time.sleep(0.2)
        except QuerySourceError:
            time.sleep(0.2)  # the owner has not exported anything yet
    pytest.fail(f"no rows of {text}")


def test_recorded_rows_reach_sql_while_everything_runs(
    tmp_path: Path, running: subprocess.Popen[str]
) -> None:
    """From `record()` to SQL on one machine; nothing is lost when it is told to stop."""
    data = tmp_path / "data"
    routes = np.argsort(
        np.random.default_rng(5).random((PROMPT + GENERATED, LAYERS, EXPERTS)), axis=2
    )[:, :, :TOP_K]
    recorder = Recorder(
        model="tiny",
        revision="r1",
        layers=range(LAYERS),
        experts=EXPERTS,
        top_k=TOP_K,
        directory=data / "ring",
        node="node-a",
        ring_bytes=8 << 20,
    )
    recorder.begin_request("req-1", prompt_tokens=PROMPT)
    recorder.record("req-1", np.arange(PROMPT), routes[:PROMPT], "prefill")
    complete = rows_when_there(
        data,
        "SELECT layer, tokens, counts, complete, node FROM windows"
        " WHERE request = 'req-1' AND size = 128 ORDER BY layer",
    )
    assert complete == [
        {
            "layer": layer,
            "tokens": PROMPT,
            "counts": np.bincount(routes[:PROMPT, layer].reshape(-1), minlength=EXPERTS).tolist(),
            "complete": True,
            "node": "node-a",
        }
        for layer in range(LAYERS)
    ]

    second = moescope("run", "all", "--data", "data", folder=tmp_path, expect=3)
    assert f"process {running.pid}" in second.stderr
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"request": "imported", "position": 0, "experts": [[0, 1]]}))
    told = moescope(
        "import", "jsonl", path, "-o", "experts=8", "--data", "data", "--json", folder=tmp_path
    )
    assert json.loads(told.stdout)["processed"] is False
    assert rows_when_there(
        data, "SELECT tokens FROM windows WHERE task = 'imported' AND size = 0"
    ) == [{"tokens": 1}]

    recorder.record("req-1", PROMPT + np.arange(GENERATED), routes[PROMPT:], "decode")
    recorder.end_request("req-1")
    recorder.close()
    running.send_signal(signal.SIGTERM)
    printed, noted = running.communicate(timeout=TIMEOUT_SECONDS)
    assert running.returncode == 0, noted
    assert json.loads(printed)["dead_letters"] == 0
    assert "Traceback" not in noted
    stored = query(
        data,
        "SELECT layer, seen, close_reason, counts,"
        " (SELECT sum(accepted_rows)::INT FROM batches) AS accepted FROM windows"
        " WHERE request = 'req-1' AND phase = 'decode' AND size = 128 ORDER BY layer",
    )
    assert stored == [
        {
            "layer": layer,
            "seen": GENERATED,
            "close_reason": "request_end",
            "counts": np.bincount(routes[PROMPT:, layer].reshape(-1), minlength=EXPERTS).tolist(),
            "accepted": PROMPT + GENERATED + 1,
        }
        for layer in range(LAYERS)
    ]
