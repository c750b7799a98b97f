"""Write the test vectors of wire format version 1: small batches, and their content as JSON.

The vectors are committed, and never change while the version is supported: they are how a
reader shows that it still reads what earlier writers wrote. Run it to add vectors for something
new; it refuses to overwrite one whose content differs, unless --replace is given.

    .venv/bin/python scripts/make_wire_vectors.py
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.batches import START_US, make_batch, make_header, make_heartbeat, make_ids
from support.plain_batches import plain_batch

from moescope.core.batch import (
    SEVERAL_RANKS,
    DropCounters,
    Placement,
    Ranks,
    Requests,
    RoutingBatch,
    TimeBlocks,
    TokenBlocks,
    Tokens,
)
from moescope.core.clock import END_OF_TIME
from moescope.core.vocabulary import (
    Fidelity,
    Origin,
    Phase,
    RankOrder,
    RowFlag,
    ScoreKind,
    TokenIdKind,
)
from moescope.core.wire import encode_batch

FOLDER = ROOT / "tests" / "vectors" / "wire-v1"


def vectors() -> dict[str, RoutingBatch]:
    """Build one batch for each thing that the format can say."""
    return {
        "heartbeat": make_heartbeat(
            7,
            watermark_us=END_OF_TIME,
            encoded_at_us=1_700_000_000_123_456,
            incarnation=2**64 - 1,
            engine="vllm",
            engine_version="0.11",
            labels={"zone": "a", "größe": "groß"},
            ranks=Ranks(data_parallel=3, tensor_parallel=0),
            drops=DropCounters(ring_rows=5, log_batches=1, log_rows=128, rejected_rows=2),
        ),
        "ids": make_batch(1, tokens=96, layers=3, experts=16, top_k=4, requests=3),
        "wide_ids": make_batch(2, tokens=40, layers=2, experts=300, top_k=6, requests=2),
        "invalid_ids": make_batch(3, expert_ids=_invalid_ids(), layers=2, experts=8, top_k=3),
        "everything": _everything(),
        "counts": _counts(),
        "placement": make_batch(
            6,
            tokens=8,
            layers=2,
            experts=6,
            top_k=2,
            requests=1,
            header={
                "expert_map_version": 3,
                "labels": {"unseen_reason": "unknown layout"},
                "drops": DropCounters(ring_rows=1, unseen_rows=70_000),
                "placement": Placement(
                    version=3,
                    ranks=3,
                    rank_of=np.array(
                        [[0, 0, 1, 1, 2, 2], [2, 1, 0, 2, SEVERAL_RANKS, 0]], np.uint16
                    ),
                ),
            },
        ),
    }


def _invalid_ids() -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Ids beyond E, and duplicates."""
    ids = make_ids(3, tokens=64, layers=2, experts=8, top_k=3)
    ids[5, 0, 1] = 65_535
    ids[6, 1] = 2
    ids[7, 1, 0] = 8
    return ids


def _everything() -> RoutingBatch:
    rng = np.random.default_rng(4)
    tokens, shape = 24, (24, 2, 4)
    plain = make_batch(
        4,
        tokens=tokens,
        layers=2,
        experts=32,
        top_k=4,
        requests=2,
        header={
            "fidelity": Fidelity.SAMPLED,
            "sampling_ratio": 0.25,
            "origin": Origin.FRAMEWORK,
            "score_kind": ScoreKind.SIGMOID,
            "rank_order": RankOrder.SELECTION_SCORE,
            "token_id_kind": TokenIdKind.PLAIN,
            "expert_map_version": 9,
        },
        routes={
            "ranked": True,
            "weights": rng.random(shape),
            "weight_bits": 8,
            "entropy": rng.random(shape[:2]) * 3,
            "margin": rng.random(shape[:2]),
            "dropped": rng.integers(0, 9, shape) == 0,
        },
    )
    flags = np.zeros(tokens, np.uint8)
    flags[:2] = RowFlag.CONTEXT
    flags[-1] = RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK
    columns = Tokens(
        request=(np.arange(tokens) // 12).astype(np.int32),
        position=(np.arange(tokens) % 12 + 10).astype(np.int32),
        phase=(np.arange(tokens) % 12 // 6).astype(np.uint8),
        flags=flags,
        event_time_us=START_US + np.arange(tokens) % 12 * 31_007,
        pass_id=np.arange(tokens) % 12,
        step=np.full(tokens, 1_000, np.int64),
        token_id=rng.integers(0, 50_000, tokens, dtype=np.uint64),
        content_key=rng.integers(0, 2**64, tokens, dtype=np.uint64),
        block=(np.arange(tokens) // 5 - 1).astype(np.int32),
    )
    return RoutingBatch(
        header=plain.header, requests=plain.requests, tokens=columns, routes=plain.routes
    )


def _counts() -> RoutingBatch:
    rng = np.random.default_rng(5)
    starts = np.full((2, len(Phase)), -1, np.int32)
    starts[:, 0] = 0
    starts[:, 1] = [200, 300]
    return RoutingBatch(
        header=make_header(
            fidelity=Fidelity.COUNTS, experts=16, top_k=2, layers=np.array([1, 3], np.uint16)
        ),
        requests=Requests(
            ids=("request-0", "request-1"),
            tasks=("task-0", "task-0"),
            scenes=("chat", ""),
            phase_starts=starts,
            cached_tokens=np.array([0, 64], np.int32),
        ),
        token_blocks=TokenBlocks(
            request=np.array([0, 0, 1], np.int32),
            phase=np.array([0, 0, 1], np.uint8),
            flags=np.array([0, 8, 0], np.uint8),
            start_position=np.array([0, 128, 300], np.int32),
            tokens=np.array([128, 72, 10], np.int32),
            counts=rng.multinomial(256, np.ones(16) / 16, (3, 2)).astype(np.uint32),
            first_time_us=np.array([5, 6, 7], np.int64),
            last_time_us=np.array([15, 16, 17], np.int64),
            dropped=np.array([[0, 1], [2, 3], [4, 70_000]], np.uint32),
        ),
        time_blocks=TimeBlocks(
            second_us=np.array([1_700_000_000_000_000, 1_700_000_001_000_000], np.int64),
            phase=np.array([0, 1], np.uint8),
            scene=np.array([0, 1], np.uint16),
            scenes=("chat", "code"),
            tokens=np.array([200, 10], np.int64),
            requests=np.array([1, 1], np.int32),
            counts=rng.multinomial(400, np.ones(16) / 16, (2, 2)).astype(np.uint32),
        ),
    )


def main() -> int:
    """Write the vectors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replace", action="store_true", help="overwrite vectors that differ")
    replace = parser.parse_args().replace
    FOLDER.mkdir(parents=True, exist_ok=True)
    refused = 0
    for name, batch in vectors().items():
        binary, content = FOLDER / f"{name}.bin", FOLDER / f"{name}.json"
        text = json.dumps(plain_batch(batch), ensure_ascii=False, separators=(",", ":")) + "\n"
        if binary.exists() and not replace:
            if content.read_text(encoding="utf-8") != text:
                print(f"{name}: differs from the committed vector, left alone")
                refused += 1
            continue
        binary.write_bytes(encode_batch(batch))
        content.write_text(text, encoding="utf-8")
        print(f"{name}: {binary.stat().st_size} bytes")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
