"""The batch log: the agent's spool before Kafka, and the transport on one machine.

An append-only, checksummed, bounded log of opaque records per partition; one writer, any number of
readers, in any processes. The files are described in docs/reference/batch-log-format.md.
"""

from moescope.core.batchlog.cursor import Cursor, cursor_offsets
from moescope.core.batchlog.drops import DropLedger
from moescope.core.batchlog.entries import Entry
from moescope.core.batchlog.errors import (
    BatchLogAppendError,
    BatchLogError,
    BatchLogFormatError,
    BatchLogFullError,
    BatchLogLockedError,
    BatchLogReadError,
    BatchLogSealedError,
    BatchLogSyncError,
    BatchLogUsageError,
    BatchLogWriteError,
    PartitionNotFoundError,
    PayloadTooLargeError,
)
from moescope.core.batchlog.frames import HEADER_BYTES, MAX_PAYLOAD_BYTES, LogRecord
from moescope.core.batchlog.listing import PartitionInfo, list_partitions
from moescope.core.batchlog.partition import (
    LIVE_DOMAIN,
    AppendClock,
    PartitionMeta,
    partition_names,
    partition_path,
)
from moescope.core.batchlog.reader import BatchLogReader, Gap, ReadResult
from moescope.core.batchlog.recovery import Recovery
from moescope.core.batchlog.scan import CorruptRange
from moescope.core.batchlog.settings import CapPolicy, Durability, WriterSettings
from moescope.core.batchlog.writer import BatchLogWriter

__all__ = [
    "HEADER_BYTES",
    "LIVE_DOMAIN",
    "MAX_PAYLOAD_BYTES",
    "AppendClock",
    "BatchLogAppendError",
    "BatchLogError",
    "BatchLogFormatError",
    "BatchLogFullError",
    "BatchLogLockedError",
    "BatchLogReadError",
    "BatchLogReader",
    "BatchLogSealedError",
    "BatchLogSyncError",
    "BatchLogUsageError",
    "BatchLogWriteError",
    "BatchLogWriter",
    "CapPolicy",
    "CorruptRange",
    "Cursor",
    "DropLedger",
    "Durability",
    "Entry",
    "Gap",
    "LogRecord",
    "PartitionInfo",
    "PartitionMeta",
    "PartitionNotFoundError",
    "PayloadTooLargeError",
    "ReadResult",
    "Recovery",
    "WriterSettings",
    "cursor_offsets",
    "list_partitions",
    "partition_names",
    "partition_path",
]
