"""However a training run is cut over ranks, stages and micro-batches, its rows arrive."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.imported_rows import imported_pieces, imported_rows

from moescope.producers.importers import import_files

EXPERTS, K = 6, 2


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 3),
    replicas=st.integers(1, 3),
    per_stage=st.integers(1, 2),
    steps=st.integers(1, 3),
    size=st.integers(1, 3),
    shuffled=st.booleans(),
)
def test_every_cut_of_a_run_arrives_whole(  # noqa: PLR0917 (drawn)
    seed: int,
    stages: int,
    replicas: int,
    per_stage: int,
    steps: int,
    size: int,
    shuffled: bool,
) -> None:
    """Rows are those of the sequences; counts per step are those of the rows."""
    random = np.random.default_rng(seed)
    layers = stages * per_stage
    truth: dict[tuple[str, int], Any] = {}
    counts: dict[str, dict[int, list[int]]] = {}
    files: dict[int, list[str]] = {rank: [] for rank in range(stages * replicas)}
    for step in range(steps):
        for replica in range(replicas):
            total = np.zeros((layers, EXPERTS), np.int64)
            for nth in range(int(random.integers(1, 3))):
                length = int(random.integers(1, 5))
                ids = np.argsort(random.random((length * size, layers, EXPERTS)), axis=-1)[..., :K]
                ids = np.sort(ids, axis=-1)
                for row, chosen in enumerate(ids):
                    name = f"step-{step}-rank-{replica}-batch-{nth}-{row % size}"
                    truth[name, row // size] = (step, chosen.tolist())
                for layer in range(layers):
                    total[layer] += np.bincount(ids[:, layer].ravel(), minlength=EXPERTS)
                    stage, own = divmod(layer, per_stage)
                    rank = stage * replicas + replica
                    files[rank].append(
                        json.dumps(
                            {"step": step, "layer": own, "rank": rank, "num_tokens": len(ids),
                             "topk": K, "top_indices": ids[:, layer].tolist()}
                        )
                    )  # fmt: skip
            counts[f"step-{step}-rank-{replica}"] = dict(enumerate(total.tolist()))
    if _has_twins(truth):
        return
    options = {
        "experts": str(EXPERTS),
        "stage_starts": ",".join(str(stage * per_stage) for stage in range(stages)),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        folder.mkdir()
        for rank, lines in files.items():
            ordered = (
                sorted(lines, key=lambda line: json.loads(line)["layer"]) if shuffled else lines
            )
            path = folder / f"router_trace_rank{rank}.jsonl"
            path.write_text("\n".join(ordered), encoding="utf-8")
        import_files("megatron-trace", [folder], folder / "log", options)
        found = {piece.request: piece.counts for piece in imported_pieces(folder / "log")}
        rows_options = {**options, "micro_batch_size": str(size)}
        import_files("megatron-trace", [folder], folder / "rows", rows_options)
        rows = imported_rows(folder / "rows")
    assert found == counts
    assert {(row.request, row.position): (row.step, row.ids) for row in rows} == truth


def _has_twins(truth: dict[tuple[str, int], Any]) -> bool:
    """Whether two micro-batches of a step are the same by chance: one is taken for a repetition."""
    contents: dict[tuple[str, str], list[Any]] = {}
    for (name, position), (_, ids) in truth.items():
        step, batch = name.split("-rank-")
        contents.setdefault((step, batch.rsplit("-", 1)[0]), []).append((position, ids))
    seen = Counter((step, repr(sorted(rows))) for (step, _), rows in contents.items())
    return max(seen.values()) > 1
