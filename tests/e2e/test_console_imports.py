from __future__ import annotations

import base64
import io
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
from support.command_line import moescope, query

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS, TOP_K, LAYERS = 16, 2, (1, 3)
BEGIN_S = 1_800_000_000


Row = dict[str, Any]

WINDOWS = (
    "SELECT phase, window_kind AS kind, scope_kind AS scope, size, request, start, layer, seen,"
    " complete, close_reason AS reason, counts FROM windows ORDER BY ALL"
)


def chosen(rows: list[Row], **values: Any) -> list[Row]:
    """Rows with these values."""
    return [row for row in rows if values.items() <= row.items()]


def sums_by_layer(rows: list[Row]) -> dict[int, list[int]]:
    """Sum of the windows' counts per layer."""
    found: dict[int, list[int]] = {}
    for row in rows:
        held = found.get(row["layer"], [0] * EXPERTS)
        found[row["layer"]] = [a + b for a, b in zip(held, row["counts"], strict=True)]
    return found


def shown(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    """Some columns of rows."""
    return [tuple(row[name] for name in names) for row in rows]


def test_json_lines_become_windows(tmp_path: Path) -> None:
    """Lines with field names of one's own end in token and time windows with the same counts."""
    draw = random.Random(7)
    counted = {layer: Counter[int]() for layer in LAYERS}
    lines: list[dict[str, Any]] = []
    for request, tokens in (("long", 200), ("short", 40)):
        for position in range(tokens):
            for layer in LAYERS:
                experts = draw.sample(range(EXPERTS), TOP_K)
                counted[layer].update(experts)
                lines.append(
                    {
                        "seq": request,
                        "pos": position,
                        "t": BEGIN_S + position / 50,
                        "layer": layer,
                        "top": experts,
                    }
                )
    lines.append({"seq": "long", "pos": 200, "t": BEGIN_S + 4, "layer": 1, "top": "broken"})
    path, data = tmp_path / "routing.jsonl", tmp_path / "data"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    fields = {"request": "seq", "position": "pos", "time": "t", "experts": "top"}
    options = [f"map.{field}={name}" for field, name in fields.items()]
    options += [f"experts={EXPERTS}", "model=tiny", "phase=prefill"]
    told = moescope(
        "import", "jsonl", path, *(word for o in options for word in ("-o", o)),
        "--data", data, "--json", folder=tmp_path,
    )  # fmt: skip
    report = json.loads(told.stdout)
    assert (report["rows"], report["requests"], report["rejected"]) == (240, 2, 1)
    rows = query(data, WINDOWS)
    assert {row["phase"] for row in rows} == {"prefill"}
    expected = {layer: [counted[layer][e] for e in range(EXPERTS)] for layer in LAYERS}
    for size in (128, 256, 512):
        assert sums_by_layer(chosen(rows, kind="token", size=size)) == expected
    assert sums_by_layer(chosen(rows, kind="task")) == expected
    for scope in ("all", "node", "scene"):
        for seconds in (1, 5, 60):
            windows = chosen(rows, kind="time", scope=scope, size=seconds * 1_000_000)
            assert sums_by_layer(windows) == expected
    windows = chosen(rows, kind="token", size=128, layer=LAYERS[0])
    assert shown(windows, "request", "start", "seen", "complete", "reason") == [
        ("long", 0, 128, True, "complete"),
        ("long", 128, 72, False, "request_end"),
        ("short", 0, 40, False, "request_end"),
    ]


def test_vllm_responses_become_windows(tmp_path: Path) -> None:
    """Routed experts are counted per layer, dense layers left out, when the owner comes to it."""
    draw = np.random.default_rng(3)
    prompt, generated, layers = 150, 30, 3
    routes = np.argsort(draw.random((prompt + generated, layers, EXPERTS)), axis=2)[:, :, :TOP_K]
    routes = routes.astype(np.uint8)
    routes[:, 0] = 0  # a dense layer, as the engine writes it
    buffer = io.BytesIO()
    np.save(buffer, routes)
    response = {
        "id": "cmpl-1",
        "model": "tiny-moe",
        "usage": {"prompt_tokens": prompt},
        "choices": [{"routed_experts": base64.b64encode(buffer.getvalue()).decode()}],
    }
    path, data = tmp_path / "responses.jsonl", tmp_path / "data"
    path.write_text(json.dumps(response))
    written = moescope(
        "import", "vllm-routes", path, "-o", f"experts={EXPERTS}", "--no-process",
        "--data", data, folder=tmp_path,
    )  # fmt: skip
    assert "taken for dense" in written.stderr
    assert not (data / "moescope.duckdb").exists()
    processed = moescope("run", "all", "--until-idle", "--data", data, "--json", folder=tmp_path)
    assert json.loads(processed.stdout)["records"] > 0
    rows = query(data, WINDOWS)
    for phase, part in (("prefill", routes[:prompt]), ("decode", routes[prompt:])):
        wanted = {
            layer: np.bincount(part[:, layer].reshape(-1), minlength=EXPERTS).tolist()
            for layer in (1, 2)
        }
        assert sums_by_layer(chosen(rows, kind="task", phase=phase)) == wanted
    tokens = chosen(rows, kind="token", size=128, layer=2)
    assert sorted(shown(tokens, "phase", "start", "seen", "complete")) == [
        ("decode", 150, 30, False),
        ("prefill", 0, 128, True),
        ("prefill", 128, 22, False),
    ]


def test_import_options_are_checked_first(tmp_path: Path) -> None:
    """What is missing or unknown is named, and nothing is written."""
    path, data = tmp_path / "rows.jsonl", tmp_path / "data"
    path.write_text(json.dumps({"request": "a", "position": 0, "experts": [[0, 1]]}))
    missing = moescope("import", "jsonl", path, "--data", data, folder=tmp_path, expect=2)
    assert "-o experts=64" in missing.stderr
    wrong = moescope(
        "import", "jsonl", path, "-o", "expert=8", "--data", data, folder=tmp_path, expect=2
    )
    assert "Options of this format: " in wrong.stderr
    assert not list(data.glob("log/*/"))
