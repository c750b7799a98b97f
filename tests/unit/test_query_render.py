from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from moescope.core.errors import InputError
from moescope.storage.query import QueryResult, render


def result_of(table: pa.Table, *, truncated: bool = False) -> QueryResult:
    """A result that holds the table's rows."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return QueryResult(arrow=sink.getvalue(), rows=table.num_rows, truncated=truncated, seconds=0.1)


def json_of(array: pa.Array) -> object:
    """How the only value of a column looks in JSON."""
    document = json.loads(render(result_of(pa.table({"a": array})), "json"))
    assert document["row_count"] == 1
    return document["rows"][0][0]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([float("nan")]), None),
        (pa.array([float("inf")]), None),
        (pa.array([0.1]), 0.1),
        (pa.array([None], pa.int64()), None),
        (pa.array([2**64 - 1], pa.uint64()), 2**64 - 1),
        (pa.array([Decimal(10**37)], pa.decimal128(38, 0)), 10**37),
        (pa.array([Decimal("1.25")], pa.decimal128(10, 2)), 1.25),
        (pa.array([[1, None, 3]]), [1, None, 3]),
        (pa.array([[float("nan"), 1.0]]), [None, 1.0]),
        (pa.array([{"x": 1, "y": [True]}]), {"x": 1, "y": [True]}),
        (pa.array([b"\x00\xff"]), "AP8="),
        (pa.array(["ä\n\"'"]), "ä\n\"'"),
        (pa.array([dt.date(2026, 1, 2)]), "2026-01-02"),
        (pa.array([0], pa.timestamp("us")), "1970-01-01T00:00:00"),
        (pa.array([1500], pa.timestamp("ms", "UTC")), "1970-01-01T00:00:01.500000+00:00"),
        (pa.array([dt.time(1, 2)]), "01:02:00"),
    ],
)
def test_json_keeps_values_exact_and_valid(array: pa.Array, expected: object) -> None:
    """Every type has a JSON form: no NaN, ISO times, whole numbers of any size."""
    assert json_of(array) == expected


def test_json_names_columns_and_says_when_it_was_cut() -> None:
    """Names may repeat, so rows are lists beside a list of columns."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["x"])], names=["a", "a"])
    document = json.loads(render(result_of(table, truncated=True), "json"))
    assert document["columns"] == [
        {"name": "a", "type": "int64"},
        {"name": "a", "type": "string"},
    ]
    assert document["rows"] == [[1, "x"]]
    assert document["truncated"] is True
    assert document["as_of"] is None


def test_csv_can_be_read_back() -> None:
    """Quotes, line breaks, nulls and lists survive a standard CSV reader."""
    table = pa.table({"text": ['a,"b"\nc', None], "list": [[1, 2], []], "flag": [True, False]})
    rows = list(csv.reader(io.StringIO(render(result_of(table), "csv").decode(), newline="")))
    assert rows == [
        ["text", "list", "flag"],
        ['a,"b"\nc', "[1, 2]", "true"],
        ["", "[]", "false"],
    ]


def test_the_table_is_aligned_and_short() -> None:
    """Numbers to the right, long lists and texts shortened, nulls marked, cuts told."""
    table = pa.table({"n": [1, 1000], "text": ["宽", "x" * 100], "list": [list(range(100)), None]})
    lines = render(result_of(table, truncated=True), "table").decode().splitlines()
    assert lines[0].split() == ["n", "text", "list"]
    assert lines[2].startswith("   1  宽")
    assert "… 100 items]" in lines[2]
    assert lines[3].startswith("1000  xxx")
    assert "…" in lines[3]
    assert lines[3].endswith("∅")
    assert lines[4] == "(cut after 2 rows)"


def test_the_table_is_safe_for_a_terminal() -> None:
    """Control characters in data cannot move a cursor or set a title."""
    text = render(result_of(pa.table({"a\x1b[2J": ["x\x1b]0;owned\x07\r\ny"]})), "table").decode()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert len(text.splitlines()) == 3


@pytest.mark.parametrize("form", ["table", "json", "csv", "arrow"])
def test_no_rows_are_a_result_too(form: str) -> None:
    """A query without rows still shows its columns."""
    rendered = render(result_of(pa.table({"only_column": pa.array([], pa.int64())})), form)
    assert b"only_column" in rendered


def test_an_unknown_format_names_the_known_ones() -> None:
    """The error lists what can be chosen."""
    with pytest.raises(InputError, match="table, json, csv, arrow"):
        render(result_of(pa.table({"a": [1]})), "xml")
