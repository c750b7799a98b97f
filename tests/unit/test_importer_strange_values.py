"""What stands where numbers belong: refused line by line, whatever it is and however large."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescope.producers.importers import ImportFormatError, import_files
from moescope.producers.importers.json_tables import (
    NoIntegersError,
    RaggedListsError,
    integers_of,
)
from moescope.producers.importers.json_values import shown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TRACE = {
    "step": 1, "layer": 0, "rank": 0, "num_tokens": 1, "topk": 2, "top_indices": [[0, 1]],
}  # fmt: skip
COUNTS = {"iter": 1, "layer": 0, "tpe": [[1, 1, 0, 0]]}
VLLM = {"id": "r", "routed_experts": [[[0, 1]]]}
JSONL = {"request": "r", "position": 0, "layer": 0, "experts": [0, 1]}
FORMATS: dict[str, tuple[str, str, dict[str, Any], dict[str, str]]] = {
    "megatron-trace": ("router_trace_rank0.jsonl", "top_indices", TRACE, {"experts": "8"}),
    "megatron-counts": ("rank0.jsonl", "tpe", COUNTS, {"experts": "4", "top_k": "2"}),
    "vllm-routes": ("r.jsonl", "routed_experts", VLLM, {"experts": "8"}),
    "jsonl": ("r.jsonl", "experts", JSONL, {"experts": "8"}),
}
LARGEST_MEMORY = 96 << 20


def write_lines(path: Path, lines: list[str]) -> Path:
    """A file of lines."""
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_a_long_text_among_short_ones_costs_no_more_than_its_line(
    form: str, nested: bool, tmp_path: Path
) -> None:
    """An array of texts would take the longest one's room for each of them."""
    name, field, good, options = FORMATS[form]
    texts: list[Any] = ["a" * 1_000_000] + ["a"] * 100_000
    value = [[text] for text in texts] if nested else texts
    path = write_lines(tmp_path / name, [json.dumps(good), json.dumps({**good, field: value})])
    tracemalloc.start()
    try:
        report = import_files(form, [path], tmp_path / "log", options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.rows == 1
    assert report.rejected == 1
    assert report.files[0].first_rejects[0].line == 2
    assert peak < LARGEST_MEMORY


@pytest.mark.parametrize(
    ("form", "field"),
    [
        *((form, field) for form, (_, _, good, _) in FORMATS.items() for field in good),
        ("megatron-trace", "stage"),
        ("megatron-trace", "block"),
        ("megatron-counts", "block"),
        ("vllm-routes", "model"),
        ("vllm-routes", "usage"),
        ("vllm-routes", "choices"),
        ("jsonl", "phase"),
        ("jsonl", "time"),
    ],
)
def test_lists_within_lists_are_a_bad_line_at_any_depth(
    form: str, field: str, tmp_path: Path
) -> None:
    """Those that can just be parsed are too deep to be shown as they are."""
    name, _, good, options = FORMATS[form]
    lines = [json.dumps(good)]
    for depth in (10, *range(800, 1_000), 5_000, 100_000):
        value = "[" * depth + "]" * depth
        rest = {key: value for key, value in good.items() if key != field}
        lines.append(json.dumps(rest)[:-1] + f', "{field}": {value}}}')
    path = write_lines(tmp_path / name, lines)
    report = import_files(form, [path], tmp_path / "log", options)
    assert report.rows == 1
    assert {line.line for line in report.files[0].first_rejects} >= {2, 3}
    assert all(len(str(line)) < 1_000 for line in report.files[0].first_rejects)


@pytest.mark.parametrize("depths", [(10, 5_000), range(800, 1_000)], ids=["far", "near"])
def test_a_file_of_counts_may_be_nested_at_any_depth(depths: Iterable[int], tmp_path: Path) -> None:
    """It is one document, refused with a reason."""
    for depth in depths:
        value = "[" * depth + "]" * depth
        text = f'{{"m": {{"expert_counts": {{"d": {{"0": [{value}]}}}}}}}}'
        path = write_lines(tmp_path / "c.json", [text])
        with pytest.raises(ImportFormatError) as refused:
            import_files("counts-json", [path], tmp_path / "log", {"top_k": "1"})
        why = str(refused.value)
        assert "a count that is no whole number" in why or "no JSON" in why


def test_a_layer_of_thousands_of_digits_is_no_layer(tmp_path: Path) -> None:
    """Python refuses to read such a number, and says so with an error of its own."""
    text = json.dumps({"m": {"expert_counts": {"d": {"9" * 5_000: [1]}, "e": {"0": [1]}}}})
    path = write_lines(tmp_path / "c.json", [text])
    report = import_files("counts-json", [path], tmp_path / "log", {"top_k": "1"})
    assert report.files[0].rejected == {"a layer that is no index": 1}
    assert report.rows == 1


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=81, max_size=81),
)
def test_numbers_are_taken_as_they_stand(shape: list[int], numbers: list[int]) -> None:
    """In lists of any shape, empty ones included."""
    size = int(np.prod(shape))
    expected = np.array(numbers[:size], np.int64).reshape(shape)
    found = integers_of(expected.tolist())
    # Where a list is empty nothing tells how deep those within it would be.
    known = shape[: shape.index(0) + 1] if 0 in shape else shape
    assert found.shape == tuple(known)
    assert found.dtype == np.int64
    assert found.ravel().tolist() == numbers[:size]


@pytest.mark.parametrize(
    ("lists", "error", "why"),
    [
        ([1, [2]], RaggedListsError, "lists beside a number"),
        ([[1], [2, 3]], RaggedListsError, "lists of 1 to 2 values at level 2"),
        ([[[[[[[[[1]]]]]]]]], RaggedListsError, "more than 8 levels"),
        ([[1, "2"]], NoIntegersError, "a value is text"),
        ([1, None, {}], NoIntegersError, "a value is an object, null"),
        ([True, 1], NoIntegersError, "a value is true or false"),
        ([1.0], NoIntegersError, "a value is a fraction"),
        ([2**63], NoIntegersError, "a number of more than 64 bits"),
        ([-(2**63) - 1], NoIntegersError, "a number of more than 64 bits"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused(
    lists: list[Any], error: type[Exception], why: str
) -> None:
    """With words that somebody finds again in the file."""
    with pytest.raises(error, match=why):
        integers_of(lists)


def test_a_value_is_shown_without_being_followed_to_its_end() -> None:
    """A message needs its beginning; its end may be further down than Python goes."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep).startswith("[[")
    assert shown({"a": deep}).startswith("{'a': [[")
    assert shown(["x" * 100] * 10) == "['" + "x" * 78 + "…"
    assert shown("x" * 79 + "y" * 10**6) == "'" + "x" * 79 + "…"
    assert shown("x\n\ud800") == r"'x\n\ud800'"
    assert shown([1, 2.5, None, True]) == "[1, 2.5, None, True]"


def test_half_a_character_in_a_name_can_be_told(tmp_path: Path) -> None:
    """The report goes to a terminal or a file, and neither takes one."""
    half = json.dumps({"m\ud800": {"expert_counts": {"d": {"0": [1]}}}})
    good = json.dumps({"m": {"expert_counts": {"d": {"0": [1]}}}})
    path = write_lines(tmp_path / "c.json", [half[:-1] + ", " + good[1:]])
    report = import_files("counts-json", [path], tmp_path / "log", {"top_k": "1"})
    assert report.rows == 1
    [reject] = report.files[0].first_rejects
    assert r"m\ud800/d" in str(reject)
    assert str(reject).encode()
