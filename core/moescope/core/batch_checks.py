"""What every routing batch satisfies: checked once, at construction.

Everything downstream (codec, batch log, kernels) relies on these checks and repeats none of
them. What is merely *suspicious* (duplicate ids in a row, ids ≥ E, counts that do not add up)
passes here: it is counted and labelled by the ingest gates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.errors import InputError
from moescope.core.vocabulary import (
    MAX_EXPERTS,
    Fidelity,
    IdSpace,
    Origin,
    Phase,
    RankOrder,
    RowFlag,
    ScoreKind,
    TokenIdKind,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import IntEnum

    from numpy.typing import NDArray

    from moescope.core.batch import (
        BatchHeader,
        Placement,
        Quantised,
        Requests,
        Routes,
        RoutingBatch,
        TimeBlocks,
        TokenBlocks,
        Tokens,
    )

MAX_TOKENS = 1 << 20
MAX_LAYERS = 4_096
MAX_TOP_K = 255
MAX_ASSIGNMENTS = 1 << 28
"""Of one batch: T × L × k, and also blocks × L × E."""
MAX_NAME_BYTES = 4_096
"""Of one string, in UTF-8."""
MAX_LABELS = 256
SEVERAL_RANKS = 65_535
"""In `Placement.rank_of`: the expert has replicas on several ranks, so that its load is no single
rank's."""

_INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1
_INT32_MAX = 2**31 - 1
_ALL_FLAGS = int(sum(RowFlag))
_CODE_DTYPES: dict[int, type[np.generic]] = {4: np.uint8, 8: np.uint8, 16: np.uint16}
_UNPACKED_4_BIT_CODES = 16
_CELLS_AT_A_TIME = 1 << 18


class BatchError(InputError):
    """A routing batch's columns contradict each other or are out of range."""


def check_batch(batch: RoutingBatch) -> None:
    """Check a whole batch.

    Raises:
        BatchError: A column has the wrong type or shape, is out of range, or contradicts
            another one.
    """
    check_header(batch.header)
    _check_requests(batch.requests)
    _check_parts(batch)
    if batch.tokens is not None and batch.routes is not None:
        _check_tokens(batch.tokens, batch.header, len(batch.requests))
        _check_routes(batch.routes, batch.header, len(batch.tokens))
    if batch.token_blocks is not None:
        _check_token_blocks(batch.token_blocks, batch.header, len(batch.requests))
    if batch.time_blocks is not None:
        _check_time_blocks(batch.time_blocks, batch.header)


def check_header(header: BatchHeader) -> None:
    """Check what holds for every token of a batch.

    Raises:
        BatchError: A field is out of range.
    """
    for name in ("node", "model", "revision", "engine", "engine_version"):
        _check_name(f"header.{name}", getattr(header, name), empty_allowed=name not in _NAMED)
    for name, largest in _HEADER_INTEGERS.items():
        _check_integer(f"header.{name}", getattr(header, name), 0, largest)
    for name in ("watermark_us", "encoded_at_us"):
        _check_integer(f"header.{name}", getattr(header, name), -_INT64_MAX - 1, _INT64_MAX)
    _check_integer("header.experts", header.experts, 1, MAX_EXPERTS)
    _check_integer("header.top_k", header.top_k, 1, min(MAX_TOP_K, header.experts))
    for name, kind in _HEADER_ENUMS.items():
        _check_member(f"header.{name}", getattr(header, name), kind)
    _check_layers(header.layers)
    _check_sampling(header)
    for name in ("data_parallel", "tensor_parallel", "pipeline_parallel", "expert_parallel"):
        _check_integer(f"header.ranks.{name}", getattr(header.ranks, name), -1, _INT32_MAX)
    for name in ("ring_rows", "log_batches", "log_rows", "rejected_rows", "unseen_rows"):
        _check_integer(f"header.drops.{name}", getattr(header.drops, name), 0, _INT64_MAX)
    if len(header.labels) > MAX_LABELS:
        raise BatchError(f"header.labels has {len(header.labels)} entries, over {MAX_LABELS}")
    for key, value in header.labels.items():
        _check_name("header.labels (key)", key)
        _check_name("header.labels (value)", value)
    if header.placement is not None:
        _check_placement(header.placement, (len(header.layers), header.experts))


_NAMED = frozenset({"node", "model"})
_HEADER_INTEGERS = {
    "incarnation": _UINT64_MAX,
    "sequence": _INT64_MAX,
    "expert_map_version": _INT64_MAX,
}
_HEADER_ENUMS: dict[str, type[IntEnum]] = {
    "origin": Origin,
    "id_space": IdSpace,
    "score_kind": ScoreKind,
    "rank_order": RankOrder,
    "fidelity": Fidelity,
    "token_id_kind": TokenIdKind,
}


def _check_placement(placement: Placement, shape: tuple[int, int]) -> None:
    _check_integer("header.placement.version", placement.version, 0, _INT64_MAX)
    _check_integer("header.placement.ranks", placement.ranks, 1, SEVERAL_RANKS)
    rank_of = placement.rank_of
    _check_array("header.placement.rank_of", rank_of, np.uint16, shape)
    if np.any((rank_of >= placement.ranks) & (rank_of != SEVERAL_RANKS)):
        raise BatchError(f"header.placement.rank_of has a rank that is not below {placement.ranks}")


def _check_layers(layers: NDArray[np.uint16]) -> None:
    _check_array("header.layers", layers, np.uint16, (None,))
    if len(layers) > MAX_LAYERS:
        raise BatchError(f"header.layers has {len(layers)} entries, over {MAX_LAYERS}")
    if np.any(layers[1:] <= layers[:-1]):
        raise BatchError("header.layers is not strictly ascending")


def _check_sampling(header: BatchHeader) -> None:
    ratio = header.sampling_ratio
    if not isinstance(ratio, (float, int)) or not 0.0 < ratio <= 1.0:
        raise BatchError(f"header.sampling_ratio is {ratio!r}, not in (0, 1]")
    if header.fidelity is not Fidelity.SAMPLED and ratio != 1.0:
        raise BatchError(
            f"header.sampling_ratio is {ratio} although fidelity is {header.fidelity.name}",
            next_step="Set Fidelity.SAMPLED, or a ratio of 1.",
        )


def _check_parts(batch: RoutingBatch) -> None:
    if (batch.tokens is None) != (batch.routes is None):
        raise BatchError("A batch has tokens and routes together, or neither")
    has_blocks = batch.token_blocks is not None or batch.time_blocks is not None
    is_counts = batch.header.fidelity is Fidelity.COUNTS
    if batch.tokens is not None and is_counts:
        raise BatchError("A batch of counts fidelity carries blocks, not tokens")
    if has_blocks and not is_counts:
        raise BatchError(f"A batch of {batch.header.fidelity.name} fidelity carries no blocks")
    if not batch.is_heartbeat and len(batch.header.layers) == 0:
        raise BatchError("header.layers is empty although the batch is not a heartbeat")


def _check_requests(requests: Requests) -> None:
    count = len(requests.ids)
    if count > MAX_TOKENS:
        raise BatchError(f"{count} requests, over {MAX_TOKENS}")
    for name in ("ids", "tasks", "scenes"):
        column = getattr(requests, name)
        if not isinstance(column, tuple) or len(column) != count:
            raise BatchError(f"requests.{name} is not a tuple of {count} strings")
        _check_names(f"requests.{name}", column)
    _check_array("requests.phase_starts", requests.phase_starts, np.int32, (count, len(Phase)))
    _check_at_least("requests.phase_starts", requests.phase_starts, -1)
    _check_array("requests.cached_tokens", requests.cached_tokens, np.int32, (count,))
    _check_at_least("requests.cached_tokens", requests.cached_tokens, 0)


def _check_tokens(tokens: Tokens, header: BatchHeader, requests: int) -> None:
    count = len(tokens.request)
    if not 1 <= count <= MAX_TOKENS:
        raise BatchError(
            f"A batch has {count} tokens, not 1 to {MAX_TOKENS}",
            next_step="A batch without tokens is a heartbeat: tokens=None and routes=None.",
        )
    _check_index("tokens.request", tokens.request, np.int32, count, requests)
    _check_array("tokens.position", tokens.position, np.int32, (count,))
    _check_at_least("tokens.position", tokens.position, 0)
    _check_phase_and_flags("tokens", tokens.phase, tokens.flags, count)
    for name, dtype in _TOKEN_OPTIONS.items():
        column = getattr(tokens, name)
        if column is not None:
            _check_array(f"tokens.{name}", column, dtype, (count,))
    if tokens.token_id is not None and header.token_id_kind is TokenIdKind.OFF:
        raise BatchError("tokens.token_id is set although header.token_id_kind is OFF")


_TOKEN_OPTIONS: dict[str, type[np.generic]] = {
    "event_time_us": np.int64,
    "pass_id": np.int64,
    "step": np.int64,
    "token_id": np.uint64,
    "content_key": np.uint64,
    "block": np.int32,
}


def _check_routes(routes: Routes, header: BatchHeader, tokens: int) -> None:
    layers, k = len(header.layers), header.top_k
    if tokens * layers * k > MAX_ASSIGNMENTS:
        raise BatchError(f"{tokens} × {layers} × {k} assignments, over {MAX_ASSIGNMENTS}")
    planes = (k, layers, tokens)
    _check_dtypes("routes.gaps", routes.gaps, (np.uint8, np.uint16))
    _check_shape("routes.gaps", routes.gaps, planes)
    _check_permutations(routes.relabelling, layers, header.experts)
    if routes.largest_rank > np.iinfo(routes.gaps.dtype).max:
        raise BatchError(f"routes.gaps: a row's gaps add up to over {routes.gaps.dtype}'s range")
    _check_top1(routes.top1, header, (layers, tokens))
    for name, shape in (("weights", planes), ("entropy", planes[1:]), ("margin", planes[1:])):
        quantised = getattr(routes, name)
        if quantised is not None:
            _check_quantised(f"routes.{name}", quantised, shape)
    if routes.dropped is not None:
        _check_array("routes.dropped", routes.dropped, np.bool_, planes)


def _check_top1(
    top1: NDArray[np.uint8] | None, header: BatchHeader, shape: tuple[int, int]
) -> None:
    if top1 is None:
        return
    if header.rank_order is RankOrder.UNKNOWN:
        raise BatchError("routes.top1 is set although header.rank_order is UNKNOWN")
    _check_array("routes.top1", top1, np.uint8, shape)
    if int(top1.max()) >= header.top_k:
        raise BatchError(f"routes.top1 has an index ≥ top_k = {header.top_k}")


def _check_permutations(relabelling: NDArray[np.uint16], layers: int, experts: int) -> None:
    _check_array("routes.relabelling", relabelling, np.uint16, (layers, experts))
    if int(relabelling.max()) < experts and _all_distinct(relabelling):
        return
    raise BatchError(f"routes.relabelling: a row is no permutation of 0 … {experts - 1}")


def _all_distinct(rows: NDArray[np.uint16]) -> bool:
    """Whether no row repeats a value; every value is below the length of a row."""
    experts = rows.shape[1]
    step = max(1, _CELLS_AT_A_TIME // experts)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        seen = np.zeros(some.shape, np.bool_)
        seen[np.arange(len(some))[:, None], some] = True
        if not seen.all():
            return False
    return True


def _check_quantised(name: str, quantised: Quantised, shape: tuple[int, ...]) -> None:
    dtype = _CODE_DTYPES.get(quantised.bits)
    if dtype is None:
        raise BatchError(f"{name}.bits is {quantised.bits!r}, not 4, 8 or 16")
    _check_array(f"{name}.codes", quantised.codes, dtype, shape)
    if quantised.bits == 4 and int(quantised.codes.max()) >= _UNPACKED_4_BIT_CODES:  # noqa: PLR2004 - a width in bits
        raise BatchError(f"{name}.codes has a code over 15 although bits is 4")


def _check_token_blocks(blocks: TokenBlocks, header: BatchHeader, requests: int) -> None:
    count = len(blocks.request)
    _check_index("token_blocks.request", blocks.request, np.int32, count, requests)
    _check_phase_and_flags("token_blocks", blocks.phase, blocks.flags, count)
    _check_array("token_blocks.start_position", blocks.start_position, np.int32, (count,))
    _check_at_least("token_blocks.start_position", blocks.start_position, 0)
    _check_array("token_blocks.tokens", blocks.tokens, np.int32, (count,))
    _check_at_least("token_blocks.tokens", blocks.tokens, 0)
    for name in ("first_time_us", "last_time_us", "step"):
        column = getattr(blocks, name)
        if column is not None:
            _check_array(f"token_blocks.{name}", column, np.int64, (count,))
    _check_counts("token_blocks", blocks.counts, blocks.dropped, header, count)


def _check_time_blocks(blocks: TimeBlocks, header: BatchHeader) -> None:
    count = len(blocks.second_us)
    _check_array("time_blocks.second_us", blocks.second_us, np.int64, (count,))
    _check_array("time_blocks.phase", blocks.phase, np.uint8, (count,))
    _check_phases("time_blocks.phase", blocks.phase)
    if not isinstance(blocks.scenes, tuple) or len(blocks.scenes) > MAX_TOKENS:
        raise BatchError(f"time_blocks.scenes is not a tuple of up to {MAX_TOKENS} strings")
    _check_names("time_blocks.scenes", blocks.scenes)
    _check_index("time_blocks.scene", blocks.scene, np.uint16, count, len(blocks.scenes))
    _check_array("time_blocks.tokens", blocks.tokens, np.int64, (count,))
    _check_at_least("time_blocks.tokens", blocks.tokens, 0)
    _check_array("time_blocks.requests", blocks.requests, np.int32, (count,))
    _check_at_least("time_blocks.requests", blocks.requests, 0)
    _check_counts("time_blocks", blocks.counts, blocks.dropped, header, count)


def _check_counts(
    owner: str,
    counts: NDArray[np.uint32],
    dropped: NDArray[np.uint32] | None,
    header: BatchHeader,
    blocks: int,
) -> None:
    layers = len(header.layers)
    if not 1 <= blocks <= MAX_TOKENS:
        raise BatchError(f"{owner} has {blocks} rows, not 1 to {MAX_TOKENS}")
    if blocks * layers * header.experts > MAX_ASSIGNMENTS:
        raise BatchError(f"{owner}.counts has over {MAX_ASSIGNMENTS} cells")
    _check_array(f"{owner}.counts", counts, np.uint32, (blocks, layers, header.experts))
    if dropped is not None:
        _check_array(f"{owner}.dropped", dropped, np.uint32, (blocks, layers))


def _check_phase_and_flags(
    owner: str, phase: NDArray[np.uint8], flags: NDArray[np.uint8], count: int
) -> None:
    _check_array(f"{owner}.phase", phase, np.uint8, (count,))
    _check_phases(f"{owner}.phase", phase)
    _check_array(f"{owner}.flags", flags, np.uint8, (count,))
    if flags.size and int(np.bitwise_or.reduce(flags)) & ~_ALL_FLAGS:
        raise BatchError(f"{owner}.flags has a bit that is no RowFlag")


def _check_phases(name: str, phase: NDArray[np.uint8]) -> None:
    if phase.size and int(phase.max()) >= len(Phase):
        raise BatchError(f"{name} has a value that is no Phase: {int(phase.max())}")


def _check_index(
    name: str, index: NDArray[Any], dtype: type[np.generic], count: int, size: int
) -> None:
    _check_array(name, index, dtype, (count,))
    _check_at_least(name, index, 0)
    if index.size and int(index.max()) >= size:
        raise BatchError(f"{name} has index {int(index.max())}, but there are only {size}")


def _check_at_least(name: str, column: NDArray[Any], smallest: int) -> None:
    if column.size and int(column.min()) < smallest:
        raise BatchError(f"{name} has the value {int(column.min())}, below {smallest}")


def _check_array(
    name: str, array: NDArray[Any], dtype: type[np.generic], shape: tuple[int | None, ...]
) -> None:
    _check_dtypes(name, array, (dtype,))
    _check_shape(name, array, shape)


def _check_dtypes(name: str, array: NDArray[Any], dtypes: Sequence[type[np.generic]]) -> None:
    is_array = isinstance(array, np.ndarray)
    if is_array and array.dtype.type in dtypes and array.dtype.isnative:
        return
    wanted = " or ".join(np.dtype(dtype).name for dtype in dtypes)
    if not is_array:
        raise BatchError(f"{name} is a {type(array).__name__}, not a numpy array of {wanted}")
    raise BatchError(f"{name} is {array.dtype}, not {wanted}")


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int | None, ...]) -> None:
    if array.shape == shape:
        return
    same = len(array.shape) == len(shape) and all(
        wanted is None or size == wanted for size, wanted in zip(array.shape, shape, strict=True)
    )
    if not same:
        raise BatchError(f"{name} has shape {array.shape}, not {shape}")


def _check_integer(name: str, value: int, smallest: int, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise BatchError(f"{name} is {value!r}, not an integer from {smallest} to {largest}")


def _check_member(name: str, value: IntEnum, kind: type[IntEnum]) -> None:
    if not isinstance(value, kind):
        raise BatchError(f"{name} is {value!r}, not a {kind.__name__}")


def _check_names(name: str, values: tuple[str, ...]) -> None:
    for value in set(values):
        _check_name(name, value)


def _check_name(name: str, value: str, *, empty_allowed: bool = True) -> None:
    if not isinstance(value, str):
        raise BatchError(f"{name} is {value!r}, not a string")
    if not value and not empty_allowed:
        raise BatchError(f"{name} is empty")
    try:
        length = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise BatchError(f"{name} is no valid Unicode text: {value!r}") from None
    if length > MAX_NAME_BYTES:
        raise BatchError(f"{name} has {length} bytes in UTF-8, over {MAX_NAME_BYTES}")
