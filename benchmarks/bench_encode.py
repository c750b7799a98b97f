"""Encoding: expert ids as an engine gives them to bytes on the wire."""

from __future__ import annotations

import json

import numpy as np
import zstandard

from benchmarks.baselines import ONE_THREAD, polars_with_threads
from benchmarks.figures import Baseline, Figure, Result
from benchmarks.harness import Scale, Side, main, rates
from benchmarks.streams import EXPERTS, LAYERS, TOP_K, dense_stream
from moescope.core.batch import Routes, RoutingBatch
from moescope.core.wire import decode_batch, encode_batch

TEXT = f"""
Ids of 4,096 tokens × {LAYERS} layers, {TOP_K} of {EXPERTS} experts, to the bytes of a routing
batch: `Routes.from_ids` and `encode_batch`, with numpy and zstd alone, by one thread. The baselines
write the same ids: one JSON line per token and layer, by the standard library and by polars
(compiled), and the raw bytes through zstd level 1.
"""


def measure(scale: Scale) -> Result:
    """Measure the topic."""
    stream = dense_stream(quick=scale.quick)
    ids, batch = stream.ids[0], stream.batch(0)
    tokens, layers, top_k = ids.shape

    def encode() -> bytes:
        return encode_batch(
            RoutingBatch(
                header=batch.header,
                requests=batch.requests,
                tokens=batch.tokens,
                routes=Routes.from_ids(ids, stream.experts),
            )
        )

    found = decode_batch(encode()).routes
    assert found is not None  # noqa: S101 (narrowing)
    np.testing.assert_array_equal(np.sort(found.expert_ids, axis=2), np.sort(ids, axis=2))

    few = ids[: scale.pick(128, 16)]

    def json_lines() -> bytes:
        lines = [
            json.dumps({"token": token, "layer": layer, "experts": experts})
            for token, row in enumerate(few.tolist())
            for layer, experts in enumerate(row)
        ]
        return "\n".join(lines).encode()

    pl = polars_with_threads(ONE_THREAD)
    frame = pl.DataFrame(
        {
            "token": np.repeat(np.arange(tokens, dtype=np.int32), layers),
            "layer": np.tile(np.arange(layers, dtype=np.uint8), tokens),
            "experts": ids.reshape(-1, top_k),
        },
        schema_overrides={"experts": pl.Array(pl.UInt8, top_k)},
    ).with_columns(pl.col("experts").arr.to_list())

    def polars_lines() -> bytes:
        return bytes(frame.write_ndjson().encode())

    def raw() -> bytes:
        return zstandard.ZstdCompressor(level=1).compress(np.ascontiguousarray(ids).data)

    measured = rates(
        [
            Side("encode", ids.size, encode),
            Side("json", few.size, json_lines),
            Side("polars", ids.size, polars_lines),
            Side("raw", ids.size, raw),
        ],
        scale.pick(11, 2),
    )
    rows = tokens * layers
    sizes = {
        "encode": len(encode()) / rows,
        "json": len(json_lines()) / (len(few) * layers),
        "polars": len(polars_lines()) / rows,
        "raw": len(raw()) / rows,
    }
    return Result(
        topic="encode",
        title="Encoding in the agent",
        text=TEXT,
        order=5,
        figures=[
            Figure(
                what="ids → routing batch",
                unit="M assignments/s, one core",
                values=measured["encode"],
                target=150,
                baselines=[
                    Baseline(name="JSON lines, standard library", values=measured["json"]),
                    Baseline(name="JSON lines, polars, 1 thread", values=measured["polars"]),
                    Baseline(name="raw ids, zstd level 1", values=measured["raw"]),
                ],
            ),
            Figure(
                what="size, whole batch",
                unit="bytes per token and layer",
                values=[sizes["encode"]],
                better="lower",
                baselines=[
                    Baseline(name="JSON lines, standard library", values=[sizes["json"]]),
                    Baseline(name="JSON lines, polars", values=[sizes["polars"]]),
                    Baseline(name="raw ids, zstd level 1", values=[sizes["raw"]]),
                ],
            ),
        ],
    )


if __name__ == "__main__":
    main("encode", measure)
