"""What vLLM responses say about routing is what the importer writes."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoded_logs import log_of

from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.importers import import_files
from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.npy_routes import decode_routes

EXPERTS, HIDDEN_LAYERS, TOP_K = 12, 4, 2
DENSE = {0, 2}


def npy(routes: np.ndarray[Any, Any]) -> str:
    """A `.npy` file as base64 text."""
    buffer = io.BytesIO()
    np.save(buffer, routes)
    return base64.b64encode(buffer.getvalue()).decode()


def routes_of(random: np.random.Generator, rows: int) -> np.ndarray[Any, Any]:
    """Distinct ids at MoE layers and zeros at dense ones, [rows, hidden layers, k]."""
    routes = np.zeros((rows, HIDDEN_LAYERS, TOP_K), np.int64)
    for row in range(rows):
        for layer in set(range(HIDDEN_LAYERS)) - DENSE:
            routes[row, layer] = random.permutation(EXPERTS - 1)[:TOP_K] + 1
    return routes


@st.composite
def responses(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[tuple[str, int], Any]]:
    """Responses of both known forms, and the routes by request and position."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    items: list[dict[str, Any]] = []
    truth: dict[tuple[str, int], Any] = {}
    for number in range(draw(st.integers(1, 4))):
        prompt, generated = draw(st.integers(1, 9)), draw(st.integers(1, 6))
        cached = draw(st.sampled_from([None, 0, min(4, prompt - 1)]))
        routes = routes_of(random, prompt + generated - 1)
        name = f"cmpl-{number}"
        usage: dict[str, Any] = {"prompt_tokens": prompt}
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        item: dict[str, Any] = {"id": name, "model": "m", "usage": usage}
        if draw(st.booleans()):
            dtype = draw(st.sampled_from([np.uint8, np.uint16]))
            item["choices"] = [{"index": 0, "routed_experts": npy(routes.astype(dtype))}]
        else:
            item["prompt_routed_experts"] = npy(routes[:prompt].astype(np.int16))
            item["choices"] = [{"routed_experts": npy(routes[prompt:].astype(np.int16))}]
        items.append(item)
        for position in range(cached or 0, len(routes)):
            phase = Phase.PREFILL if position < prompt else Phase.DECODE
            moe = [sorted(routes[position, layer].tolist()) for layer in (1, 3)]
            truth[name, position] = (phase, moe)
    return items, truth


@settings(max_examples=25)
@given(responses(), st.sampled_from(["lines", "array", "indented"]))
def test_both_forms_arrive_row_by_row(
    drawn: tuple[list[dict[str, Any]], dict[tuple[str, int], Any]], layout: str
) -> None:
    """Positions, phases and sets are those of the arrays; dense layers and cached rows are left."""
    items, truth = drawn
    if layout == "lines":
        text = "\n".join(json.dumps(item) for item in items)
    else:
        text = json.dumps(items, indent=1 if layout == "indented" else None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "responses.json"
        path.write_text(text, encoding="utf-8")
        options = {"experts": str(EXPERTS), "moe_layers": "1,3"}
        report = import_files("vllm-routes", [path], Path(folder) / "log", options)
        [batches] = log_of(Path(folder) / "log").values()
    found: dict[tuple[str, int], Any] = {}
    for batch, _ in batches:
        tokens, routes = batch.tokens, batch.routes
        assert tokens is not None
        assert routes is not None
        assert tokens.event_time_us is None
        assert batch.header.layers.tolist() == [1, 3]
        assert batch.header.model == "m"
        for row in range(len(tokens)):
            if not tokens.flags[row] & RowFlag.CONTEXT:
                key = batch.requests.ids[tokens.request[row]], int(tokens.position[row])
                moe = [sorted(ids) for ids in routes.expert_ids[row].tolist()]
                found[key] = (tokens.phase[row], moe)
    assert found == truth
    assert report.rows == len(truth)
    assert report.rejected == 0


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 130), st.binary(min_size=1, max_size=4))
def test_damaged_arrays_are_refused_and_never_crash(
    noise: bytes, place: int, replacement: bytes
) -> None:
    """Headers come from strangers: no damage may allocate, unpickle or raise something else."""
    good = base64.b64decode(npy(np.arange(12, dtype=np.uint8).reshape(3, 2, 2)))
    for raw in (noise, good[:place], good[:place] + replacement + good[place + len(replacement) :]):
        try:
            routes = decode_routes(base64.b64encode(raw).decode(), "routes")
        except RejectedLineError:
            continue
        assert routes.ndim == 3
        assert routes.size <= len(raw)
