"""Give the rows of a pass to the recorder: which are wanted, whose they are, in which phase."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.core.vocabulary import Phase
from moescope.producers.torch_probe.content import ContentOfBatch
from moescope.producers.torch_probe.inputs import RefusedPassError
from moescope.producers.torch_probe.placing import tokens_before_end
from moescope.producers.torch_probe.requests import NO_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from moescope.producers.torch_probe.passes import ComputedPass, HostRows
    from moescope.producers.torch_probe.requests import RoutingSink, RunningBatch
    from moescope.producers.torch_probe.tower import Endings

_INVALID: Final = "invalid scores, weights or experts"
_NO_TOKENS: Final = np.empty(0, np.int64)
_DOUBTFUL: Final = "rows behind a doubtful end token"
_UNKNOWN: Final = "rows that may be padding behind an end that passed unseen"


class Attributed(NamedTuple):
    """What became of a pass's rows."""

    passed: int
    padding: int
    invalid: int
    doubtful: int


class Attribution:
    """Gives rows to one recorder.

    Args:
        sink: The recorder.
        experts: E.
        endings: How generations of the model end.
        token_ids: Makes of token ids what is recorded of them; None when nothing is.
        content_key: The secret of content keys; None when none are recorded.
    """

    def __init__(
        self,
        sink: RoutingSink,
        experts: int,
        endings: Endings,
        token_ids: Callable[[NDArray[np.int64]], NDArray[Any]] | None = None,
        content_key: bytes | None = None,
    ) -> None:
        self._sink = sink
        self._experts = experts
        self._endings = endings
        self._token_ids = token_ids
        self._content_key = content_key

    @property
    def wants_tokens(self) -> bool:
        """Whether a pass's tokens have to come to the host."""
        is_recorded = self._token_ids is not None or self._content_key is not None
        return is_recorded or bool(self._endings.tokens.size)

    def record(self, done: ComputedPass, rows: HostRows) -> Attributed:
        """Record a pass's rows.

        Raises:
            RefusedPassError: They cannot be told apart for certain; nothing was recorded.
        """
        running, placed = done.running, rows.placed
        if done.is_step and running.is_decoding:
            phase: Phase | NDArray[np.uint8] = Phase.DECODE
            wanted = self._before_end(running, rows, is_decoded=True)
            running.following += np.count_nonzero(placed.is_token, axis=1)
            running.columns = rows.columns
        else:
            is_decoded = placed.position >= running.begin(self._sink, placed)[:, None]
            running.check_order(placed, is_decoded)
            self._see_missed_ends(running, rows)
            wanted = self._before_end(running, rows, is_decoded=is_decoded)
            running.advance(placed, rows.columns)
            phase = _phase(is_decoded, wanted) if running.phase is None else running.phase
        content = self._content(running, rows)
        is_valid = _valid(rows, self._experts)
        doubtful = self._doubtful(running, placed.is_token, wanted)
        known = self._known_to_go_on(running, rows, wanted)
        unknown = int(np.count_nonzero(wanted)) - int(np.count_nonzero(known))
        if unknown:
            self._sink.miss(unknown, _UNKNOWN)
            wanted, doubtful = known, doubtful + unknown
        kept = wanted if is_valid is None else wanted & is_valid.reshape(wanted.shape)
        size, passed = wanted.size, int(np.count_nonzero(kept))
        tokens = passed if is_valid is None else int(np.count_nonzero(wanted))
        if passed < tokens:
            self._sink.miss(tokens - passed, _INVALID)
        if passed == size:
            self._give(done, rows, None, phase, content)
        elif passed:
            self._give(done, rows, kept, phase, content)
        return Attributed(passed, size - tokens - doubtful, tokens - passed, doubtful)

    def _content(self, running: RunningBatch, rows: HostRows) -> NDArray[np.uint64] | None:
        if self._content_key is None:
            return None
        if running.content is None:
            running.content = ContentOfBatch(len(running.ids), self._content_key)
        return running.content.keys(rows.placed, rows.tokens)

    def _ends(self, running: RunningBatch) -> NDArray[np.int64]:
        """Token ids behind which a row of this batch is fed what is no token of it."""
        if running.phase is not None:
            return _NO_TOKENS
        if running.end_tokens is not None:
            return running.end_tokens
        # Of one row alone a `generate` ends where its last pass does.
        return self._endings.tokens if len(running.ids) > 1 else _NO_TOKENS

    def _see_missed_ends(self, running: RunningBatch, rows: HostRows) -> None:
        """Whose end token passed while nothing was recorded: what such a row is fed may tell.

        Raises:
            RefusedPassError: Nothing tells.
        """
        if not self._ends(running).size or rows.tokens is None:
            return
        if not (running.columns or running.has_missed):
            return  # a block that begins amid a generation: whose rows they are is said anew
        is_open = running.has_gap(rows.placed) & ~running.has_ended
        if not is_open.any():
            return
        if running.end_tokens is None:
            first = rows.placed.is_token.argmax(axis=1)
            fed = rows.tokens[np.arange(len(first)), first]
            is_padding = np.isin(fed, self._endings.following)
            running.has_ended |= is_open & is_padding
            # `generate` may have been given padding of its own: it is fed that again and again.
            running.fed_since_gap = np.where(is_open & ~is_padding, fed, running.fed_since_gap)
        else:
            raise RefusedPassError(
                "an end token may have passed unseen",
                "steps before were not recorded, and behind end_tokens a row is fed anything",
            )

    def _before_end(
        self, running: RunningBatch, rows: HostRows, *, is_decoded: NDArray[np.bool_] | bool
    ) -> NDArray[np.bool_]:
        is_token = rows.placed.is_token
        ends = self._ends(running)
        if not ends.size:
            return is_token
        if rows.tokens is None:
            if running.end_tokens is not None and (is_decoded & is_token).any():
                raise RefusedPassError(
                    "end_tokens without token ids", "generated tokens were given as embeddings"
                )
            return is_token
        had_ended = running.has_ended.copy()
        before_end = tokens_before_end(rows.tokens, is_decoded & is_token, ends, running.has_ended)
        if running.end_tokens is None and running.has_ended.any():
            may_follow = np.isin(rows.tokens, self._endings.following) | ~is_token
            is_behind = np.column_stack([had_ended, ~before_end[:, :-1]])
            running.is_doubtful |= (is_behind & ~may_follow).any(axis=1)
        return is_token & before_end

    def _known_to_go_on(
        self, running: RunningBatch, rows: HostRows, wanted: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Wanted rows without those that may be padding behind an end that nobody saw."""
        fed = running.fed_since_gap[:, None]
        if rows.tokens is None or not (fed != NO_TOKEN).any():
            return wanted
        is_same = np.logical_and.accumulate((rows.tokens == fed) | ~wanted, axis=1)
        is_open = is_same & (fed != NO_TOKEN)
        running.fed_since_gap = np.where(is_open[:, -1], fed[:, 0], NO_TOKEN)
        known: NDArray[np.bool_] = wanted & ~is_open
        return known

    def _doubtful(
        self, running: RunningBatch, is_token: NDArray[np.bool_], wanted: NDArray[np.bool_]
    ) -> int:
        """Rows that may be tokens behind an end that was none: of this pass, and of those before.

        A generation with an end token, or padding, of its own goes on in a way that cannot be told
        from what the model's own would be.
        """
        if not running.has_ended.any():
            return 0
        left_out = np.count_nonzero(is_token & ~wanted, axis=1)
        earlier = int(running.behind_end[running.is_doubtful].sum())
        running.behind_end = np.where(running.is_doubtful, 0, running.behind_end + left_out)
        doubtful = int(left_out[running.is_doubtful].sum())
        if earlier + doubtful:
            self._sink.miss(earlier + doubtful, _DOUBTFUL)
        return earlier + doubtful

    def _give(
        self,
        done: ComputedPass,
        rows: HostRows,
        kept: NDArray[np.bool_] | None,
        phase: Phase | NDArray[np.uint8],
        content: NDArray[np.uint64] | None,
    ) -> None:
        """Record all rows, or the kept ones of [B, S]."""
        running, position = done.running, rows.placed.position
        token_ids = None
        if self._token_ids is not None and rows.tokens is not None:
            token_ids = self._token_ids(rows.tokens.reshape(-1))
        columns: tuple[Any, ...] = (
            position.reshape(-1), rows.expert_ids, rows.weights, rows.entropy, rows.margin,
            rows.dropped, token_ids, phase if isinstance(phase, np.ndarray) else None,
            None if content is None else content.reshape(-1),
        )  # fmt: skip
        if kept is not None:
            flat = kept.reshape(-1)
            columns = tuple(None if column is None else column[flat] for column in columns)
        positions, expert_ids, weights, entropy, margin, dropped, token_ids, phases, keys = columns
        names, counts = _whose(running, position.shape[1], kept)
        self._sink.record(
            names,
            positions,
            expert_ids,
            phase if phases is None else phases,
            weights=weights,
            entropy=entropy,
            margin=margin,
            dropped=dropped,
            pass_id=done.pass_id if kept is None else _kept(done.pass_id, kept),
            step=running.step,
            token_ids=token_ids,
            content_keys=keys,
            rows_per_request=counts,
        )


def _kept(pass_id: int | NDArray[np.int64], kept: NDArray[np.bool_]) -> int | NDArray[np.int64]:
    return pass_id if isinstance(pass_id, int) else pass_id[kept.reshape(-1)]


def _valid(rows: HostRows, experts: int) -> NDArray[np.bool_] | None:
    """Bool [B * S], which rows a router can have meant; None when it is all of them."""
    ids = rows.expert_ids
    is_valid: NDArray[np.bool_] | None = None
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < experts:
        is_valid = _all_of_row((ids >= 0) & (ids < experts))
    for column in (rows.weights, rows.entropy, rows.margin):
        # One sum tells, where all numbers are finite: infinities and NaN never add up to one.
        if column is not None and not isfinite(column.sum(dtype=np.float64)):
            is_finite = _all_of_row(np.isfinite(column))
            is_valid = is_finite if is_valid is None else is_valid & is_finite
    return is_valid


def _all_of_row(is_good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    good: NDArray[np.bool_] = np.logical_and.reduce(is_good, axis=tuple(range(1, is_good.ndim)))
    return good


def _phase(is_decoded: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> Phase | NDArray[np.uint8]:
    """One phase for all wanted rows, or one per row, [B * S]."""
    if not (is_decoded & wanted).any():
        return Phase.PREFILL
    if (is_decoded | ~wanted).all():
        return Phase.DECODE
    return np.where(is_decoded, np.uint8(Phase.DECODE), np.uint8(Phase.PREFILL)).reshape(-1)


def _whose(
    running: RunningBatch, length: int, kept: NDArray[np.bool_] | None
) -> tuple[str | list[str], list[int] | None]:
    """Request ids, and rows of each where they are not one or all."""
    if len(running.ids) == 1:
        return running.ids[0], None
    if length == 1:
        return running.ids if kept is None else running.ids_where(kept[:, 0]), None
    if kept is None:
        return running.ids, [length] * len(running.ids)
    return running.ids, np.count_nonzero(kept, axis=1).tolist()
