"""vLLM responses: dense layers, zeros, several choices, and what is wrong with them."""

from __future__ import annotations

import base64
import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.decoded_logs import log_of

from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.importers import ImportFormatError, import_files

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.producers.importers import ImportReport

OPTIONS = {"experts": "8"}
ROUTES = np.array([[[0, 0], [1, 2]], [[0, 0], [3, 4]], [[0, 0], [5, 6]]], np.uint8)


def npy(routes: np.ndarray[Any, Any]) -> str:
    """A `.npy` file as base64 text."""
    buffer = io.BytesIO()
    np.save(buffer, routes)
    return base64.b64encode(buffer.getvalue()).decode()


def response(routes: Any, name: str = "a", **fields: Any) -> dict[str, Any]:
    """A response with one choice and a prompt of two tokens."""
    text = npy(routes) if isinstance(routes, np.ndarray) else routes
    return {
        "id": name,
        "usage": {"prompt_tokens": 2},
        "choices": [{"routed_experts": text}],
        **fields,
    }


def imported(
    folder: Path, responses: list[Any], options: dict[str, str] | None = None
) -> ImportReport:
    """Import responses from a file of JSON lines."""
    path = folder / "responses.jsonl"
    path.write_text("\n".join(json.dumps(item) for item in responses), encoding="utf-8")
    return import_files("vllm-routes", [path], folder / "log", {**OPTIONS, **(options or {})})


def rows(folder: Path) -> list[tuple[str, int, int, list[list[int]]]]:
    """Request, position, phase and sorted ids of every counted row."""
    found = []
    for batches in log_of(folder / "log").values():
        for batch, _ in batches:
            tokens, routes = batch.tokens, batch.routes
            assert tokens is not None
            assert routes is not None
            for row in range(len(tokens)):
                if not tokens.flags[row] & RowFlag.CONTEXT:
                    name = batch.requests.ids[tokens.request[row]]
                    ids = [sorted(part) for part in routes.expert_ids[row].tolist()]
                    found.append((name, int(tokens.position[row]), int(tokens.phase[row]), ids))
    return found


def test_dense_layers_are_found_and_named(tmp_path: Path) -> None:
    """A dense layer reads as expert 0 everywhere: it is no MoE layer, and the report says so."""
    report = imported(tmp_path, [response(ROUTES)])
    assert report.files[0].notes == ("layers [0] are zero throughout and were taken for dense",)
    assert rows(tmp_path) == [
        ("a", 0, Phase.PREFILL, [[1, 2]]),
        ("a", 1, Phase.PREFILL, [[3, 4]]),
        ("a", 2, Phase.DECODE, [[5, 6]]),
    ]
    [batches] = log_of(tmp_path / "log").values()
    assert batches[0].batch.header.layers.tolist() == [1]


def test_all_zero_routes_are_an_error_unless_layers_are_named(tmp_path: Path) -> None:
    """A kernel that never fills the buffer is a known fault: flagged, never taken for routing."""
    zeros = np.zeros((3, 2, 2), np.uint8)
    with pytest.raises(ImportFormatError, match=r"All routes of .* are zero"):
        imported(tmp_path, [response(zeros)])
    report = imported(tmp_path, [response(zeros)], {"moe_layers": "0-1"})
    assert report.files[0].suspicious == {"all-zero ids": 6}


def test_one_expert_per_token_needs_named_layers(tmp_path: Path) -> None:
    """With k = 1, zeros may be expert 0."""
    routes = np.array([[[0], [1]], [[0], [0]]], np.uint8)
    with pytest.raises(ImportFormatError, match="moe_layers"):
        imported(tmp_path, [response(routes)])
    imported(tmp_path, [response(routes)], {"moe_layers": "1"})
    assert [ids for _, _, _, ids in rows(tmp_path)] == [[[1]], [[0]]]


def test_choices_share_the_prompt_of_the_first(tmp_path: Path) -> None:
    """A prompt is computed once, however many answers it has."""
    second = ROUTES.copy()
    second[2, 1] = [7, 1]
    choices = [{"routed_experts": npy(ROUTES)}, {"routed_experts": npy(second)}]
    imported(tmp_path, [{**response(ROUTES), "choices": choices}])
    assert [(name, position) for name, position, _, _ in rows(tmp_path)] == [
        ("a-0", 0),
        ("a-0", 1),
        ("a-0", 2),
        ("a-1", 2),
    ]


def test_a_response_of_unknown_prompt_length_is_of_no_phase(tmp_path: Path) -> None:
    """Without a prompt length, prefill and decode cannot be told apart."""
    item = response(ROUTES)
    del item["usage"]
    imported(tmp_path, [item])
    assert {phase for _, _, phase, _ in rows(tmp_path)} == {Phase.EVAL}


def test_a_row_for_the_last_token_is_left_out(tmp_path: Path) -> None:
    """It was never computed, whatever the buffer holds; a note counts it."""
    item = response(ROUTES, usage={"prompt_tokens": 2, "completion_tokens": 1})
    report = imported(tmp_path, [item])
    assert [position for _, position, _, _ in rows(tmp_path)] == [0, 1]
    assert report.files[0].notes[-1].startswith("1 rows of last tokens were left out")


def test_nested_lists_are_read_like_arrays(tmp_path: Path) -> None:
    """Some servers send plain lists."""
    imported(tmp_path, [response(ROUTES.tolist())])
    assert len(rows(tmp_path)) == 3


def test_rows_with_unknown_ids_are_left_out_and_counted(tmp_path: Path) -> None:
    """−1 stands for a row that the engine does not know."""
    routes = ROUTES.astype(np.int16)
    routes[1, 1, 0] = -1
    report = imported(tmp_path, [response(routes)])
    assert [position for _, position, _, _ in rows(tmp_path)] == [0, 2]
    assert report.files[0].rejected == {"rows with unknown (−1) ids": 1}


def test_ids_of_one_byte_cannot_name_five_hundred_experts(tmp_path: Path) -> None:
    """They have overflowed in the engine, and look like other experts' ids."""
    wide = response(ROUTES.astype(np.uint16), "w")
    report = imported(tmp_path, [wide, response(ROUTES)], {"experts": "512"})
    assert report.files[0].rejected == {"routed_experts has ids of 8 bits": 1}
    assert {name for name, _, _, _ in rows(tmp_path)} == {"w"}


class _Trap:
    """Unpickling it would be a fault."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("unpickled",))


def _with_header(shape: str, body: bytes = b"", kind: str = "|u1") -> str:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    padded = header.ljust(117) + "\n"
    length = len(padded).to_bytes(2, "little")
    raw = b"\x93NUMPY\x01\x00" + length + padded.encode() + body
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize(
    ("routes", "reason"),
    [
        ("!!!", "routed_experts is no base64"),
        (base64.b64encode(b"hello").decode(), "routed_experts is no .npy file of version 1 or 2"),
        (_with_header("(1000000000000, 1, 1)"), "routed_experts has too many tokens"),
        (_with_header("(3, 100000000000, 4)"), "routed_experts does not hold what its header says"),
        (_with_header("(1, 1, 1)", b"12"), "routed_experts does not hold what its header says"),
        (_with_header("(2, 1)", b"12"), "routed_experts has no shape [tokens, layers, k]"),
        (_with_header("(1, 1, 1)", b"1234", "<f4"), "routed_experts has an unexpected type"),
        (
            _with_header("(1, 1, 1)", pickle.dumps(_Trap()), "|O"),
            "routed_experts has an unexpected type",
        ),
        (7, "routed_experts is neither text nor a list"),
        ([[[1, 2], [3]]], "routed_experts is ragged"),
        ([[[1.5, 2]]], "routed_experts holds something else than integers"),
        ([[[70000, 2]]], "routed_experts has an id that is not 0 to 65535"),
        (np.zeros((1, 3, 2), np.uint8), "another shape than the first response"),
        (None, "no routed experts"),
    ],
)
def test_damaged_responses_are_rejected_alone(
    routes: Any,
    reason: str,
    tmp_path: Path,
) -> None:
    """One bad response does not cost the others, and never allocates what its header claims."""
    report = imported(tmp_path, [response(ROUTES), response(routes, "b"), response(ROUTES, "c")])
    assert report.files[0].rejected == {reason: 1}
    assert report.files[0].first_rejects[0].line == 2
    assert {name for name, _, _, _ in rows(tmp_path)} == {"a", "c"}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ([], "a response that is no object"),
        (response(ROUTES), "the same response again"),
        ({**response(ROUTES, "b"), "choices": [3]}, "a choice that is no object"),
        (
            {**response(ROUTES, "b"), "prompt_routed_experts": npy(ROUTES)},
            "as many prompt routes as prompt tokens are needed",
        ),
        (
            {**response(ROUTES, "b"), "prompt_routed_experts": npy(ROUTES[:2, :1])},
            "prompt and generated routes of different shapes",
        ),
        (
            {**response(ROUTES, "b"), "usage": {"prompt_tokens": 2, "completion_tokens": 9}},
            "routed_experts has another length than the tokens",
        ),
        (
            {
                **response(ROUTES, "b"),
                "choices": [{"routed_experts": npy(ROUTES), "token_ids": [1, 2, 3, 4]}],
            },
            "routed_experts has another length than the tokens",
        ),
        (
            {**response(ROUTES, "b"), "usage": {"prompt_tokens": "2"}},
            "prompt_tokens is no integer from 0 to 2147483646",
        ),
    ],
)
def test_contradictions_are_rejected(
    item: Any,
    reason: str,
    tmp_path: Path,
) -> None:
    """A response that contradicts itself says nothing certain about positions."""
    report = imported(tmp_path, [response(ROUTES), item])
    assert report.files[0].rejected == {reason: 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"moe_layers": "1-9"}, "names layer 9"), ({"max_memory_mib": "0"}, "cannot be '0'")],
)
def test_wrong_options_are_refused(options: dict[str, str], message: str, tmp_path: Path) -> None:
    """A layer that the file does not have is a typing error."""
    with pytest.raises(ImportFormatError, match=message):
        imported(tmp_path, [response(ROUTES)], options)


def test_experts_have_to_be_named(tmp_path: Path) -> None:
    """Ids only show which experts were used."""
    path = tmp_path / "r.json"
    path.write_text(json.dumps(response(ROUTES)), encoding="utf-8")
    with pytest.raises(ImportFormatError, match="not known"):
        import_files("vllm-routes", [path], tmp_path / "log")
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ImportFormatError, match="No response"):
        import_files("vllm-routes", [path], tmp_path / "log", OPTIONS)
