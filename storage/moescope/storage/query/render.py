"""Rows for people and programs: JSON, CSV, an aligned text table, or Arrow as it is."""

from __future__ import annotations

import base64
import csv
import datetime as dt
import io
import json
import math
import unicodedata
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import InputError
from moescope.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from moescope.storage.query.result import QueryResult

_WIDEST_CELL: Final = 60
_LISTED_ITEMS: Final = 8


def render(result: QueryResult, form: str) -> bytes:
    """Render a result.

    Args:
        result: Rows of a query.
        form: One of `FORMATS`: `table` (aligned text), `json`, `csv` or `arrow` (IPC stream).

    Returns:
        UTF-8 text that ends with a newline, or the Arrow stream. JSON is one object: `columns`
        (name and Arrow type), `rows` (a list per row), `row_count`, `truncated`, `as_of`. Times
        are ISO 8601, NaN and infinities null, binary values base64, whole numbers exact at any
        size. In CSV null is empty, lists and structs are JSON.

    Raises:
        InputError: An unknown format.
    """
    writer = FORMATS.get(form)
    if writer is None:
        raise InputError(
            f"There is no output format {form!r}.", next_step=f"Choose one of {', '.join(FORMATS)}."
        )
    return writer(result)


def _arrow(result: QueryResult) -> bytes:
    return result.arrow


def _json(result: QueryResult) -> bytes:
    table = result.to_arrow()
    document = {
        "columns": [{"name": field.name, "type": str(field.type)} for field in table.schema],
        "rows": _rows(table),
        "row_count": result.rows,
        "truncated": result.truncated,
        "as_of": _iso_of_us(result.as_of_us) if result.as_of_us else None,
    }
    return (json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _csv(result: QueryResult) -> bytes:
    table = result.to_arrow()
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in _rows(table):
        writer.writerow(["" if value is None else _flat(value) for value in row])
    return stream.getvalue().encode()


def _text_table(result: QueryResult) -> bytes:
    table = result.to_arrow()
    names = [printable(name) for name in table.column_names]
    cells = [[_cell(value) for value in row] for row in _rows(table)]
    widths = [
        max([_width(name), *(_width(row[index]) for row in cells)])
        for index, name in enumerate(names)
    ]
    right = [_is_number(field.type) for field in table.schema]
    lines = [
        _line(names, widths, right),
        "  ".join("─" * width for width in widths),
        *(_line(row, widths, right) for row in cells),
    ]
    if result.truncated:
        lines.append(f"(cut after {result.rows} rows)")
    return "".join(line.rstrip() + "\n" for line in lines).encode()


FORMATS: Final[dict[str, Callable[[QueryResult], bytes]]] = {
    "table": _text_table,
    "json": _json,
    "csv": _csv,
    "arrow": _arrow,
}
"""Output formats by name."""


def _rows(table: pa.Table) -> list[list[Any]]:
    columns = [[_plain(value) for value in _values(column)] for column in table.columns]
    # Column by column, for names may repeat and a dictionary per row would lose some.
    return [list(row) for row in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        # Times that SQL has and Python has no date for: as SQL writes them, or as numbers.
        return list(column.cast("int64").to_pylist())


def _plain(value: object) -> Any:  # noqa: ANN401 (JSON)
    """A value that JSON has, without loss where that is possible."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Decimal):
        return _plain_decimal(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return _plain_scalar(value)


def _plain_scalar(value: object) -> str:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, uuid.UUID | dt.timedelta):
        return str(value)
    return str(value)


def _plain_decimal(value: Decimal) -> int | float | None:
    if not value.is_finite():
        return None
    exponent = value.as_tuple().exponent
    return int(value) if isinstance(exponent, int) and exponent >= 0 else float(value)


def _flat(value: object) -> object:
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _cell(value: object) -> str:
    if value is None:
        return "∅"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and len(value) > _LISTED_ITEMS:
        shown = json.dumps(value[:_LISTED_ITEMS], ensure_ascii=False)[:-1]
        text = f"{shown}, … {len(value)} items]"
    else:
        text = str(_flat(value))
    text = printable(text)
    return text if len(text) <= _WIDEST_CELL else text[: _WIDEST_CELL - 1] + "…"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    padded = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        gap = " " * (width - _width(cell))
        padded.append(gap + cell if to_right else cell + gap)
    return "  ".join(padded)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa  # noqa: PLC0415 (heavy; rendering Arrow itself needs none)

    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _iso_of_us(time_us: int) -> str:
    return dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC).isoformat()
