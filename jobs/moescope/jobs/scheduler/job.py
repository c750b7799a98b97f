"""A job, what it is given and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from moescope.core.clock import Clock
    from moescope.core.settings import Settings
    from moescope.jobs.scheduler.schedule import Schedule
    from moescope.storage.export import Exporter
    from moescope.storage.store import Store


class RunState(StrEnum):
    """What became of a run."""

    RUNNING = "running"
    DONE = "done"
    NOTHING = "nothing"
    """There was nothing to do, or too little data; the result says which."""
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Its owner ended before it did."""


class Trigger(StrEnum):
    """What started a run."""

    SCHEDULE = "schedule"
    PERSON = "person"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What a job works with.

    Attributes:
        store: Of the owner.
        settings: Everything that can be set.
        clock: Wall clock.
        exporter: Of the owner's export folder.
    """

    store: Store
    settings: Settings
    clock: Clock
    exporter: Exporter

    @property
    def data_directory(self) -> Path:
        """Root of everything that moescope writes."""
        return self.settings.data_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a run did.

    Attributes:
        state: `done` or `nothing`.
        detail: What it did, or why there was nothing to do; JSON values.
    """

    state: RunState = RunState.DONE
    detail: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def nothing(cls, why: str) -> JobResult:
        """A run that had nothing to do."""
        return cls(state=RunState.NOTHING, detail={"why": why})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        name: As typed.
        what: What it does, in one sentence.
        when: In words.
        schedule: Its times; None: it is no run of its own (part of commits, or a thread).
        run: One run; None where a person cannot start one.
        status_sql: One row on what it last did, for jobs without runs of their own; or empty.
    """

    name: str
    what: str
    when: str
    schedule: Schedule | None = None
    run: Callable[[JobContext], JobResult] | None = None
    status_sql: str = ""
