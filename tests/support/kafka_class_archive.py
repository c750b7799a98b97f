"""Java's archive of Kafka's loaded classes: a start takes little more than half the processor time.

Measured on two shared cores: format and start take 5.4 s without, 3.1 s with. It is
made once, from a broker that is started and stopped; Java ignores one that does not fit its
version or the jars.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from tempfile import TemporaryDirectory

from support.kafka_broker import CLASS_ARCHIVE, KafkaBroker

# Java writes 50 MB before it ends.
_DUMP_SECONDS = 90.0


def ensure_class_archive() -> None:
    """Make the archive unless it is there; where another process makes it, wait for that."""
    if CLASS_ARCHIVE.exists():
        return
    with CLASS_ARCHIVE.with_suffix(".lock").open("ab") as lock, TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if CLASS_ARCHIVE.exists():
            return
        fresh = CLASS_ARCHIVE.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        options = [f"-XX:ArchiveClassesAtExit={fresh}"]
        with KafkaBroker(Path(folder), java_options=options) as broker:
            broker.stop(seconds=_DUMP_SECONDS)
        # Without one, brokers start all the same.
        if fresh.exists():
            fresh.rename(CLASS_ARCHIVE)
