"""What a query returns: an Arrow IPC stream, and how it came about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """Rows of one query.

    Attributes:
        arrow: An Arrow IPC stream (schema, then record batches).
        rows: How many rows it holds.
        truncated: More rows existed than the limits allow.
        seconds: How long the query ran.
        as_of_us: When the data that was read was exported (µs since the epoch); 0 when the store
            file itself was read.
        commit_id: Commit of the store that the data reflects; -1 when the file was read.
    """

    arrow: bytes
    rows: int
    truncated: bool
    seconds: float
    as_of_us: int = 0
    commit_id: int = -1

    def to_arrow(self) -> pa.Table:
        """The rows as a pyarrow table."""
        import pyarrow as pa  # noqa: PLC0415 (heavy; results often pass through unread)

        return pa.ipc.open_stream(self.arrow).read_all()

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars frame; 128-bit integers are `Int128`."""
        import polars as pl  # noqa: PLC0415 (heavy; results often pass through unread)

        frame = pl.read_ipc_stream(self.arrow)
        # DuckDB's HUGEINT, the type of every sum of integers, travels as a decimal of scale 0.
        whole = [
            name
            for name, kind in frame.schema.items()
            if isinstance(kind, pl.Decimal) and kind.precision == 38 and kind.scale == 0  # noqa: PLR2004 - HUGEINT's
        ]
        return frame.with_columns(pl.col(whole).cast(pl.Int128)) if whole else frame
