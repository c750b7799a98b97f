"""How often the shipper does what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippingPace:
    """Seconds, all of them.

    Attributes:
        poll: Pause between two looks at logs that have nothing new.
        discover: Between two looks for new partitions.
        save: Between two moves of cursors; each costs a write that waits for the disk.
        report: Between two reports of gauges.
        first_pause: Before the second attempt to reach a broker; later ones double.
        longest_pause: Before any attempt: a broker that is back is used so soon.
        refused_pause: Before the next attempt where the broker does not accept who we are.
        silence: A broker that answers nothing for so long, with records on their way, is given
            up; where answers take long, longer. The library's thread begins to spin when its own
            time-outs pass.
    """

    poll: float = 0.1
    discover: float = 1.0
    save: float = 0.5
    report: float = 1.0
    first_pause: float = 0.2
    longest_pause: float = 5.0
    refused_pause: float = 30.0
    silence: float = 3.0
