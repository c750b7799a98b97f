"""What the recorder is given of a pass, or of several that waited for each other."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from moescope.core.vocabulary import Fidelity
from moescope.producers.vllm_plugin.step import (
    UnknownLayoutError,
    is_blank,
    put_heaviest_first,
    row_phases,
    rows_of_numbers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from moescope.producers.recorder import Recorder
    from moescope.producers.vllm_plugin.content import ContentKeys, EngineContent
    from moescope.producers.vllm_plugin.experts import ExpertMap
    from moescope.producers.vllm_plugin.held import HeldPasses
    from moescope.producers.vllm_plugin.host import HostRows
    from moescope.producers.vllm_plugin.seen import SeenPass

NOT_NUMBERS: Final = "a token's routing weights are not numbers"
BEGAN_UNSEEN: Final = "a request that began unseen"


class _Given(NamedTuple):
    """Rows for the recorder, [T]."""

    positions: NDArray[Any]
    ids: NDArray[Any]
    phases: NDArray[np.uint8]
    weights: NDArray[Any] | None
    tokens: NDArray[Any] | None


class RowsToRecord:
    """Gives the rows of passes to a recorder.

    Args:
        recorder: Which.
        with_weights: Whether weights are recorded.
        hash_tokens: What token ids go through; None where they are recorded as they are, or not
            at all.
        content: Makes content keys; None where none are recorded.
        miss_content: Called where none can be made of a pass.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        with_weights: bool,
        hash_tokens: Callable[[NDArray[Any]], NDArray[Any]] | None,
        content: EngineContent | None,
        miss_content: Callable[[], None],
    ) -> None:
        self._recorder = recorder
        self._with_weights = with_weights
        self._hash_tokens = hash_tokens
        self._content = content
        self._miss_content = miss_content
        self._told: ExpertMap | None = None

    @property
    def needs_weights(self) -> bool:
        """Whether weights are recorded, or tell which expert is first: counts have no order."""
        return self._recorder.fidelity is not Fidelity.COUNTS

    def record(
        self, seen: SeenPass, rows: HostRows, accepted: NDArray[np.int64]
    ) -> tuple[int, list[tuple[int, str]]]:
        """Record one pass.

        Args:
            seen: The pass.
            rows: Its rows.
            accepted: int64 [R], how many of its draft tokens became the request's own.

        Returns:
            How many rows were given to the recorder; how many were left out, and why.

        Raises:
            UnknownLayoutError: None can be recorded.
        """
        began = perf_counter()
        step = seen.step
        self._check(seen)
        ids, weights, tokens = rows.ids, rows.weights, rows.token_ids
        positions = step.row_positions() if rows.positions is None else rows.positions
        phases = step.row_phases(positions, seen.requests.prompt_tokens, accepted)
        counts = step.counts
        content = self._content_of(seen, positions, tokens, accepted)
        kept, unknown_rows = _rows_to_record(seen, weights)
        if kept is not None:
            ids, weights, positions, phases = (
                ids[kept],
                weights[kept],
                positions[kept],
                phases[kept],
            )
            tokens, counts = None if tokens is None else tokens[kept], step.counts_of(kept)
            content = None if content is None else content.of_rows(kept)
        if is_blank(ids):
            raise UnknownLayoutError("a layer's ids are all the same number")
        ids = np.ascontiguousarray(ids)
        if self.needs_weights:
            weights = np.ascontiguousarray(weights)
            put_heaviest_first(ids, weights)
        tokens = self._hashed(tokens)
        is_one_row_each = step.rows == len(counts) == len(ids) and bool((phases == phases[0]).all())
        self._recorder.spend(perf_counter() - began)
        if content is not None and content.has_keys is not None:
            given = _Given(positions, ids, phases, weights if self._with_weights else None, tokens)
            self._give_apart(seen, counts, content, given)
        elif len(ids):
            self._recorder.record(
                seen.requests.names,
                positions,
                ids,
                int(phases[0]) if is_one_row_each else phases,
                weights=weights if self._with_weights else None,
                pass_id=seen.number,
                token_ids=tokens,
                content_keys=None if content is None else content.keys,
                rows_per_request=None if is_one_row_each else counts,
            )
        if kept is None:
            return len(ids), []
        broken_rows = step.rows - len(ids) - unknown_rows
        return len(ids), [(unknown_rows, BEGAN_UNSEEN), (broken_rows, NOT_NUMBERS)]

    def record_together(self, held: HeldPasses) -> int:
        """Record passes that waited for each other, and of which no row has to be left out.

        Args:
            held: They; see `HeldPasses.are_sound`.

        Returns:
            How many rows were given to the recorder.

        Raises:
            UnknownLayoutError: None can be recorded.
        """
        began = perf_counter()
        first = held.passes[0]
        self._check(first)
        joint = held.joint()
        if self.needs_weights and joint.weights is not None:
            put_heaviest_first(joint.ids, joint.weights)
        phases = row_phases(
            joint.positions, np.repeat(first.requests.prompt_tokens, joint.rows_per_request)
        )
        is_one_phase = bool((phases == phases[0]).all())
        tokens = self._hashed(joint.token_ids)
        self._recorder.spend(perf_counter() - began)
        self._recorder.record(
            first.requests.names,
            joint.positions,
            joint.ids,
            int(phases[0]) if is_one_phase else phases,
            weights=joint.weights if self._with_weights else None,
            pass_id=joint.numbers,
            token_ids=tokens,
            rows_per_request=joint.rows_per_request,
        )
        return len(joint.ids)

    def _check(self, seen: SeenPass) -> None:
        """Let the rows that follow be of the placement of experts that a pass had.

        Raises:
            UnknownLayoutError: They cannot be recorded.
        """
        self._recorder.look()
        if self.needs_weights and not seen.has_weights:
            raise UnknownLayoutError("fidelity rose during the pass")
        experts = seen.experts
        if experts is self._told:
            return
        if experts is not None and self._recorder.set_placement(
            experts.rank_of, experts.version, ranks=experts.ranks
        ):
            self._told = experts
        elif self._told is not None:  # the rows would be taken for those of another placement
            raise UnknownLayoutError("the placement of experts could not be told")

    def _hashed(self, tokens: NDArray[Any] | None) -> NDArray[Any] | None:
        if tokens is None or self._hash_tokens is None:
            return tokens
        return self._hash_tokens(tokens)

    def _content_of(
        self,
        seen: SeenPass,
        positions: NDArray[Any],
        tokens: NDArray[Any] | None,
        accepted: NDArray[np.int64],
    ) -> ContentKeys | None:
        """Content keys of a pass's rows; None where none has any, or none would be shipped."""
        if self._content is None:
            return None
        if tokens is None or not self.needs_weights:
            self._miss_content()
            return None
        return self._content.keys(
            seen.number,
            seen.step,
            seen.requests.requests,
            positions=positions,
            token_ids=tokens,
            accepted=accepted,
        )

    def _give_apart(
        self,
        seen: SeenPass,
        counts: NDArray[np.int64],
        content: ContentKeys,
        given: _Given,
    ) -> None:
        """Record the rows that have a content key, and those that have none.

        Args:
            seen: The pass.
            counts: int64 [R], rows of each request.
            content: Keys of the rows [T].
            given: The rows.
        """
        for has_keys in (True, False):
            of_part = content.has_keys == has_keys
            part = np.repeat(of_part, counts)
            if not part.any():
                continue
            self._recorder.record(
                seen.requests.names,
                given.positions[part],
                given.ids[part],
                given.phases[part],
                weights=None if given.weights is None else given.weights[part],
                pass_id=seen.number,
                token_ids=None if given.tokens is None else given.tokens[part],
                content_keys=content.keys[part] if has_keys else None,
                rows_per_request=np.where(of_part, counts, 0),
            )


def _rows_to_record(seen: SeenPass, weights: NDArray[Any]) -> tuple[NDArray[np.bool_] | None, int]:
    """Which rows of a pass can be recorded.

    Returns:
        Booleans [T], None where all can; and how many rows are of requests that began unseen.
    """
    kept = rows_of_numbers(weights) if seen.has_weights else None
    if seen.requests.are_known is None:
        return kept, 0
    known = np.repeat(seen.requests.are_known, seen.step.counts)
    return known if kept is None else known & kept, len(known) - int(known.sum())
