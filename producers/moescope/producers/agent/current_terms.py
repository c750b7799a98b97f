"""What holds for a batch: the producer's profile, and what its ring has said since."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from moescope.core.vocabulary import Fidelity
from moescope.producers.ring.errors import RingFormatError
from moescope.producers.terms import Terms, unpack_placement

if TYPE_CHECKING:
    from moescope.core.batch import Placement
    from moescope.producers.profile import Profile

PLACEMENT_EVERY_SECONDS: Final = 60.0
"""A processor that starts anew, or lost a batch, knows the placement again after that time."""


class BatchTerms(NamedTuple):
    """What holds for all rows of a batch."""

    profile: Profile
    placement: Placement | None

    @property
    def is_counts(self) -> bool:
        """Whether counts are shipped in place of rows."""
        return self.profile.fidelity is Fidelity.COUNTS


class CurrentTerms:
    """Reads the terms of one ring, and knows when its placement has to be told again.

    Args:
        profile: What the ring's recorder started with.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._raw = b""
        self._terms = BatchTerms(profile, None)
        self._told: Placement | None = None
        self._told_at = 0.0

    def read(self, raw: bytes) -> BatchTerms:
        """The terms that a frame came under.

        Raises:
            RingFormatError: A recorder of another release wrote what this one cannot read.
        """
        if raw != self._raw:
            try:
                self._terms = self._unpacked(raw)
            except ValueError as error:
                raise RingFormatError(
                    "What a ring says about its rows cannot be read.",
                    why=str(error),
                    next_step="Run an agent of the same release as the recorder.",
                ) from error
            self._raw = raw
        return self._terms

    def _unpacked(self, raw: bytes) -> BatchTerms:
        if not raw:
            return BatchTerms(self._profile, None)
        terms = Terms.from_bytes(raw)
        shape = self._profile.shape
        placement = None
        if terms.placement:
            placement = unpack_placement(terms.placement, shape.layers, shape.experts)
        return BatchTerms(terms.applied_to(self._profile), placement)

    def placement_due(self, terms: BatchTerms, now: float) -> Placement | None:
        """The placement, if a batch made now has to carry it; `now` is the monotonic clock."""
        placement = terms.placement
        if placement is self._told and now - self._told_at < PLACEMENT_EVERY_SECONDS:
            return None
        return placement

    def told(self, placement: Placement | None, now: float) -> None:
        """Remember what a batch carried."""
        if placement is not None:
            self._told, self._told_at = placement, now


def with_label(terms: BatchTerms, name: str, value: str) -> BatchTerms:
    """The terms of a batch that says one thing more."""
    profile = terms.profile
    return terms._replace(profile=replace(profile, labels=profile.labels | {name: value}))
