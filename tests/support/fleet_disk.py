"""A small disk that can be filled: a tmpfs of its own, gone with the process that holds it.

Where nothing may be mounted, a limit on the size of files stands in for it: the kernel refuses
to let any file of a process grow.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from support.fleet_processes import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.fleet_processes import FleetProcess, Nursery

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_BALLAST = "ballast"
_PIECE = 4096


def _checked(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(folder: Path, size: int) -> None:
    """Give this process a view of the files of its own, with a tmpfs at the folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")
    options = f"size={size}".encode()
    _checked(libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, options), "mount")


def can_mount() -> bool:
    """Whether a process here may mount: found out by a child that tries."""
    child = os.fork()
    if not child:
        code = 1
        try:
            _mount(Path("/tmp"), 1 << 20)  # noqa: S108 (in a view of its own)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def hold_disk(folder: Path, size: int, ready: Path) -> None:
    """Mount a disk and keep it until the process is ended."""
    _mount(folder, size)
    ready.touch()
    while True:
        signal.pause()


def enter_disk(holder: int) -> None:
    """See the disk that another process holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{holder}/ns/mnt") as namespace:  # noqa: PTH123 (a descriptor is needed)
        _checked(libc.setns(namespace.fileno(), _CLONE_NEWNS), "setns")


class SmallDisk:
    """A folder with little room.

    Args:
        nursery: Makes the process that holds it.
        name: Of that process.
        folder: Becomes a disk of its own, where that is allowed.
        size: Its bytes.
    """

    def __init__(self, nursery: Nursery, name: str, folder: Path, size: int) -> None:
        self._folder = folder
        self._limited: list[int] = []
        self._holder: FleetProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)
        if can_mount():
            ready = folder.with_name(f"{folder.name}.ready")
            self._holder = nursery.start(name, hold_disk, folder, size, ready)
            wait_for("a disk", ready.exists, 30)

    @property
    def holder(self) -> int:
        """The process that holds it; 0: there is no disk of its own."""
        return 0 if self._holder is None else self._holder.pid

    @property
    def seen_folder(self) -> Path:
        """The folder as seen from here."""
        if not self.holder:
            return self._folder
        return Path(f"/proc/{self.holder}/root") / self._folder.relative_to("/")

    def fill(self, processes: Iterable[FleetProcess]) -> None:
        """Leave no room for these processes."""
        if not self.holder:
            largest = max((one.stat().st_size for one in _files(self._folder)), default=0)
            for process in processes:
                # What is written now may not grow; the log of the process is smaller.
                resource.prlimit(
                    process.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY)
                )
                self._limited.append(process.pid)
            return
        with (self.seen_folder / _BALLAST).open("ab", buffering=0) as ballast:
            for piece in (16 << 20, 1 << 20, 64 << 10, _PIECE, 1):
                _grow_until_full(ballast.fileno(), piece)

    def free(self) -> None:
        """Make room again."""
        for pid in self._limited:
            both = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, both)
        self._limited.clear()
        (self.seen_folder / _BALLAST).unlink(missing_ok=True)

    def keep_full(self, processes: Iterable[FleetProcess], seconds: float) -> None:
        """Take whatever room appears for so many seconds, then make room."""
        living = list(processes)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.fill(living)
            time.sleep(0.1)
        self.free()


def _grow_until_full(descriptor: int, piece: int) -> None:
    while True:
        try:
            os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, piece)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


def _files(folder: Path) -> Iterable[Path]:
    return (one for one in folder.rglob("*") if one.is_file())
