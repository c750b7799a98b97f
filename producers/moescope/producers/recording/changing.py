"""What changes while a recorder runs: its terms, told to the ring before the rows they hold for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moescope.core.errors import SettingsError
from moescope.core.printable import printable
from moescope.core.vocabulary import Fidelity
from moescope.producers.recording.description import checked_placement, checked_profile, member
from moescope.producers.terms import FIDELITY_REASON, Terms, pack_placement

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from moescope.producers.profile import Profile
    from moescope.producers.recording.sampling import Sampling
    from moescope.producers.ring.layout import Geometry
    from moescope.producers.ring.writer import RingWriter

LOCK_TIMEOUT_SECONDS: Final = 0.05

_LONGEST_REASON: Final = 100


class ChangingTerms:
    """The terms that hold, and the way to others.

    Args:
        profile: What the recorder started with.
        sampling: Follows the terms.
        geometry: Of the ring.
        lock: Guards ring and sampling.

    Attributes:
        ring: Where terms are told; None before it is made and for ever where nothing is recorded.
        now: The terms that hold.
        profile: The profile while they hold.
        is_counts: Whether counts are shipped in place of rows.
    """

    def __init__(
        self, profile: Profile, sampling: Sampling, geometry: Geometry, lock: threading.Lock
    ) -> None:
        self._first_profile = profile
        self._sampling = sampling
        self._geometry = geometry
        self._lock = lock
        self.ring: RingWriter | None = None
        self._hold(Terms.of(profile))

    def start(self, profile: Profile, ring: RingWriter) -> None:
        """Take the ring that was made, and the profile that is in it."""
        self._first_profile = self.profile = profile
        self.ring = ring

    def set_fidelity(self, fidelity: Fidelity | str, sampling_ratio: float, reason: str) -> bool:
        """Change the fidelity from the next row on; False if the ring was busy or is gone.

        Raises:
            SettingsError: There is no such fidelity, or the ratio does not fit it.
        """
        wanted_fidelity = member(Fidelity, fidelity)

        def changed(now: Terms) -> Terms:
            wanted = replace(now, fidelity=wanted_fidelity, sampling_ratio=sampling_ratio)
            wanted = wanted.with_label(FIDELITY_REASON, reason)
            checked_profile(wanted.applied_to(self._first_profile))
            return wanted

        return self._change(changed)

    def set_placement(self, rank_of_expert: ArrayLike, version: int, ranks: int | None) -> bool:
        """Change the placement from the next row on; False if the ring was busy or is gone.

        Raises:
            SettingsError: It is none of this model, its version was given to another one or is an
                older one, or the ring is too small for it.
        """
        placement = checked_placement(self._first_profile, rank_of_expert, version, ranks)
        packed = pack_placement(placement)

        def changed(now: Terms) -> Terms:
            _check_version(now, version, packed)
            wanted = replace(now, expert_map_version=version, placement=packed)
            checked_profile(wanted.applied_to(self._first_profile))
            length, most = len(wanted.to_bytes()), self._geometry.max_terms_bytes
            if length > most:
                raise SettingsError(
                    f"The placement takes {length} bytes in each segment of the ring.",
                    why=f"There is room for {most}.",
                    next_step="Set a larger ring_bytes.",
                )
            return wanted

        return self._change(changed)

    def _change(self, changed: Callable[[Terms], Terms]) -> bool:
        """Let other terms hold from the next row on; False if the ring was busy or is gone.

        Args:
            changed: Makes them of the terms that hold; may raise.
        """
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            return False
        try:
            ring = self.ring
            if ring is None:
                return False
            terms = changed(self.now)
            if terms != self.now:
                ring.change_terms(terms.to_bytes())
                self._hold(terms)
            return True
        finally:
            self._lock.release()

    def _hold(self, terms: Terms) -> None:
        self.now = terms
        self.profile = terms.applied_to(self._first_profile)
        self.is_counts = terms.fidelity is Fidelity.COUNTS
        self._sampling.change(terms.sampling_ratio)


def _check_version(now: Terms, version: int, packed: bytes) -> None:
    """Windows are kept apart by version: one version is one table, and never comes back."""
    told, latest = bool(now.placement), now.expert_map_version
    if version < latest or (told and version == latest and packed != now.placement):
        raise SettingsError(
            f"Placement {version} cannot follow placement {latest}.",
            why="It is another table under the same version."
            if version == latest
            else "Versions rise with each change.",
            next_step="Give a higher version.",
        )


def plain_reason(reason: object) -> str:
    """A reason as a label and a line of a log can hold it."""
    if not isinstance(reason, str) or not reason:
        return "no reason given"
    text = reason[:_LONGEST_REASON].encode(errors="replace").decode()
    return printable(text)[:_LONGEST_REASON]
