"""The stretches of event time that the scorecard looks at."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moescope.console.demo.expectations import SIMULATED, Expectation
from moescope.console.demo.plan import MINUTE_US

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moescope.console.demo.plan import Playing, Timeline

TINY_MOE: Final = "tiny-moe"
SIMULATED_MOE: Final = "simulated-moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One incident, healthy twin, or stretch of held-out health.

    Attributes:
        name: Incident or recording.
        model: Whose traffic.
        start_us, end_us: Event time, [start, end).
        nodes: Nodes concerned; empty: the traffic as a whole.
        held_out: Held-out health.
        expected: What should come out.
    """

    name: str
    model: str
    start_us: int
    end_us: int
    expected: Expectation
    nodes: tuple[str, ...] = ()
    held_out: bool = False

    @property
    def blocks(self) -> int:
        """Minutes, the last one perhaps not whole."""
        return -((self.start_us - self.end_us) // MINUTE_US)


def recorded_stretches(timeline: Timeline) -> list[Stretch]:
    """Held-out health and incidents of the small model."""
    return [_recorded(playing) for playing in timeline.afterwards]


def _recorded(playing: Playing) -> Stretch:
    return Stretch(
        name=playing.recording.name,
        model=TINY_MOE,
        start_us=playing.start_us,
        end_us=playing.end_us,
        expected=playing.expected,
        held_out=playing.held_out,
    )


def simulated_stretches(labels: Path) -> list[Stretch]:
    """Incidents that the simulator planted; those of nodes that a small fleet lacks are not."""
    return list(_planted(json.loads(labels.read_text(encoding="utf-8"))))


def _planted(labels: dict[str, Any]) -> Iterator[Stretch]:
    fleet = set().union(*(incident["nodes"] for incident in labels["incidents"]))
    for incident in labels["incidents"]:
        if incident["nodes"]:
            everywhere = len(incident["nodes"]) == len(fleet)
            yield Stretch(
                name=incident["name"],
                model=SIMULATED_MOE,
                start_us=incident["start_us"],
                end_us=incident["end_us"],
                expected=SIMULATED[incident["name"]],
                nodes=() if everywhere else tuple(incident["nodes"]),
            )
