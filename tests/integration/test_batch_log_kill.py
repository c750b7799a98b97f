import os
import signal
import subprocess
import sys
from pathlib import Path

from moescope.core.batchlog import BatchLogReader, BatchLogWriter

# Each payload follows from its offset, so that the parent can check it without the writer's help.
WRITER = """
import sys
from pathlib import Path
from moescope.core.batchlog import BatchLogWriter, Entry, WriterSettings

def payload(offset):
    return offset.to_bytes(8, "little") * (1 + offset % 2_000)

settings = WriterSettings(segment_bytes=200_000, durability=sys.argv[2])
writer = BatchLogWriter(Path(sys.argv[1]), "node", settings=settings)
stop = int(sys.argv[3])
while writer.next_offset < stop:
    first = writer.next_offset
    entries = [Entry(payload(n), n, n + 1) for n in range(first, first + 7)]
    print(writer.append_many(entries).stop, flush=True)
writer.seal()
"""


def payload(offset: int) -> bytes:
    """What the writer process appends at an offset."""
    return offset.to_bytes(8, "little") * (1 + offset % 2_000)


def start_writer(root: Path, durability: str, stop: int) -> subprocess.Popen[str]:
    """A process that appends and prints each acknowledged end offset."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), durability, str(stop)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    """After kill -9 at arbitrary moments, acknowledged records are there, dense and intact."""
    acknowledged = 0
    for kill in range(10):
        with start_writer(tmp_path, "none", 10**9) as process:
            assert process.stdout is not None
            for _ in range(3 + 11 * kill):
                acknowledged = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, process.stdout.read().split()[:-1])])
        with BatchLogReader(tmp_path, "node") as reader:
            assert reader.end_offset() >= acknowledged
    with BatchLogWriter(tmp_path, "node") as writer:
        end = writer.next_offset
        assert writer.last_ring_to() == end
        writer.seal()
    with BatchLogReader(tmp_path, "node") as reader:
        offset = 0
        while not reader.is_finished(offset):
            found = reader.read(offset)
            assert (found.gap, found.corrupt) == (None, [])
            for record in found.records:
                assert (record.offset, record.payload) == (offset, payload(offset))
                offset += 1
    assert offset == end >= acknowledged


def test_reader_beside_a_writing_process_sees_every_record_once(tmp_path: Path) -> None:
    """A consumer that reads while another process appends and rolls gets whole records in order."""
    with start_writer(tmp_path, "batch", 700) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == 7
        offset = 0
        with BatchLogReader(tmp_path, "node") as reader:
            while not reader.is_finished(offset):
                found = reader.read(offset, max_records=50)
                assert (found.gap, found.corrupt) == (None, [])
                for record in found.records:
                    assert (record.offset, record.payload) == (offset, payload(offset))
                    offset += 1
                if not found.records:
                    process.stdout.readline()  # wait for the next acknowledged append
        process.stdout.read()
        assert process.wait(timeout=60) == 0
    assert offset == 700
