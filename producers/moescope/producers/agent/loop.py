"""The agent: serves every ring of a folder, one after the other for each node."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from moescope.core.batch import BatchError
from moescope.core.batchlog import BatchLogAppendError, BatchLogError
from moescope.core.clock import Clock, SystemClock
from moescope.core.errors import DependencyUnreachableError, InputError, MoescopeError
from moescope.producers.agent.node_log import NodeLog
from moescope.producers.agent.progress import ShippedCounters
from moescope.producers.agent.settings import AgentSettings
from moescope.producers.agent.shipper import RingShipper
from moescope.producers.profile import Profile
from moescope.producers.recording.folder import AGENT_LOCK, make_folder
from moescope.producers.ring.errors import RingFormatError
from moescope.producers.ring.layout import DAMAGED_SUFFIX, RING_SUFFIX
from moescope.producers.ring.reader import RingReader

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from types import TracebackType

_LOCK_ATTEMPTS: Final = 20
_LOCK_PAUSE_SECONDS: Final = 0.05

_log = logging.getLogger("moescope.producers")


class AgentLockedError(DependencyUnreachableError):
    """Another agent serves the folder."""


@dataclass(frozen=True, slots=True)
class AgentCounters:
    """What an agent did since it started.

    Attributes:
        shipped: What went into the batch log.
        failed_appends: How often the log refused; nothing is lost by that while the ring has room.
        unreadable_rings: Ring files that were set aside.
        nodes: Nodes that are served now.
    """

    shipped: ShippedCounters
    failed_appends: int
    unreadable_rings: int
    nodes: tuple[str, ...]


@dataclass(slots=True)
class _Ring:
    reader: RingReader
    profile: Profile


class _Node:
    """A node's rings, oldest first, and its log."""

    def __init__(self) -> None:
        self.rings: list[_Ring] = []
        self.log: NodeLog | None = None
        self.shipper: RingShipper | None = None

    def has_left(self, reader: RingReader, goal: int) -> bool:
        """Whether something of a ring is not in the log yet, up to a position of it."""
        if not any(ring.reader is reader for ring in self.rings):
            return False
        if self.shipper is None or self.shipper.reader is not reader:
            return True
        return not self.shipper.is_idle and self.shipper.shipped_to < goal

    def close_log(self) -> None:
        """Forget all progress that is not in the log and the ring: it is found there again."""
        self.shipper = None
        if self.log is not None:
            self.log.close()
            self.log = None

    def close(self) -> None:
        self.close_log()
        for ring in self.rings:
            ring.reader.close()
        self.rings.clear()


class Agent:
    """Reads the rings of a folder and writes routing batches to a batch log.

    Exactly once: a batch is numbered, noted in the ring and appended with the ring range that it
    came from; after a crash at any point, the log's last record says where to go on.

    Args:
        directory: Folder of the recorders; need not exist yet.
        log_root: Root of the batch log; each node is a partition.
        clock: Time.
        settings: Grouping, heartbeats and the log.
        before_drop: Called with a node before the byte cap removes batches of its log, so that
            whoever ships them can save how far it is. It must not raise.

    Raises:
        AgentLockedError: Another agent serves the folder (retriable).
        RingCreateError: The folder cannot be made, or is a link to one that is gone (retriable).
        OSError: The folder cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        log_root: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        settings: AgentSettings | None = None,
        before_drop: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._directory = Path(directory)
        self._log_root = Path(log_root)
        self._clock = clock or SystemClock()
        self._settings = settings or AgentSettings()
        self._before_drop = before_drop
        self._nodes: dict[str, _Node] = {}
        self._known: set[str] = set()
        self._refused: set[str] = set()
        self._shipped = ShippedCounters()
        self._failed_appends = 0
        self._unreadable_rings = 0
        self._complaint = ""
        self._error: MoescopeError | None = None
        self._trouble: MoescopeError | None = None
        make_folder(self._directory)
        self._lock = _lock(self._directory, self._clock)

    @property
    def trouble(self) -> MoescopeError | None:
        """Why the batch log takes nothing at the moment, if so; may be asked from any thread."""
        return self._trouble

    def run_once(self, *, flush: bool = False) -> bool:
        """Ship what is due, from every ring; whether there was anything to do.

        What the log refuses is tried again by the next call.

        Args:
            flush: Close open batches without waiting for more rows.
        """
        self._error = None
        self._find_rings()
        worked = False
        for name, node in list(self._nodes.items()):
            try:
                worked |= self._serve(name, node, flush=flush)
            except BatchLogAppendError as error:
                self._failed_appends += 1
                self._complain(name, error)
                if not error.retriable:
                    node.close_log()
            except BatchLogError as error:
                self._complain(name, error)
                node.close_log()
            except (RingFormatError, BatchError) as error:
                self._give_up_ring(node, error)
        if self._error is None and self._complaint:
            self._complaint = ""
            _log.warning("The batch log accepts batches again.")
        self._trouble = self._error
        return worked

    def run(self, stop: threading.Event) -> None:
        """Ship until told to stop, then ship what is left."""
        while not stop.is_set():
            if not self.run_once():
                stop.wait(self._settings.poll_seconds)
        self.run_once(flush=True)

    def drain(self) -> None:
        """Ship everything that was recorded before the call.

        Raises:
            BatchLogError: The log refused; the rows stay in the ring.
        """
        self._find_rings()
        goals = [
            (node, ring.reader, ring.reader.head)
            for node in self._nodes.values()
            for ring in node.rings
        ]
        while True:
            self.run_once(flush=True)
            if self._error is not None:
                raise self._error
            if not any(node.has_left(reader, goal) for node, reader, goal in goals):
                return

    def counters(self) -> AgentCounters:
        """What was shipped and what failed; may be asked from another thread."""
        served = list(self._nodes.items())
        return AgentCounters(
            shipped=replace(self._shipped),
            failed_appends=self._failed_appends,
            unreadable_rings=self._unreadable_rings,
            nodes=tuple(sorted(name for name, node in served if node.rings)),
        )

    def close(self) -> None:
        """Let go of the folder and the logs; what is not shipped stays in the rings."""
        for node in self._nodes.values():
            node.close()
        self._nodes.clear()
        self._known.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        """The agent itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _serve(self, name: str, node: _Node, *, flush: bool) -> bool:
        worked = False
        while node.rings:
            shipper = node.shipper or self._start(name, node)
            shipper.superseded = len(node.rings) > 1
            worked |= shipper.step(flush=flush)
            if not shipper.finished:
                return worked
            self._retire(node)
            worked = True
        node.close()
        del self._nodes[name]
        return worked

    def _start(self, name: str, node: _Node) -> RingShipper:
        if node.log is None:
            node.log = NodeLog(
                self._log_root,
                name,
                self._settings.log,
                self._clock,
                partial(self._before_drop, name),
            )
        ring = node.rings[0]
        node.shipper = RingShipper(
            ring.reader,
            ring.profile,
            node.log,
            clock=self._clock,
            settings=self._settings,
            counters=self._shipped,
        )
        return node.shipper

    def _retire(self, node: _Node) -> None:
        ring = node.rings.pop(0)
        node.shipper = None
        ring.reader.path.unlink(missing_ok=True)
        ring.reader.close()
        self._known.discard(ring.reader.path.name)

    def _find_rings(self) -> None:
        for path in self._directory.glob(f"*{RING_SUFFIX}"):
            if path.name in self._known:
                continue
            self._known.add(path.name)
            try:
                reader = RingReader(path)
            except OSError as error:
                self._known.discard(path.name)
                self._complain_of_ring(path, error)
                continue
            except RingFormatError as error:
                self._set_aside(path, error)
                continue
            try:
                profile = Profile.from_bytes(reader.profile)
            except InputError as error:
                reader.close()
                self._set_aside(path, error)
                continue
            node = self._nodes.setdefault(profile.node, _Node())
            node.rings.append(_Ring(reader, profile))
            _put_in_order(node)

    def _set_aside(self, path: Path, error: MoescopeError) -> None:
        self._unreadable_rings += 1
        with contextlib.suppress(OSError):
            path.rename(path.with_name(path.name.removesuffix(RING_SUFFIX) + DAMAGED_SUFFIX))
        self._known.discard(path.name)
        _log.error("The ring %s is set aside: %s", path.name, error)

    def _give_up_ring(self, node: _Node, error: MoescopeError) -> None:
        """Leave a ring that turned out to be unreadable, and go on with the node's next one."""
        node.shipper = None
        ring = node.rings.pop(0)
        ring.reader.close()
        self._set_aside(ring.reader.path, error)

    def _complain_of_ring(self, path: Path, error: OSError) -> None:
        if path.name not in self._refused and not isinstance(error, FileNotFoundError):
            self._refused.add(path.name)
            _log.error("The ring %s cannot be opened, it is tried again: %s", path.name, error)

    def _complain(self, node: str, error: MoescopeError) -> None:
        self._error = error
        if str(error) != self._complaint:
            self._complaint = str(error)
            _log.error("Node %s cannot ship for now: %s", node, error)


def _put_in_order(node: _Node) -> None:
    """Rings that have ended first, and by age: a node writes only one at a time."""
    current = node.rings[:1] if node.shipper is not None else []
    others = node.rings[len(current) :]
    others.sort(key=lambda ring: (not ring.reader.has_ended, ring.reader.created_at_us))
    node.rings = current + others


def _lock(directory: Path, clock: Clock) -> int:
    file = os.open(directory / AGENT_LOCK, os.O_RDWR | os.O_CREAT, 0o660)
    for attempt in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a starting recorder looks at the lock for a moment
            if attempt < _LOCK_ATTEMPTS - 1:
                clock.sleep(_LOCK_PAUSE_SECONDS)
        else:
            return file
    os.close(file)
    raise AgentLockedError(
        f"Another agent serves {directory}.",
        why=f"It holds {AGENT_LOCK} there.",
        next_step="Stop it first, or give this one another folder.",
    )
