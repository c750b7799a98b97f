"""SGLang responses: raw numbers without a header, one row more or less, and what is wrong."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.decoded_logs import log_of
from support.imported_rows import Row, example_of, example_options, imported_rows

from moescope.core.vocabulary import Phase
from moescope.producers.importers import ImportFormatError, import_files

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.producers.importers import ImportReport

OPTIONS = {"experts": "8", "hidden_layers": "2", "top_k": "2"}
ROUTES = np.array([[[0, 0], [1, 2]], [[0, 0], [3, 4]], [[0, 0], [5, 6]]], np.int32)


def raw(routes: np.ndarray[Any, Any]) -> str:
    """Numbers as base64 text."""
    return base64.b64encode(np.ascontiguousarray(routes).tobytes()).decode()


def response(routes: Any = ROUTES, name: str = "a", **fields: Any) -> dict[str, Any]:
    """A response of two prompt tokens and two generated ones."""
    text = raw(routes) if isinstance(routes, np.ndarray) else routes
    meta = {"id": name, "prompt_tokens": 2, "completion_tokens": 2, "routed_experts": text}
    return {"text": "", "meta_info": {**meta, **fields}}


def imported(
    folder: Path, responses: list[Any], options: dict[str, str] | None = None
) -> ImportReport:
    """Import responses from a file of JSON lines."""
    path = folder / "responses.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in responses), encoding="utf-8")
    return import_files("sglang-meta", [path], folder / "log", {**OPTIONS, **(options or {})})


def rows(folder: Path) -> list[tuple[str, int, int, list[list[int]]]]:
    """Request, position, phase and ids of every row."""
    return [row[:4] for row in imported_rows(folder / "log")]


def test_the_example_of_the_page_is_imported_as_the_page_says(
    repository_root: Path, tmp_path: Path
) -> None:
    """A page that shows something else than the code does is worse than none."""
    page = repository_root / "docs" / "reference" / "importers" / "sglang-meta.md"
    path = tmp_path / "responses.json"
    path.write_text(example_of(page, "json"), encoding="utf-8")
    import_files("sglang-meta", [path], tmp_path / "log", example_options(page))
    assert imported_rows(tmp_path / "log") == [
        Row("a", 0, Phase.PREFILL, [[1, 2]], (1,), None),
        Row("a", 1, Phase.PREFILL, [[3, 4]], (1,), None),
        Row("a", 2, Phase.DECODE, [[5, 6]], (1,), None),
    ]


def test_a_row_for_the_last_token_is_left_out_and_counted(tmp_path: Path) -> None:
    """Versions differ by one row; the last token was never computed, its row is a buffer's rest."""
    surplus = np.concatenate([ROUTES, [[[0, 0], [7, 7]]]]).astype(np.int32)
    report = imported(tmp_path, [response(surplus), response(ROUTES, "b")])
    assert [len([r for r in rows(tmp_path) if r[0] == name]) for name in "ab"] == [3, 3]
    assert "1 rows of last tokens were left out: those are never computed." in report.files[0].notes


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32"])
def test_the_sender_says_how_wide_its_ids_are(kind: str, tmp_path: Path) -> None:
    """Newer versions shrink the ids, and say so."""
    imported(tmp_path, [response(ROUTES.astype(kind), routed_experts_dtype=kind)])
    assert [ids for _, _, _, ids in rows(tmp_path)] == [[[1, 2]], [[3, 4]], [[5, 6]]]


def test_routes_may_start_later_and_cached_rows_are_left_out(tmp_path: Path) -> None:
    """A turn of a conversation asks for its own rows only; cached ones were not computed."""
    later = response(prompt_tokens=12, routed_experts_start_len=10, cached_tokens=11)
    report = imported(tmp_path, [later])
    assert [(position, phase) for _, position, phase, _ in rows(tmp_path)] == [
        (11, Phase.PREFILL),
        (12, Phase.DECODE),
    ]
    assert report.files[0].notes[-1].startswith("1 rows of cached prompt tokens")


def test_openai_forms_and_batches_are_understood(tmp_path: Path) -> None:
    """Three places, one meaning; a line may hold a batch."""
    meta = response(ROUTES, "c")["meta_info"]
    del meta["id"]
    choices = {"id": "x", "model": "m", "choices": [{"meta_info": meta}, {"meta_info": meta}]}
    extended = {
        "id": "y",
        "model": "m",
        "choices": [{"text": ""}],
        "sglext": {"routed_experts": raw(ROUTES)},
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
    }
    imported(tmp_path, [[choices, extended]])
    found = [(name, position) for name, position, _, _ in rows(tmp_path)]
    assert found == [
        ("x-0", 0), ("x-0", 1), ("x-0", 2), ("x-1", 2), ("y", 0), ("y", 1), ("y", 2),
    ]  # fmt: skip
    [batches] = log_of(tmp_path / "log").values()
    assert {batch.header.model for batch, _ in batches} == {"m"}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (response("!!", "b"), "routed_experts is no base64"),
        (response(raw(ROUTES)[:-8], "b"), "routed_experts is no whole number of rows"),
        (response(ROUTES[:1], "b"), "routed_experts has another length than the tokens"),
        (response(ROUTES - 2, "b"), "routed_experts has an id that is not 0 to 65535"),
        (response(ROUTES, "b", routed_experts_dtype="f"), "routed_experts has an unexpected type"),
        (response([1, 2], "b"), "routed_experts is no text"),
        (response(ROUTES, "a"), "the same response again"),
        ({"text": "no routes"}, "no routed experts"),
        ({"choices": [1]}, "a choice that is no object"),
        (3, "a response that is no object"),
        (
            response(ROUTES, "b", cached_tokens=-1),
            "cached_tokens is no integer from 0 to 2147483646",
        ),
    ],
)
def test_damaged_responses_are_rejected_alone(
    item: Any,
    reason: str,
    tmp_path: Path,
) -> None:
    """Rows that cannot be placed say nothing; the other responses are imported."""
    report = imported(tmp_path, [response(ROUTES), item])
    assert report.files[0].rejected == {reason: 1}
    assert {name for name, _, _, _ in rows(tmp_path)} == {"a"}


def test_ids_of_one_byte_cannot_name_five_hundred_experts(tmp_path: Path) -> None:
    """They have overflowed in the engine, and look like other experts' ids."""
    narrow = response(ROUTES.astype(np.uint8), "b", routed_experts_dtype="uint8")
    report = imported(tmp_path, [response(ROUTES), narrow], {"experts": "512"})
    assert report.files[0].rejected == {"routed_experts has ids of 8 bits": 1}


def test_zeros_and_stuck_rows_are_suspicious(tmp_path: Path) -> None:
    """What gates will keep out of health is said at once."""
    stuck = np.tile(ROUTES[:1], (40, 1, 1))
    item = response(stuck, prompt_tokens=40, completion_tokens=1)
    zeros = np.zeros((3, 2, 2), np.int32)
    report = imported(tmp_path, [item, response(zeros, "z")], {"moe_layers": "1"})
    assert report.files[0].suspicious == {
        "all-zero ids": 3,
        "rows in a run of identical ones": 8,
    }


@pytest.mark.parametrize("missing", ["experts", "hidden_layers", "top_k"])
def test_what_the_bytes_cannot_tell_is_asked_for(missing: str, tmp_path: Path) -> None:
    """A guessed shape would make routing up."""
    path = tmp_path / "r.json"
    path.write_text(json.dumps(response()), encoding="utf-8")
    options = {name: value for name, value in OPTIONS.items() if name != missing}
    with pytest.raises(ImportFormatError, match="not known"):
        import_files("sglang-meta", [path], tmp_path / "log", options)
