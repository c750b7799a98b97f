"""Imports that are killed, or have no room on the disk: run again, nothing is lost or twice."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import MOESCOPE, TIMEOUT_SECONDS, environment, moescope, query
from support.decoded_logs import log_of

from moescope.console.import_work import GO_ON
from moescope.core.batchlog import BatchLogReader, partition_names
from moescope.producers.importers import batching, import_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EXPERTS = 16
BATCH_BYTES = 4_096
OPTIONS = {"experts": str(EXPERTS)}
WINDOWS = (
    "SELECT phase, window_kind, scope_kind, size, request, start, layer, seen, complete,"
    " close_reason, counts FROM windows ORDER BY ALL"
)
IMPORT = """
import sys
from pathlib import Path
from moescope.producers.importers import batching, import_files, importing

batching.BATCH_BYTES = int(sys.argv[3])

class Told(importing.BatchLogWriter):
    def append(self, *arguments, **named):
        offset = super().append(*arguments, **named)
        print(offset, flush=True)
        return offset

    def seal(self):
        print("sealing", flush=True)
        super().seal()
        print("sealed", flush=True)

importing.BatchLogWriter = Told
print("begin", flush=True)
import_files("jsonl", [Path(sys.argv[1])], Path(sys.argv[2]), {"experts": "16"})
"""
"""An import that tells each of its steps."""

HASTY = """
import sys
from moescope.console.main import main
from moescope.processors.pipeline import Pipeline

Pipeline.__init__.__kwdefaults__["retry_seconds"] = 1.0
sys.argv[0] = "moescope"
sys.exit(main())
"""
"""The command, whose commits are not tried again for a whole minute."""


def rows_file(folder: Path, tokens: int, *, bad_lines: int = 0) -> Path:
    """Three requests in turn, two layers, and some lines that are rejected."""
    draw = random.Random(3)
    lines = [
        {
            "request": f"r{number % 3}",
            "position": number // 3,
            "time": 1_800_000_000 + number / 100,
            "experts": [draw.sample(range(EXPERTS), 2) for _ in range(2)],
        }
        for number in range(tokens)
    ]
    path = folder / "rows.jsonl"
    text = "\n".join(map(json.dumps, lines)) + "\n" + "no line\n" * bad_lines
    path.write_text(text, encoding="utf-8")
    return path


def payloads(root: Path) -> dict[str, list[bytes]]:
    """Records of all partitions, which have to be sealed and whole."""
    found = {}
    for name in partition_names(root):
        with BatchLogReader(root, name) as reader:
            assert reader.is_sealed()
        found[name] = [item.record.payload for item in log_of(root)[name]]
    return found


def interrupted(path: Path, log: Path, steps: int) -> list[str]:
    """Start an import, kill it after so many of its steps, and return all that it took."""
    with subprocess.Popen(
        [sys.executable, "-c", IMPORT, path, log, str(BATCH_BYTES)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        told = [process.stdout.readline().strip() for _ in range(steps)]
        os.kill(process.pid, signal.SIGKILL)
        return told + process.stdout.read().split()


def test_an_import_that_is_killed_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any step, and several times: the log is that of an import that nobody disturbed."""
    monkeypatch.setattr(batching, "BATCH_BYTES", BATCH_BYTES)
    path = rows_file(tmp_path, 3_000, bad_lines=3)
    import_files("jsonl", [path], tmp_path / "whole", OPTIONS)
    whole = payloads(tmp_path / "whole")
    [batches] = whole.values()
    steps = len(batches) + 3
    assert len(batches) > 20
    for kill_at in (1, 2, 3, len(batches) // 2, len(batches) + 1, steps - 1, steps):
        log = tmp_path / f"log-{kill_at}"
        log.mkdir()
        assert interrupted(path, log, kill_at)[0] == "begin"
        report = import_files("jsonl", [path], log, OPTIONS)
        assert payloads(log) == whole, kill_at
        assert report.files[0].already_imported or report.rejected == 3
    again = tmp_path / "again"
    again.mkdir()
    # Each try finds a few batches more; the process may come further before it is killed.
    for _ in range(4):
        interrupted(path, again, 4)
    assert import_files("jsonl", [path], again, OPTIONS).rows in {0, 3_000}
    assert payloads(again) == whole


def test_the_same_file_twice_in_one_import_is_one(tmp_path: Path) -> None:
    """Named twice, or a copy of it: rows are there once."""
    path = rows_file(tmp_path, 30)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    report = import_files("jsonl", [path, path, copy], tmp_path / "log", OPTIONS)
    assert [file.already_imported for file in report.files] == [False, True, True]
    assert report.rows == 30
    assert len(payloads(tmp_path / "log")) == 1


def command(path: Path, data: Path) -> list[str]:
    """What a person types."""
    return ["import", "jsonl", str(path), "-o", f"experts={EXPERTS}", "--data", str(data), "--json"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A file, and the windows of an import of it that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    path = rows_file(folder, 6_000)
    moescope(*command(path, folder / "data"), folder=folder)
    windows = query(folder / "data", WINDOWS)
    assert sum(row["seen"] for row in windows if row["window_kind"] == "task") == 12_000
    return path, windows


@pytest.mark.parametrize(
    ("moment", "later"),
    [
        (lambda data: any((data / "log").glob("import-*")), 0.0),
        (lambda data: (data / "moescope.duckdb").exists(), 0.3),
        (lambda data: (data / "moescope.duckdb.wal").exists(), 0.05),
    ],
    ids=["while it writes", "behind the opened store", "while it commits"],
)
def test_a_command_that_is_killed_is_run_again(
    whole: tuple[Path, list[dict[str, Any]]],
    tmp_path: Path,
    moment: Callable[[Path], bool],
    later: float,
) -> None:
    """Killed while it writes or processes, the same command makes the same windows."""
    path, windows = whole
    data = tmp_path / "data"
    with subprocess.Popen(
        [MOESCOPE, *command(path, data)], cwd=tmp_path, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not moment(data) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(later)
        process.kill()
    moescope(*command(path, data), folder=tmp_path)
    told = json.loads(moescope(*command(path, data), folder=tmp_path).stdout)
    assert told["already_imported"] == [str(path)]
    assert told["processed_from_earlier"] == 0
    assert query(data, WINDOWS) == windows


@pytest.mark.parametrize("room", [5_000, 300_000])
def test_an_import_without_room_says_so_and_is_whole_with_it(
    whole: tuple[Path, list[dict[str, Any]]], tmp_path: Path, room: int
) -> None:
    """The disk is full amid the log or the store: an error with a way on, and no half import."""
    path, windows = whole
    data = tmp_path / "data"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    failed = subprocess.run(
        [sys.executable, "-c", HASTY, *command(path, data)],
        cwd=tmp_path, env=environment(), preexec_fn=limit,
        check=False, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert failed.returncode, failed.stderr
    assert failed.stderr.count("Traceback") == 0
    assert "internal error" not in failed.stderr
    assert "Next: " in failed.stderr
    assert "File too large" in failed.stderr
    assert GO_ON in failed.stderr
    moescope(*command(path, data), folder=tmp_path)
    assert query(data, WINDOWS) == windows
