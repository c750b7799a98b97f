"""How far a watermark domain is, from the progress of its partitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moescope.core.clock import END_OF_TIME, NO_TIME
from moescope.core.emission import LIVE_DOMAIN
from moescope.storage.shared.spans import SECOND_US

if TYPE_CHECKING:
    from collections.abc import Collection

    from moescope.core.accounts import PartitionProgress

SET_ASIDE_US = 10 * SECOND_US
"""A partition of the live domain that is this far behind the fastest is not waited for."""

NO_STEP = NO_TIME


@dataclass(frozen=True, slots=True)
class DomainClock:
    """Watermark and lowest step of a domain.

    Attributes:
        reached_us: Greatest watermark that was really shown; never moves back.
        step_reached: The same for optimizer steps.
        sealed: All partitions were read to the end of sealed logs.
        training_ended: No node trains any more: nothing holds step windows open.
    """

    reached_us: int = NO_TIME
    step_reached: int = NO_STEP
    sealed: bool = False
    training_ended: bool = False

    @property
    def watermark_us(self) -> int:
        """Nothing earlier follows; `END_OF_TIME` when sealed."""
        return END_OF_TIME if self.sealed else self.reached_us

    @property
    def step_low(self) -> int:
        """No earlier step follows; `END_OF_TIME` when nobody trains."""
        return END_OF_TIME if self.sealed or self.training_ended else self.step_reached

    def past(self, reached_us: int, step_reached: int) -> DomainClock:
        """The clock once windows that end there have closed, whatever closed them."""
        return replace(
            self,
            reached_us=max(self.reached_us, reached_us),
            step_reached=max(self.step_reached, step_reached),
        )


def advance_clock(
    before: DomainClock,
    domain: str,
    partitions: Collection[PartitionProgress],
    unread: Collection[str] = (),
) -> DomainClock:
    """The clock of a domain after its partitions moved.

    A sealed partition holds nobody back. In the live domain a partition that is more than
    10 s behind the fastest is set aside, since a machine that is gone must not stop the
    others; the partitions of an import are all waited for. So is one with records that nobody
    has read yet: it is not silent. While one of those has shown no watermark at all, the clock
    stands.

    Args:
        before: The clock so far; the result is never behind it.
        domain: Name of the domain.
        partitions: Progress of every partition of it.
        unread: Names of live partitions that hold records which no progress covers yet.
    """
    if domain == LIVE_DOMAIN and not {each.partition for each in partitions}.issuperset(unread):
        return DomainClock(before.reached_us, before.step_reached)
    running = [partition for partition in partitions if not partition.sealed]
    sealed = bool(partitions) and not running
    if sealed:
        shown = max(_finite(partition.watermark_us) for partition in partitions)
    elif running:
        fastest = max(partition.watermark_us for partition in running)
        shown = min(
            partition.watermark_us
            for partition in running
            if domain != LIVE_DOMAIN
            or partition.partition in unread
            or partition.watermark_us >= fastest - SET_ASIDE_US
        )
    else:
        shown = NO_TIME
    training = [partition for partition in running if partition.step_low != END_OF_TIME]
    trained = [partition.step_low for partition in partitions if partition.step_low != END_OF_TIME]
    if training:
        steps = min(partition.step_low for partition in training)
    else:
        # The same whether the last steps and the seal came in one commit or in two.
        steps = max(trained, default=NO_STEP)
    return DomainClock(
        reached_us=max(before.reached_us, _finite(shown)),
        step_reached=max(before.step_reached, steps),
        sealed=sealed,
        training_ended=not training,
    )


def _finite(watermark_us: int) -> int:
    return NO_TIME if watermark_us == END_OF_TIME else watermark_us
