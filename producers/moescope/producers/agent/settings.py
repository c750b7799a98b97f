"""How an agent groups rows and how often it speaks."""

from __future__ import annotations

from dataclasses import dataclass, field

from moescope.core.batchlog import WriterSettings
from moescope.core.errors import SettingsError
from moescope.producers.recording.splitting import MAX_SPAN_US


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of one agent.

    Attributes:
        group_us: How long rows wait for company before their batch is closed; at most one second,
            which is also the event time that a batch spans at most.
        heartbeat_us: Time without data after which a node's batch without rows is sent.
        linger_us: How long heartbeats go on after an engine has ended, so that the windows it
            left open close; a new engine of the node ends that.
        poll_seconds: Pause when there was nothing to do.
        batch_bytes: A batch is closed when it would get longer.
        log: Settings of the batch log.

    Raises:
        SettingsError: A value is out of range.
    """

    group_us: int = MAX_SPAN_US
    heartbeat_us: int = 1_000_000
    linger_us: int = 900_000_000
    poll_seconds: float = 0.05
    batch_bytes: int = 1024 * 1024
    log: WriterSettings = field(default_factory=WriterSettings)

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        for name, is_right, accepted in (
            ("group_us", 0 <= self.group_us <= MAX_SPAN_US, f"0 to {MAX_SPAN_US}"),
            ("heartbeat_us", self.heartbeat_us > 0, "more than 0"),
            ("linger_us", self.linger_us >= 0, "at least 0"),
            ("poll_seconds", self.poll_seconds > 0, "more than 0"),
            ("batch_bytes", self.batch_bytes > 0, "more than 0"),
        ):
            if not is_right:
                raise SettingsError(
                    f"The agent's setting {name} cannot be {getattr(self, name)!r}.",
                    why=f"Accepted: {accepted}.",
                    next_step="Change the setting.",
                )
