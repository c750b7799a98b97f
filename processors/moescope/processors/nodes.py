"""The producers of one partition: duplicates, gaps, watermarks, clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from moescope.core.clock import END_OF_TIME, NO_TIME

if TYPE_CHECKING:
    from moescope.core.batch import BatchHeader
    from moescope.processors.traffic_mix import Mix

SEQUENCE_WINDOW = 4096
BEHIND_US = 10_000_000
PATIENCE_US = 10_000_000
"""How long records of others arrive before a node that is behind is no longer waited for."""
ARRIVAL_GAP_US = 1_000_000
"""More than this between two arrivals is a broker's silence, which is no node's fault."""
SKEW_US = 60_000_000
REMEMBERED_INCARNATIONS = 8
RETIRED_INCARNATIONS = 4096
_MASK = (1 << SEQUENCE_WINDOW) - 1


class NodeState(StrEnum):
    """Whether a node takes part in the partition's watermark."""

    ACTIVE = "active"
    SET_ASIDE = "set_aside"
    CLOCK_SKEW = "clock_skew"


class Sighting(StrEnum):
    """What a sequence number is to an incarnation."""

    NEW = "new"
    DUPLICATE = "duplicate"
    TOO_OLD = "too_old"


@dataclass(slots=True)
class Incarnation:
    """Sequence numbers seen from one boot of a producer: a high mark and the 4,096 below it."""

    high: int = -1
    seen: int = 0

    def sight(self, sequence: int) -> tuple[Sighting, int]:
        """Record a sequence number.

        Returns:
            What it is, and how many numbers between the high mark and it were skipped.
        """
        if sequence > self.high:
            skipped = sequence - self.high - 1
            ahead = sequence - self.high
            self.seen = ((self.seen << ahead) | 1) & _MASK if ahead < SEQUENCE_WINDOW else 1
            self.high = sequence
            return Sighting.NEW, skipped
        behind = self.high - sequence
        if behind >= SEQUENCE_WINDOW:
            return Sighting.TOO_OLD, 0
        if self.seen >> behind & 1:
            return Sighting.DUPLICATE, 0
        self.seen |= 1 << behind
        return Sighting.NEW, 0


@dataclass(slots=True)
class Node:
    """One producer."""

    name: str
    watermark_us: int = NO_TIME
    state: NodeState = NodeState.ACTIVE
    highest_step: int = -1
    lost_rows: int = 0
    gaps: int = 0
    incarnations: dict[int, Incarnation] = field(default_factory=dict)
    retired: list[int] = field(default_factory=list)
    mix: Mix = field(default_factory=dict)
    waited: tuple[int, int] | None = None
    """Arrival clock and own watermark when waiting for it began; None: it is not behind."""
    trained_to: int = -1
    """Highest step that it trained; an evaluation has the number of the step that follows."""
    steps_ended: bool = False
    """What it trained is done, and nothing follows, until it shows a step again."""

    @property
    def step_reached(self) -> int:
        """Steps before this one are over."""
        return max(self.highest_step, self.trained_to + self.steps_ended)

    def sight(self, incarnation: int, sequence: int) -> tuple[Sighting, int]:
        """Record a batch's identity; see :meth:`Incarnation.sight`.

        Of the boots longest out of use only the number is kept: their batches are too old to
        tell whether they are new.
        """
        if incarnation in self.retired:
            return Sighting.TOO_OLD, 0
        known = self.incarnations.pop(incarnation, None) or Incarnation()
        self.incarnations[incarnation] = known
        while len(self.incarnations) > REMEMBERED_INCARNATIONS:
            oldest = next(iter(self.incarnations))
            del self.incarnations[oldest]
            self.retired = [*self.retired, oldest][-RETIRED_INCARNATIONS:]
        return known.sight(sequence)


class NodeTable:
    """All producers of a partition, and the partition's watermark.

    A node that is behind the fastest is set aside. Where records arrive from elsewhere, though,
    a broker that was away makes them arrive in heaps, one node's after the other's: there a node
    is set aside only when others' records have been arriving for 10 s and it has gained nothing.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.watermark_us = NO_TIME
        self._arrival_clock_us = 0
        self._last_arrival_us = NO_TIME

    def node(self, name: str) -> Node:
        """The node, new if it was not known."""
        known = self.nodes.get(name)
        if known is None:
            known = self.nodes[name] = Node(name)
        return known

    def note_time(
        self, node: Node, watermark_us: int, *, skewed: bool, arrival_us: int = NO_TIME
    ) -> None:
        """Take a batch's watermark, and move the partition's."""
        self._note_arrival(arrival_us)
        if watermark_us != NO_TIME and not skewed:
            node.watermark_us = max(node.watermark_us, watermark_us)
        if skewed:
            node.state, node.waited = NodeState.CLOCK_SKEW, None
        elif node.state is NodeState.CLOCK_SKEW:
            node.state = NodeState.ACTIVE
        timed = [
            known
            for known in self.nodes.values()
            if known.watermark_us != NO_TIME and known.state is not NodeState.CLOCK_SKEW
        ]
        if not timed:
            return
        fastest = max(known.watermark_us for known in timed)
        lowest = fastest
        for known in timed:
            behind = fastest - known.watermark_us > BEHIND_US and fastest != END_OF_TIME
            set_aside = self._is_given_up(known, behind=behind, arrives=arrival_us != NO_TIME)
            known.state = NodeState.SET_ASIDE if set_aside else NodeState.ACTIVE
            if not set_aside:
                lowest = min(lowest, known.watermark_us)
        self.watermark_us = max(self.watermark_us, lowest)

    def _note_arrival(self, arrival_us: int) -> None:
        if NO_TIME not in {arrival_us, self._last_arrival_us}:
            passed = arrival_us - self._last_arrival_us
            self._arrival_clock_us += min(max(passed, 0), ARRIVAL_GAP_US)
        self._last_arrival_us = arrival_us

    def _is_given_up(self, node: Node, *, behind: bool, arrives: bool) -> bool:
        """Whether a node is set aside now."""
        if not behind:
            node.waited = None
            return False
        if not arrives or node.state is NodeState.SET_ASIDE:
            return True
        if node.waited is None:
            node.waited = self._arrival_clock_us, node.watermark_us
        began_us, from_us = node.waited
        waited_us = self._arrival_clock_us - began_us
        if waited_us < PATIENCE_US:
            return False
        if 2 * (node.watermark_us - from_us) >= 3 * waited_us:
            # It is not slow or silent, it brings what had to wait: faster than time passes.
            node.waited = self._arrival_clock_us, node.watermark_us
            return False
        return True

    def set_aside_us(self) -> tuple[int, ...]:
        """Watermarks of the nodes that are behind and not waited for, in ascending order."""
        return tuple(
            sorted(
                node.watermark_us
                for node in self.nodes.values()
                if node.state is NodeState.SET_ASIDE
            )
        )

    def step_low(self) -> int:
        """Lowest of the highest steps of the training nodes; `END_OF_TIME` when none trains.

        Nodes that are set aside hold nobody back, unless all are: their steps are not over. Nodes
        that ended hold nobody back either; when all did, the step after the last is reached.
        """
        training = [node for node in self.nodes.values() if node.highest_step >= 0]
        active = [node for node in training if node.state is NodeState.ACTIVE]
        known = active or training
        going = [node.highest_step for node in known if not node.steps_ended]
        if known and not going:
            return max(node.step_reached for node in known)
        return min(going, default=END_OF_TIME)

    def state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "watermark_us": self.watermark_us,
            "arrivals": [self._arrival_clock_us, self._last_arrival_us],
            "nodes": [
                {
                    "name": node.name,
                    "watermark_us": node.watermark_us,
                    "state": node.state.value,
                    "highest_step": node.highest_step,
                    "lost_rows": node.lost_rows,
                    "gaps": node.gaps,
                    "retired": node.retired,
                    "waited": node.waited,
                    "trained_to": node.trained_to,
                    "steps_ended": node.steps_ended,
                    "mix": [[phase, scene, rows] for (phase, scene), rows in node.mix.items()],
                    "incarnations": [
                        [number, known.high, f"{known.seen:x}"]
                        for number, known in node.incarnations.items()
                    ],
                }
                for node in self.nodes.values()
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.watermark_us = state["watermark_us"]
        self._arrival_clock_us, self._last_arrival_us = state["arrivals"]
        self.nodes = {
            saved["name"]: Node(
                saved["name"],
                saved["watermark_us"],
                NodeState(saved["state"]),
                saved["highest_step"],
                saved["lost_rows"],
                saved["gaps"],
                {
                    number: Incarnation(high, int(seen, 16))
                    for number, high, seen in saved["incarnations"]
                },
                list(saved["retired"]),
                {(phase, scene): rows for phase, scene, rows in saved["mix"]},
                tuple(saved["waited"]) if saved["waited"] else None,
                saved.get("trained_to", -1),  # older releases knew neither of the two
                saved.get("steps_ended", False),
            )
            for saved in state["nodes"]
        }


def is_skewed(header: BatchHeader, append_time_us: int) -> bool:
    """Whether a producer's clock and the log's differ by more than a minute.

    A watermark ahead of the log by that much is the same fault: believed, it would make
    everything that follows, from every node, late.
    """
    if append_time_us == NO_TIME:
        return False
    if header.encoded_at_us != NO_TIME and abs(header.encoded_at_us - append_time_us) > SKEW_US:
        return True
    ahead = header.watermark_us - append_time_us
    return header.watermark_us not in {NO_TIME, END_OF_TIME} and ahead > SKEW_US
