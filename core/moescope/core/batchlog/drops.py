"""The ledger of what the byte cap removed from a partition, exact across crashes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from moescope.core.batchlog.files import field, read_json, write_json_atomically

if TYPE_CHECKING:
    from pathlib import Path

_FILE: Final = "drops.json"


@dataclass(frozen=True, slots=True)
class DropLedger:
    """Totals since the partition was created.

    Attributes:
        first_offset: Every record below it is gone.
        dropped_records: Records that went before every cursor had passed them.
        dropped_bytes: Bytes of their frames.
        released_records: Records that went after every cursor had passed them.
        released_bytes: Bytes of their frames.
        last_ring_to: Ring position up to which the log had recorded when it last removed something.
    """

    first_offset: int = 0
    dropped_records: int = 0
    dropped_bytes: int = 0
    released_records: int = 0
    released_bytes: int = 0
    last_ring_to: int = 0


def read_drops(path: Path) -> DropLedger:
    """The ledger of the partition in a folder.

    Raises:
        BatchLogFormatError: The ledger is damaged.
        BatchLogReadError: It cannot be read.
    """
    file = path / _FILE
    document = read_json(file)
    if document is None:
        return DropLedger()
    return DropLedger(**{name: field(file, document, name, int) for name in asdict(DropLedger())})


def write_drops(path: Path, ledger: DropLedger) -> None:
    """Replace the ledger: before the segments go, so that a crash in between loses no count.

    Raises:
        OSError: The file system refused.
    """
    write_json_atomically(path / _FILE, asdict(ledger))
