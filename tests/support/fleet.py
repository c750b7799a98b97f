"""A whole fleet on one machine: agents, processors, a store owner and its standby, over Kafka.

Every process is one of moescope's own commands, with settings of its own; nothing is known of
them but what they tell through Kafka, their metrics and their exit codes.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

from support.fleet_load import ENDING_US, longer
from support.fleet_processes import FleetError, wait_for
from support.fleet_roles import run_command, write_load
from support.fleet_topic import end_offsets, read_topic
from support.kafka_broker import free_port

from moescope.core.batchlog import cursor_offsets, list_partitions
from moescope.core.clock import SystemClock
from moescope.core.kafka import Topic, declared_topics, open_admin, topic_name
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings
from moescope.processors.config import WindowConfig
from moescope.processors.finish import WindowFinisher
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.kafka import KafkaSource
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from support.fleet_load import Machine
    from support.fleet_processes import FleetProcess, Nursery
    from support.fleet_topic import Place

    from moescope.core.settings import Settings

RECOVERY_S = 60.0
DRAIN_S = 120.0
STORE_FILE = "moescope.duckdb"

SETTINGS: dict[str, str] = {
    "windows.token": "4,8,16/8",
    "windows.time": "1,3,6/2",
    "windows.step": "2,4/2",
    "store.token_row_budget": "2000",
    "kafka.partitions": "6",
    "kafka.session_timeout": "2",
    "kafka.max_poll_interval": "30",
    "kafka.transaction_timeout": "3",
    "kafka.request_timeout": "3",
    "kafka.connect_timeout": "3",
    "kafka.delivery_timeout": "5",
    "processor.commit_interval": "0.5",
    "export.interval": "5",
    "jobs.enabled": "false",
    "store.source": "deltas",
}
"""Small windows that close after a few rows, and time-outs that make faults quick."""


@dataclass
class Member:
    """A component of the fleet over its lives.

    Attributes:
        command: As on the command line.
        variables: Its settings.
        port: Where it tells its metrics.
    """

    name: str
    command: tuple[str, ...]
    variables: dict[str, str]
    port: int
    clock_error_us: int = 0
    disk_holder: int = 0
    process: FleetProcess | None = None
    lives: int = 0

    @property
    def now(self) -> FleetProcess:
        """The process that it is."""
        if self.process is None:
            raise FleetError(f"{self.name} was not started.")
        return self.process

    def metrics(self) -> dict[str, float]:
        """What it tells, by metric and labels as they are written; empty when nobody answers."""
        with (
            suppress(OSError, URLError),
            urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=2) as answer,
        ):
            lines = answer.read().decode().splitlines()
            pairs = (line.rpartition(" ") for line in lines if line and line[0] != "#")
            return {name: float(value) for name, _, value in pairs}
        return {}


@dataclass
class Fleet:
    """Starts and ends the parts of a fleet.

    Attributes:
        nursery: Makes its processes.
        folder: Everything it writes.
        bootstrap: The broker.
        prefix: Of its topics, groups and names.
        machines: Those that infer; each has an agent.
        processors: How many; 0: the owner reads routing batches itself.
        named: How many of the processors keep their names over restarts.
        settings: Of all members, stronger than any other.
    """

    nursery: Nursery
    folder: Path
    bootstrap: str
    prefix: str
    machines: Sequence[Machine] = ()
    processors: int = 3
    named: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Name the members."""
        source = "deltas" if self.processors else "routing"
        self.common = {
            **SETTINGS,
            "store.source": source,
            "kafka.bootstrap_servers": self.bootstrap,
            "kafka.topic_prefix": self.prefix,
            "kafka.group": self.prefix,
            **self.settings,
        }
        self.owner = self.member("owner", ("run", "store", "--standby"), self.store_folder)
        self.standby = self.member("standby", ("run", "store", "--standby"), self.store_folder)
        self.workers = [
            self.member(
                f"processor-{n}",
                ("run", "processor"),
                self.folder / f"processor-{n}",
                {"kafka.instance_id": f"p{n}"} if n < self.named else {},
            )
            for n in range(self.processors)
        ]
        self.agents = [
            self.member(
                f"agent-{one.name}",
                ("run", "agent"),
                self.machine_folder(one),
                {"log.byte_cap": str(one.byte_cap)},
                one.clock_error_us,
            )
            for one in self.machines
        ]
        self._writers: list[FleetProcess] = []

    @property
    def store_folder(self) -> Path:
        """Data directory of the owner and its standby."""
        return self.folder / "store"

    @property
    def store_file(self) -> Path:
        """The store that they own."""
        return self.store_folder / STORE_FILE

    @property
    def routing(self) -> str:
        """Name of the routing topic."""
        return topic_name(self.loaded(), Topic.ROUTING)

    @property
    def config(self) -> WindowConfig:
        """The declared windows."""
        return WindowConfig.from_settings(self.loaded())

    def machine_folder(self, machine: Machine) -> Path:
        """Data directory of a machine that infers."""
        return self.folder / machine.name

    def log_roots(self) -> list[Path]:
        """Batch logs of all machines."""
        return [self.machine_folder(machine) / "log" for machine in self.machines]

    def loaded(self, **more: str) -> Settings:
        """Settings as a component gets them."""
        return load_settings(environment={}, options={**self.common, **more})

    def make_topics(self, largest_routing: int | None = None) -> None:
        """Make every topic as it is declared.

        Args:
            largest_routing: Another limit of the routing topic's records, in bytes.
        """
        from kafka.admin import NewTopic  # noqa: PLC0415 - loaded with the client

        settings = self.loaded()
        with closing(open_admin(settings)) as admin:
            admin.create_topics(
                [
                    NewTopic(
                        spec.name,
                        spec.partitions,
                        1,
                        topic_configs={
                            **spec.configs,
                            **(
                                {"max.message.bytes": str(largest_routing)}
                                if largest_routing and spec.topic is Topic.ROUTING
                                else {}
                            ),
                        },
                    )
                    for spec in declared_topics(settings)
                ]
            )

    def start(self, member: Member, *, as_program: bool = False) -> Member:
        """Start a member, for the first time or again.

        Args:
            member: Which one.
            as_program: Whether to start the real command, not a process forked from a warm one.
        """
        member.lives += 1
        if as_program:
            member.process = self.nursery.start_command(
                f"{self.prefix}-{member.name}", member.command, member.variables
            )
            return member
        member.process = self.nursery.start(
            f"{self.prefix}-{member.name}",
            run_command,
            member.command,
            member.variables,
            member.clock_error_us,
            member.disk_holder,
        )
        return member

    def working(self) -> list[Member]:
        """Processors that were not asked to leave."""
        return [worker for worker in self.workers if worker.process is not None]

    def check(self) -> None:
        """See that whoever should live does.

        Raises:
            FleetError: A member ended by itself.
        """
        for member in [self.owner, self.standby, *self.workers, *self.agents]:
            process = member.process
            if process is not None and not process.is_running:
                raise FleetError(f"{member.name} ended by itself:\n{process.last_words()}")

    def start_all(self, seconds: float) -> None:
        """Make the topics, and start everything, with a load of at most so many seconds."""
        self.make_topics()
        self.start(self.owner)
        self.wait_for_owner()
        self.start(self.standby)
        for worker in self.workers:
            self.start(worker)
        for agent in self.agents:
            self.start(agent)
        self.start_load(seconds)
        wait_for("a load", lambda: all(map(log_ends, self.log_roots())), RECOVERY_S)
        self.wait_for_standby()

    def start_load(self, seconds: float) -> None:
        """Start to write the load of every machine."""
        now = SystemClock().now_us()
        self._writers = [
            self.nursery.start(
                f"{self.prefix}-load-{machine.name}",
                write_load,
                machine,
                self.machine_folder(machine) / "log",
                now,
                self._stage_file(machine),
            )
            for machine in longer(self.machines, seconds)
        ]

    def wait_for_owner(self, start: float | None = None) -> None:
        """Wait until the owner owns."""
        wait_for("an owner", lambda: owns(self.owner), RECOVERY_S, start=start)

    def wait_for_standby(self, seconds: float = RECOVERY_S) -> None:
        """Wait until the standby stands by."""
        wait_for(
            "a standby", lambda: self.standby.metrics().get("moescope_store_standby") == 1, seconds
        )

    def end_load(self) -> None:
        """Stop writing, let every window close, and wait until all of it is stored."""
        for stage in range(1, len(ENDING_US) + 1):
            for writer in self._writers:
                writer.ask_to_stop()
            wait_for("the load ends", partial(self._is_at, stage), RECOVERY_S)
            self.wait_until_shipped()
            self.wait_until_stored(end_offsets(self.bootstrap, self.routing), DRAIN_S)
        for writer in self._writers:
            writer.wait()

    def _is_at(self, stage: int) -> bool:
        files = [self._stage_file(machine) for machine in self.machines]
        return all(file.exists() and int(file.read_text()) == stage for file in files)

    def _stage_file(self, machine: Machine) -> Path:
        return self.folder / f"{machine.name}.stage"

    def stop_all(self) -> None:
        """Let every member end in order."""
        for members in (self.agents, self.workers, [self.standby, self.owner]):
            running = [one.process for one in members if one.process is not None]
            for process in running:
                process.ask_to_stop()
            for process in running:
                process.wait()

    def wait_until_shipped(self, seconds: float = DRAIN_S, start: float | None = None) -> None:
        """Wait until all that batch logs hold now is shipped."""
        ends = {path: end for root in self.log_roots() for path, end in log_ends(root).items()}
        wait_for("agents ship all", lambda: is_shipped(ends), seconds, start=start)

    def wait_until_stored(
        self, ends: Mapping[int, int], seconds: float = RECOVERY_S, start: float | None = None
    ) -> float:
        """Wait until every record below some offsets is in the store; gives the seconds."""
        return wait_for(
            f"the store holds {dict(ends)}", lambda: self.has_stored(ends), seconds, start=start
        )

    def has_stored(self, ends: Mapping[int, int]) -> bool:
        """Whether the owner says that every record below some offsets is stored."""
        told = self.owner.metrics()
        return bool(told) and all(
            told.get(next_offset_metric(self.routing, partition), 0) >= end
            for partition, end in ends.items()
            if end
        )

    def read_routing(self) -> dict[int, list[Place]]:
        """The routing topic, whole."""
        return read_topic(self.bootstrap, self.routing)

    def store_alone(self) -> Path:
        """One process that reads the routing topic into a store of its own; gives its file."""
        file = self.folder / "alone.duckdb"
        settings, config = self.loaded(), self.config
        shapes = WindowShapes(config.time, config.step)
        source = KafkaSource(settings, SelfMetrics(), SystemClock(), patient=False)
        with source, Store(file, WindowFinisher(), shapes) as store:
            Pipeline(source, store, WindowFinisher(), config).run(until_idle=True)
        return file

    def member(
        self,
        name: str,
        command: tuple[str, ...],
        folder: Path,
        more: Mapping[str, str] | None = None,
        clock_error_us: int = 0,
    ) -> Member:
        """A component with settings of its own, not started."""
        port = free_port()
        options = {**self.common, **(more or {})}
        options |= {"data.directory": str(folder), "watch.port": str(port)}
        variables = {
            f"MOESCOPE_{setting.upper().replace('.', '_')}": value
            for setting, value in options.items()
        }
        variables["MOESCOPE_TRACEBACK"] = "1"
        return Member(name, command, variables, port, clock_error_us)


def next_offset_metric(topic: str, partition: int) -> str:
    """How the owner names the next offset of a partition among its metrics."""
    return f'moescope_store_next_offset{{partition="{topic}-{partition}"}}'


def owns(member: Member) -> bool:
    """Whether it owns the store."""
    return "moescope_store_fencing_token" in member.metrics()


def takes_part(member: Member) -> bool:
    """Whether a processor has got partitions."""
    return member.metrics().get("moescope_processor_assigned_partitions", 0) > 0


def log_ends(root: Path) -> dict[Path, int]:
    """Folder → end of every batch log below a root."""
    return {one.path: one.end_offset for one in list_partitions(root)}


def is_shipped(ends: Mapping[Path, int]) -> bool:
    """Whether the agent's cursor is at these ends of batch logs, or behind them."""
    return all(cursor_offsets(path).get("kafka", 0) >= end for path, end in ends.items())
