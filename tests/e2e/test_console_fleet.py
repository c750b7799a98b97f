from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from support.command_line import MOESCOPE, TIMEOUT_SECONDS, environment, moescope, query

if TYPE_CHECKING:
    from pathlib import Path

SUMS = """
    WITH first_layer AS (SELECT * FROM windows WHERE layer = (SELECT min(layer) FROM windows))
    SELECT
        (SELECT sum(accepted_rows)::BIGINT FROM batches) AS accepted,
        (SELECT sum(lost_rows)::BIGINT FROM batches) AS lost_rows,
        (SELECT count(*) FROM dead_letters) AS dead_letters,
        (SELECT count(DISTINCT request) FROM windows WHERE window_kind = 'token') AS requests,
        (SELECT map_from_entries(list(entry)) FROM (
            SELECT {'k': concat_ws(' ', window_kind, size, scope_kind), 'v': sum(seen)::BIGINT}
                AS entry
            FROM first_layer GROUP BY window_kind, size, scope_kind
        )) AS seen,
        (SELECT map_from_entries(list(entry)) FROM (
            SELECT {'k': concat_ws(' ', window_kind, size, scope_kind),
                    'v': sum(list_sum(counts))::BIGINT} AS entry
            FROM windows GROUP BY window_kind, size, scope_kind
        )) AS assignments
"""

KINDS = {
    *(f"token {size} all" for size in (128, 256, 512)),
    *(f"time {s}000000 {scope}" for s in (1, 5, 60) for scope in ("all", "node", "scene")),
    "task 0 all",
}


RUN = ("run", "all", "--data", "data", "--json")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A simulated fleet, processed with an interruption, and what the simulator says of it."""
    folder = tmp_path_factory.mktemp("fleet")
    simulated = json.loads(
        moescope(
            "simulate", "healthy", "--duration", "60", "--nodes", "2", "--data", "data", "--json",
            folder=folder,
        ).stdout
    )  # fmt: skip
    first = interrupted_run(folder)
    rest = json.loads(moescope(*RUN, "--until-idle", folder=folder).stdout)
    # What an open window still needs is read again: that may be more than what was left.
    assert first["records"] + rest["records"] >= simulated["batches"]
    return folder / "data", simulated


def interrupted_run(folder: Path) -> dict[str, Any]:
    """Totals of a run that is stopped with Ctrl-C once something is committed and exported."""
    process = subprocess.Popen(
        [MOESCOPE, *RUN],
        cwd=folder,
        env=environment({"MOESCOPE_PROCESSOR_COMMIT_RECORDS": "8"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while not (folder / "data/export/manifest.json").exists() and time.monotonic() < give_up:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, noted = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, noted
    assert "Traceback" not in noted
    totals: dict[str, Any] = json.loads(printed)
    assert totals["records"] > 0
    return totals


def sums(data: Path) -> dict[str, Any]:
    """The sums of a data directory or of an export."""
    (row,) = query(data, SUMS)
    return {**row, "seen": dict(row["seen"]), "assignments": dict(row["assignments"])}


def test_every_kind_of_window_holds_the_whole_simulation(
    fleet: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Each token and assignment is in one window per kind, size and scope; an export agrees."""
    data, simulated = fleet
    stored = sums(data)
    assert stored == {
        "accepted": simulated["tokens"],
        "requests": simulated["requests"],
        "lost_rows": 0,
        "dead_letters": 0,
        "seen": dict.fromkeys(KINDS, simulated["tokens"]),
        "assignments": dict.fromkeys(KINDS, simulated["assignments"]),
    }
    told = moescope("store", "export", "copy", "--data", data, "--json", folder=tmp_path)
    assert "windows" in json.loads(told.stdout)["files"]
    assert sums(tmp_path / "copy") == stored
    refused = moescope("store", "export", "copy", "--data", data, folder=tmp_path, expect=2)
    assert "empty" in refused.stderr


def test_migrating_asks_only_when_there_is_something_to_do(
    fleet: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """A store that is up to date stays as it is, unasked; one that is not waits for a yes."""
    data, _ = fleet
    words = ("store", "migrate", "--json")
    current = json.loads(moescope(*words, "--data", data, folder=tmp_path).stdout)
    assert current["migrations_applied"] == []
    duckdb.connect(tmp_path / "moescope.duckdb").close()
    here = (*words, "--data", tmp_path)
    refused = moescope(*here, folder=tmp_path, answers="n\n", expect=2)
    assert "Nothing was done" in refused.stderr
    done = json.loads(moescope(*here, folder=tmp_path, answers="y\n").stdout)
    assert done["migrations_applied"]
    assert json.loads(moescope(*here, folder=tmp_path).stdout)["migrations_applied"] == []


def test_doctor_tells_a_healthy_folder_from_a_broken_store(
    fleet: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """`doctor` ends with 0 when everything works, and with 1 and a next step when it does not."""
    data, _ = fleet
    healthy = json.loads(moescope("doctor", "--data", data, "--json", folder=tmp_path).stdout)
    outcomes = {finding["check"]: finding["outcome"] for finding in healthy}
    assert {outcomes[name] for name in ("store", "batch logs", "export", "kernels")} == {"ok"}
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "moescope.duckdb").write_bytes(b"no database " * 1000)
    broken = moescope("doctor", "--data", "broken", folder=tmp_path, expect=1)
    (line,) = [line for line in broken.stdout.splitlines() if line.startswith("FAIL")]
    assert line.startswith("FAIL  store:")
    assert "next:" in broken.stdout


def test_output_formats(fleet: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """CSV from a statement on standard input; a query that writes is refused."""
    data, simulated = fleet
    text = "SELECT node, sum(accepted_rows) AS n FROM batches GROUP BY 1 ORDER BY 1"
    words = ("sql", "--data", data, "--format", "csv", "-")
    lines = moescope(*words, folder=tmp_path, answers=text).stdout.splitlines()
    assert lines[0] == "node,n"
    assert [line.split(",")[0] for line in lines[1:]] == ["sim-000", "sim-001"]
    assert sum(int(line.split(",")[1]) for line in lines[1:]) == simulated["tokens"]
    refused = moescope("sql", "--data", data, "drop table windows", folder=tmp_path, expect=2)
    assert refused.stdout == ""


def test_the_demo_sees_every_token(small_demo: tuple[Path, dict[str, Any]]) -> None:
    """What the demo's windows hold is what was played and simulated."""
    folder, result = small_demo
    simulated, replayed = result["simulated"], result["replayed"]
    seen = query(
        folder / "demo-data",
        "SELECT model, sum(tokens)::BIGINT AS n FROM windows WHERE window_kind = 'time'"
        " AND size = 60000000 AND scope_kind = 'all' AND layer = 0 GROUP BY ALL ORDER BY ALL",
    )
    played = simulated["tokens"], replayed["rows"]
    assert [row["n"] for row in seen] == list(played)
    assert replayed["rows"] > 0
    assert result["processed"]["records"] == simulated["batches"] + replayed["records"]
    assert result["processed"]["dead_letters"] == 0


def test_the_demo_keeps_score(small_demo: tuple[Path, dict[str, Any]]) -> None:
    """Thresholds come from the job, incidents have verdicts, and commands show all of it."""
    folder, result = small_demo
    data = folder / "demo-data"
    (versions, models) = zip(
        *((row["version"], row["model"]) for row in result["facts"]["thresholds"]), strict=True
    )
    assert set(models) == {"simulated-moe", "tiny-moe"}
    played = {each["stretch"]["name"]: each for each in result["outcomes"]}
    assert played.keys() >= {"few_shot_with", "few_shot_without", "hot_expert"}
    assert all(each["verdict"] for each in played.values())
    judged = [each["shown"]["token:128"]["windows"] for each in played.values()]
    assert sum(map(bool, judged)) > len(judged) / 2
    assert result["facts"]["few_shot"]["questions"] > 0
    listed = moescope("threshold", "list", "--data", data, folder=folder).stdout
    assert all(version in listed for version in versions)
    jobs = moescope("job", "list", "--data", data, folder=folder).stdout
    assert "calibrate" in jobs
    assert sorted(path.name for path in (data / "reports").glob("*.html")) == [
        f"calibration-{version}.html" for version in versions
    ]


def test_the_demo_comes_out_the_same_each_time(
    small_demo: tuple[Path, dict[str, Any]], another_demo: tuple[Path, dict[str, Any]]
) -> None:
    """Windows, levels, names and pages follow from event times, never from the machine's pace."""
    (_, first), (_, second) = small_demo, another_demo
    assert second["outcomes"] == first["outcomes"]
    assert second["facts"] == first["facts"]


def test_the_demo_replaces_only_its_own_folder(tmp_path: Path) -> None:
    """A folder that no demo made is left alone, however it came about."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").write_text("years of work")
    refused = moescope("demo", "--data", "demo", folder=tmp_path, expect=2)
    assert "--data" in refused.stderr
    assert (tmp_path / "demo" / "thesis.txt").read_text() == "years of work"
