"""Processors of a group as processes that may be killed, and what their group has committed."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING, Any

from kafka.errors import KafkaError
from support.fleet_processes import wait_for
from support.small_windows import CONFIG

from moescope.console.stopping import stop_on_signals
from moescope.core.kafka import open_admin
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.fleet_processes import FleetProcess, Nursery

    from moescope.core.settings import Settings

PATIENCE_S = 90.0
_ASSIGNED = "assigned_partitions"

SMALL_WINDOWS = {
    "windows.token": ",".join(f"{size}/{stride}" for size, stride in CONFIG.token),
    "windows.time": ",".join(f"{size // 10**6}/{slide // 10**6}" for size, slide in CONFIG.time),
    "windows.step": ",".join(f"{size}/{stride}" for size, stride in CONFIG.step),
    "store.token_row_budget": CONFIG.row_budget,
}
"""`small_windows.CONFIG` as settings."""


def live(options: Mapping[str, Any], dies_in_commit: int) -> None:
    """Be a processor that commits often, and that may kill itself in the middle of a commit."""
    from moescope.console.processor_work import run_processor  # noqa: PLC0415 (in the process)
    from moescope.processors import pipeline  # noqa: PLC0415 - in the process
    from moescope.processors.group import commits, joining, offset_note  # noqa: PLC0415 - in the process

    pipeline.READ_RECORDS = 4
    joining.REST_SECONDS = 0.0
    left = [dies_in_commit]

    class DeadlyNote(offset_note.OffsetNote):
        def text(self) -> str:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().text()

    commits.__dict__["OffsetNote"] = DeadlyNote
    run_processor(load_settings(environment={}, options=options), stop_on_signals())


def emitted_to(settings: Settings, admin: Any) -> dict[int, int]:
    """Partition → how far the group's output is committed."""
    group = settings["kafka.group"]
    try:
        found = admin.list_group_offsets([group])[group]
    except KafkaError:
        return {}
    return {
        place.partition: json.loads(committed.metadata)["emitted_to"]
        for place, committed in found.items()
        if committed.offset >= 0
    }


class ProcessorFleet:
    """Processors of one group.

    Args:
        settings: Of all of them.
        nursery: Starts them.
    """

    def __init__(self, settings: Settings, nursery: Nursery) -> None:
        self.settings = settings
        self._nursery = nursery
        self._options = {
            name: settings[name] for name, origin in settings.origins.items() if origin == "option"
        }
        self._started = 0

    def start(self, *, dies_in_commit: int = 0, instance: str = "") -> FleetProcess:
        """Start one more; the offsets of its n-th partition commit may be its end."""
        self._started += 1
        options = {
            **self._options,
            **SMALL_WINDOWS,
            "kafka.instance_id": instance,
            "store.source": "deltas",
        }
        return self._nursery.start(f"processor-{self._started}", live, options, dies_in_commit)

    def wait_for_members(self, *shares: int) -> None:
        """Wait until the members have so many partitions each."""
        with closing(open_admin(self.settings)) as admin:
            wait_for(
                f"members with {shares} partitions",
                lambda: self._shares(admin) == sorted(shares),
                PATIENCE_S,
            )

    def wait_until_processed(self, ends: Mapping[int, int]) -> None:
        """Wait until the group has committed up to these offsets."""
        with closing(open_admin(self.settings)) as admin:
            wait_for(
                f"commits up to {ends}",
                lambda: emitted_to(self.settings, admin) == dict(ends),
                PATIENCE_S,
            )

    def _shares(self, admin: Any) -> list[int]:
        group = self.settings["kafka.group"]
        try:
            described = admin.describe_groups([group])[group]
        except KafkaError:
            return []
        if described["group_state"] != "Stable":
            return []
        return sorted(
            sum(len(each["partitions"]) for each in member["member_assignment"][_ASSIGNED])
            for member in described["members"]
        )
