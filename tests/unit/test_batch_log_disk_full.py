import json
import subprocess
import sys
from pathlib import Path

from moescope.core.batchlog import BatchLogReader

# The limit on file size stands in for a full disk: the kernel writes what fits and then refuses.
CHILD = """
import json, resource, signal, sys
from pathlib import Path
from moescope.core.batchlog import BatchLogWriteError, BatchLogWriter, Entry

root, limit = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = BatchLogWriter(root, "node")
segment = root / "node" / "00000000000000000000.seg"
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
report = {"refused": []}
report["first"] = list(writer.append_many([Entry(bytes([n]) * 52) for n in range(3)]))
for first in (3, 5):
    try:
        writer.append_many([Entry(bytes([n]) * 52) for n in range(first, 12)])
    except BatchLogWriteError as error:
        report["refused"].append([error.appended, error.retriable, segment.stat().st_size])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
report["after"] = writer.append(bytes([5]) * 52)
writer.seal()
print(json.dumps(report))
"""


def test_full_disk_leaves_whole_frames_and_appending_goes_on(tmp_path: Path) -> None:
    """A full disk is a retriable error that says what is in the log; nothing is lost or torn."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), "550"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report == {
        "first": [0, 1, 2],
        "refused": [[2, True, 500], [0, True, 500]],
        "after": 5,
    }
    with BatchLogReader(tmp_path, "node") as reader:
        found = reader.read(0)
    assert [(r.offset, r.payload) for r in found.records] == [
        (n, bytes([n]) * 52) for n in range(6)
    ]
    assert (found.corrupt, found.gap) == ([], None)
