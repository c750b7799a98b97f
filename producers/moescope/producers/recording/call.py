"""Check one `record()` call and bring its columns into the ring's shape, without a lock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from moescope.core.vocabulary import Phase
from moescope.producers.recording.running import NEVER_COUNTED_PHASES, rows_kept
from moescope.producers.ring.layout import MOST_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized
    from typing import SupportsInt

    from numpy.typing import NDArray

    from moescope.producers.ring.rows import RowShape

LATEST_TIME_US: Final = 2**53
LARGEST_POSITION: Final = 2**31 - 1
_POSITION_BYTES: Final = 4
LARGEST_STEP: Final = 2**53
_PHASES: Final[dict[object, Phase]] = {phase.name.lower(): phase for phase in Phase} | {
    phase.value: phase for phase in Phase
}
_ID_DIMENSIONS: Final = 3  # tokens, layers, k
_UNSIGNED: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
INTEGERS: Final = "iu"
_INTEGER_TYPES: Final = "bBhHiIlLqQ"  # NumPy's, by their one-letter codes


class RejectedCallError(Exception):
    """No row of a call can be recorded; never leaves the recorder."""


@dataclass(slots=True)
class RecordCall:
    """The rows of one call.

    Attributes:
        names: Request ids, one per run of consecutive rows; None for what is no text.
        counts: Rows of each run.
        values: Columns by name: arrays of `rows` rows, or scalars that hold for each row.
        padding: bool [rows] or None.
        bad_rows: bool [rows], rows that cannot be recorded, or None when all can.
        bad_row_reason: Why, for the log.
    """

    rows: int
    names: list[str | None]
    counts: list[int]
    values: dict[str, Any]
    padding: NDArray[np.bool_] | None = None
    bad_rows: NDArray[np.bool_] | None = None
    bad_row_reason: str = ""

    def condemn(self, bad: NDArray[np.bool_], reason: str) -> None:
        """Mark more rows as impossible to record."""
        self.bad_rows = bad if self.bad_rows is None else self.bad_rows | bad
        self.bad_row_reason = reason

    def keep(self, keep: NDArray[np.bool_]) -> None:
        """Cut out all other rows."""
        if not self.rows:
            return
        kept = rows_kept(self.counts, keep)
        self.names = [name for name, count in zip(self.names, kept, strict=True) if count]
        self.values = {
            name: value[keep] if np.ndim(value) else value for name, value in self.values.items()
        }
        if self.padding is not None:
            self.padding = self.padding[keep]
        if self.bad_rows is not None:
            self.bad_rows = self.bad_rows[keep]
        self.counts = [count for count in kept if count]
        self.rows = sum(kept)


def rows_given(positions: object, expert_ids: object) -> int:
    """How many rows a call meant, as well as can be told from arguments of any kind."""
    for argument in (positions, expert_ids):
        try:
            return len(cast("Sized", argument))
        except Exception:  # noqa: BLE001, S112 - whatever an engine passes
            continue
    return 0


def tokens_given(positions: object, expert_ids: object, phase: object, padding: object) -> int:
    """How many rows a call meant that windows would count: no padding, no drafts, no warm-up.

    As well as can be told from arguments of any kind: what cannot be told counts.
    """
    rows = rows_given(positions, expert_ids)
    try:
        counts = np.ones(rows, np.bool_)
        if padding is not None:
            counts[np.flatnonzero(np.asarray(padding, np.bool_).reshape(rows))] = False
        given = phase.lower() if isinstance(phase, str) else phase
        if isinstance(given, (str, int)):
            return int(np.count_nonzero(counts)) if _counts(given) else 0
        return int(np.count_nonzero(counts & ~np.isin(np.asarray(given), NEVER_COUNTED_PHASES)))
    except Exception:  # noqa: BLE001 - whatever an engine passes
        return rows


def _counts(phase: str | int) -> bool:
    return _PHASES.get(phase) not in NEVER_COUNTED_PHASES


def whole_number_of_rows(rows: object) -> int:
    """How many rows somebody tells of.

    Raises:
        Exception: Whatever the conversion of something else raises; ValueError out of range.
    """
    number = int(cast("SupportsInt", rows))
    if not 0 <= number <= MOST_ROWS:
        raise ValueError(f"no number of rows from 0 to {MOST_ROWS}")
    return number


def check_call(
    shape: RowShape,
    request_ids: object,
    positions: object,
    expert_ids: object,
    phase: object,
    *,
    rows_per_request: object = None,
    padding: object = None,
    **optional: object,
) -> RecordCall:
    """Check a call's arguments and name its columns.

    Raises:
        RejectedCallError: No row can be recorded; the message says why.
    """
    ids = np.asarray(expert_ids)
    expected = (shape.layers, shape.top_k)
    if ids.ndim != _ID_DIMENSIONS or ids.shape[1:] != expected:
        raise RejectedCallError(f"expert_ids has shape {ids.shape}, not (T, {expected})")
    if ids.dtype.kind not in INTEGERS:
        raise RejectedCallError(f"expert_ids is {ids.dtype}, not integer")
    if ids.dtype.char not in types_that_name(shape.experts):
        raise RejectedCallError(
            f"expert_ids is {ids.dtype}, too narrow to name {shape.experts} experts"
        )
    rows = len(ids)
    position = _positions(positions, rows)
    names, counts = _runs(request_ids, rows_per_request, rows)
    call = RecordCall(
        rows,
        names,
        counts,
        {"position": position, "phase": _phase(phase, rows), "expert_ids": ids},
    )
    if rows == 0:
        return call
    if padding is not None:
        call.padding = _shaped("padding", np.asarray(padding), (rows,), "b")
        ids = call.values["expert_ids"] = _excused(ids, shape.experts - 1, call.padding)
        position = call.values["position"] = _excused(position, LARGEST_POSITION, call.padding)
    if largest(ids) >= shape.experts:
        bad = (ids < 0) | (ids >= shape.experts)
        call.condemn(
            np.asarray(bad.any(axis=(1, 2))), f"expert ids outside of 0 … {shape.experts - 1}"
        )
    if largest(position) > LARGEST_POSITION:
        outside = np.asarray((position < 0) | (position > LARGEST_POSITION), np.bool_)
        call.condemn(outside, "positions out of range")
    for name, value in optional.items():
        if value is not None:
            _add_optional(call, shape, name, value)
    return call


@lru_cache
def types_that_name(experts: int) -> str:
    """Codes of the integer types that hold each id of that many experts; narrower ones wrap."""
    return "".join(code for code in _INTEGER_TYPES if np.iinfo(code).max >= experts - 1)


def largest(numbers: NDArray[Any]) -> int:
    """The largest number, where a negative one counts as larger than all others."""
    if not numbers.dtype.isnative:
        numbers = numbers.astype(numbers.dtype.newbyteorder("="))
    if numbers.dtype.kind == "i":  # one pass instead of two: decode calls are short and many
        numbers = numbers.view(_UNSIGNED[numbers.dtype.itemsize])
    # Not max(): what NumPy runs through for that takes longer than the comparing.
    return int(numbers.item(numbers.argmax()))


def _excused(numbers: NDArray[Any], highest: int, padding: NDArray[np.bool_]) -> NDArray[Any]:
    """The numbers, with 0 for those of padding rows that are not in 0 … `highest`."""
    if largest(numbers) <= highest:
        return numbers
    excused = (numbers < 0) | (numbers > highest)
    excused[~padding] = False
    return np.where(excused, numbers.dtype.type(0), numbers)


def _add_optional(call: RecordCall, shape: RowShape, name: str, value: object) -> None:
    rows = call.rows
    array = np.asarray(value)
    if name in _INTEGER_COLUMNS:
        if array.ndim:
            array = _integers(name, array, rows)
        elif array.dtype.kind not in INTEGERS:
            raise RejectedCallError(f"{name} is {array.dtype}, not integer")
        call.values[name] = array
        if name == "event_time_us":
            _check_times(call, array)
        if (
            name == "step"
            and array.size
            and not 0 <= int(array.min()) <= int(array.max()) <= LARGEST_STEP
        ):
            raise RejectedCallError(f"steps go from {array.min()} to {array.max()}")
        return
    layers, k = shape.layers, shape.top_k
    if name == "dropped":
        call.values[name] = _shaped(name, array, (rows, layers, k), "b")
        return
    wanted = (rows, layers, k) if name == "weights" else (rows, layers)
    call.values[name] = _shaped(name, array, wanted, "f")


_INTEGER_COLUMNS: Final = frozenset(
    {"event_time_us", "pass_id", "step", "token_id", "content_key", "block"}
)


def _check_times(call: RecordCall, times: NDArray[Any]) -> None:
    if int(times.min()) < 0 or int(times.max()) > LATEST_TIME_US:
        bad = np.broadcast_to((times < 0) | (times > LATEST_TIME_US), call.rows)
        call.condemn(bad, "event times that are no microseconds since 1970")


def _integers(name: str, value: object, rows: int) -> NDArray[Any]:
    return _shaped(name, np.asarray(value), (rows,), INTEGERS)


def _positions(value: object, rows: int) -> NDArray[Any]:
    positions = _integers("positions", value, rows)
    if positions.dtype.itemsize < _POSITION_BYTES:  # there -1 would not be beyond the largest
        return positions.astype(np.int32)
    return positions


def _shaped(name: str, array: NDArray[Any], wanted: tuple[int, ...], kinds: str) -> NDArray[Any]:
    if array.shape != wanted:
        raise RejectedCallError(f"{name} has shape {array.shape}, not {wanted}")
    if array.dtype.kind not in kinds and array.size:
        raise RejectedCallError(f"{name} is {array.dtype}, which it cannot be")
    return array


def _phase(phase: object, rows: int) -> int | NDArray[Any]:
    if isinstance(phase, str | int):
        known = _PHASES.get(phase.lower() if isinstance(phase, str) else phase)
        if known is None:
            known_names = ", ".join(name.lower() for name in Phase.__members__)
            raise RejectedCallError(f"phase is {phase!r}, not one of {known_names}")
        return int(known)
    phases = _integers("phase", phase, rows)
    if rows and not 0 <= int(phases.min()) <= int(phases.max()) < len(Phase):
        raise RejectedCallError("phase has a value that is no phase")
    return phases


def _runs(
    request_ids: object,
    rows_per_request: object,
    rows: int,
) -> tuple[list[str | None], list[int]]:
    if isinstance(request_ids, str):
        return [request_ids], [rows]
    names = (
        request_ids.tolist()
        if isinstance(request_ids, np.ndarray)
        else list(cast("Iterable[Any]", request_ids))
    )
    if set(map(type, names)) - {str}:
        names = [str(name) if isinstance(name, str) else None for name in names]
    if rows_per_request is None:
        if len(names) != rows:
            raise RejectedCallError(f"{len(names)} request ids for {rows} rows")
        if len(set(names)) == rows:
            return names, [1] * rows
        runs = [(name, sum(1 for _ in group)) for name, group in groupby(names)]
    else:
        counts = _integers("rows_per_request", rows_per_request, len(names)).tolist()
        if sum(counts) != rows or (counts and min(counts) < 0):
            raise RejectedCallError(f"rows_per_request adds up to {sum(counts)}, not to {rows}")
        runs = [(name, count) for name, count in zip(names, counts, strict=True) if count]
    return [name for name, _ in runs], [count for _, count in runs]
