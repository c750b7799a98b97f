"""How a component is: what it says of itself, and the report that others read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

Component = Literal["agent", "processor", "store"]
COMPONENTS: Final[tuple[Component, ...]] = ("agent", "processor", "store")


class HealthStatus(StrEnum):
    """What a component says of itself."""

    OK = "ok"
    STARTING = "starting"
    """Not at work yet."""
    WAITING = "waiting"
    """Well, and idle until something else is there: a broker, another owner's lock."""
    FAILING = "failing"
    """Restarting it is worth a try."""


@dataclass(frozen=True, slots=True)
class Health:
    """A component's own view.

    Attributes:
        why: In words, for whatever is not `ok`.
        facts: A few values that JSON holds, shown to whoever asks.
    """

    status: HealthStatus = HealthStatus.OK
    why: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """What `/healthz` answers and a health file holds.

    Attributes:
        host: Where process `pid` runs.
        birth: Kernel's start time of the process in clock ticks, so that another process that
            has got its number is not taken for it; 0 where the kernel does not say.
        started_at_us: Wall clock when the component began, in microseconds.
        written_at_us: Wall clock of this report, in microseconds.
    """

    component: str
    host: str
    pid: int
    birth: int
    version: str
    started_at_us: int
    written_at_us: int
    health: Health

    @property
    def is_well(self) -> bool:
        """Whether the component itself says so: all but `failing`."""
        return self.health.status is not HealthStatus.FAILING

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "component": self.component,
            "status": self.health.status.value,
            "why": self.health.why,
            "facts": dict(self.health.facts),
            "host": self.host,
            "pid": self.pid,
            "birth": self.birth,
            "version": self.version,
            "started_at_us": self.started_at_us,
            "written_at_us": self.written_at_us,
        }

    @classmethod
    def of_document(cls, document: Any) -> Self:  # noqa: ANN401 (whatever JSON can hold)
        """Read a report.

        Raises:
            InputError: It is none.
        """
        try:
            return cls(
                component=str(document["component"]),
                host=str(document["host"]),
                pid=int(document["pid"]),
                birth=int(document["birth"]),
                version=str(document["version"]),
                started_at_us=int(document["started_at_us"]),
                written_at_us=int(document["written_at_us"]),
                health=Health(
                    HealthStatus(document["status"]),
                    str(document["why"]),
                    dict(document["facts"]),
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("This is no health report.", why=repr(error)) from error
