"""The recorder's folder: node names that are taken, and rings that nobody came to read."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shlex
import stat
import tempfile
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

from moescope.core.errors import MoescopeError
from moescope.producers.profile import Profile
from moescope.producers.ring.errors import RingCreateError
from moescope.producers.ring.layout import RING_SUFFIX, UNFINISHED_SUFFIX, Geometry
from moescope.producers.ring.reader import RingReader, is_locked
from moescope.producers.ring.writer import RingWriter

AGENT_LOCK: Final = "agent.lock"
"""Held by the agent of the folder."""

UNREAD_RINGS_KEPT: Final = 3
_MOST_NODES: Final = 1_024
_UNFINISHED_SECONDS: Final = 60.0
_TRIAL_PREFIX: Final = ".moescope-check-"

_log = logging.getLogger("moescope.producers")


def open_ring(
    directory: Path,
    profile: Profile,
    geometry: Geometry,
    *,
    node: str | None,
    incarnation: int | None,
    now_us: int,
) -> tuple[RingWriter, Profile, int]:
    """Make a recorder's ring in its folder.

    Args:
        directory: The folder, created if need be.
        profile: What the recorder says about itself, but for its node.
        geometry: Of the ring.
        node: Name of the producer, or None for the host's.
        incarnation: Boot id; random by default.
        now_us: The recorder's clock.

    Returns:
        The ring, the profile in it, and the file that holds the node's name.

    Raises:
        RingCreateError: The folder cannot be written or has no room for the ring.
        RingSettingsError: The profile is too long.
    """
    try:
        make_folder(directory)
        name, node_file = take_node(directory, node or default_node(directory))
    except OSError as error:
        raise _unusable(directory, error) from error
    profile = replace(profile, node=name)
    try:
        remove_unfinished_rings(directory, node_file)
        ring = RingWriter(
            directory,
            int.from_bytes(os.urandom(8), "little") if incarnation is None else incarnation,
            profile.to_bytes(),
            geometry,
            created_at_us=now_us,
            inherited_rows=remove_unread_rings(directory, name),
        )
    except BaseException:
        os.close(node_file)
        raise
    return ring, profile, node_file


def make_folder(directory: Path) -> None:
    """Make a folder of rings, unless it is there.

    Raises:
        RingCreateError: It cannot be made, or is a link to a folder that is gone.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(directory, error) from error


def check_folder(directory: Path) -> None:
    """Say why a recorder could not use a folder, by trying it: what is made for that is removed.

    Raises:
        RingCreateError: It is no folder, or this user cannot make it or write there.
    """
    place = directory.absolute()
    try:
        while not _is_there(place):
            place = place.parent
        if not stat.S_ISDIR(place.stat().st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))  # noqa: TRY301 - told as the others are
        # Permissions tell only half: in /proc root may do all of it, and nothing can be made.
        with tempfile.TemporaryFile(dir=place):
            pass
        with tempfile.TemporaryDirectory(dir=place, prefix=_TRIAL_PREFIX) as trial:
            missing = directory.absolute().relative_to(place)
            (Path(trial) / missing).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(directory, error) from error


def _is_there(place: Path) -> bool:
    """Whether there is anything of that name: a link to nothing, too, where no folder can be made.

    Raises:
        OSError: This user may not know.
    """
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _unusable(directory: Path, error: OSError) -> RingCreateError:
    what = f"Recorder and agent cannot use the folder {directory}."
    for link in (directory, *directory.parents):
        target = os.path.realpath(link)
        # Of such a link the system says "File exists". These functions of `os` never raise.
        if os.path.islink(link) and not os.path.lexists(target):  # noqa: PTH114 - pathlib's may raise
            return RingCreateError(
                what,
                why=f"{link} is a link to {target}, which is not there. In a memory file system "
                "nothing outlasts a reboot.",
                next_step=f"Create it: mkdir -p {shlex.quote(target)}",
            )
    return RingCreateError(
        what,
        why=error.strerror or str(error),
        next_step="Create it, or let the user of the engine and of the agent write there.",
    )


def default_node(directory: Path) -> str:
    """A name that another folder or host does not have, and that a restart finds again."""
    folder = blake2b(str(directory.resolve()).encode(), digest_size=3).hexdigest()
    return f"{os.uname().nodename}-{folder}"


def take_node(directory: Path, node: str) -> tuple[str, int]:
    """Take a node's name for as long as the returned file stays open.

    A living recorder of the folder may have it: then the name gets a number, since two producers
    under one name would hide each other's silence.

    Returns:
        The name, and the file that holds it.

    Raises:
        OSError: The folder cannot be written.
    """
    for number in range(_MOST_NODES):
        name = f"{node}.{number}" if number else node
        digest = blake2b(name.encode(), digest_size=8).hexdigest()
        file = os.open(directory / f"node-{digest}.lock", os.O_RDWR | os.O_CREAT, 0o660)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            continue
        if number:
            _log.warning(
                "Node %r is recorded by another living recorder (of this process, or of another): "
                "this one is %r. Next: close() the other, or name each (node=, MOESCOPE_NODE).",
                node,
                name,
            )
        return name, file
    raise OSError(f"{_MOST_NODES} recorders are running in {directory}")


def remove_unread_rings(directory: Path, node: str) -> int:
    """Make room: of a node's dead rings keep the newest, unless an agent runs and drains them.

    An engine that restarts in a loop beside a dead agent would fill the disk otherwise.

    Returns:
        Rows that were removed unread.
    """
    if _agent_runs(directory):
        return 0
    dead: list[tuple[int, Path, int]] = []
    for path in directory.glob(f"*{RING_SUFFIX}"):
        with contextlib.suppress(MoescopeError, OSError):
            ring = RingReader(path)
            try:
                profile = Profile.from_bytes(ring.profile)
                if ring.has_ended and profile.node == node:
                    ring.check(profile.shape)
                    notes = ring.notes()
                    # An engine that is killed between two words leaves fewer rows than were read.
                    unread = max(0, ring.total_rows - (notes[-1].rows if notes else 0))
                    unread += max(0, ring.unseen_rows - (notes[-1].unseen_rows if notes else 0))
                    if not (notes and notes[-1].inherited):
                        unread += ring.inherited_rows
                    dead.append((ring.created_at_us, path, unread))
            finally:
                ring.close()
    removed = 0
    for _, path, unread in sorted(dead)[: max(0, len(dead) - UNREAD_RINGS_KEPT)]:
        with contextlib.suppress(OSError):
            path.unlink()
            removed += unread
            _log.warning("Removed the ring %s: no agent came for its %d rows.", path.name, unread)
    return removed


def remove_unfinished_rings(directory: Path, node_file: int) -> None:
    """Remove what engines left that were killed while they made their ring."""
    os.utime(node_file)
    now = os.fstat(node_file).st_mtime  # the file system's own clock
    for path in directory.glob(f"*{UNFINISHED_SUFFIX}"):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDWR)
            try:
                if now - os.fstat(file).st_mtime > _UNFINISHED_SECONDS and not is_locked(file):
                    path.unlink()
            finally:
                os.close(file)


def _agent_runs(directory: Path) -> bool:
    try:
        file = os.open(directory / AGENT_LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        return is_locked(file)
    finally:
        os.close(file)
