from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import moescope, query
from support.small_fleet import SMALL_MODEL, SMALL_ROUTER

from moescope.core.clock import SystemClock
from moescope.producers.simulator import TrafficSpec, scenario_named, simulate

if TYPE_CHECKING:
    from pathlib import Path

SECOND_US = 1_000_000
HEALTHY_S, ILL_S = 600, 120
TRAFFIC = TrafficSpec(
    tasks_per_second=1.0, prompt_median=170, prompt_max=300, output_median=20, output_max=60
)
SETTINGS = {
    "MOESCOPE_CALIBRATION_BLOCK": "60",
    "MOESCOPE_CALIBRATION_RESAMPLES": "50",
    "MOESCOPE_WINDOWS_TOKEN": "128",
    "MOESCOPE_WINDOWS_TIME": "5",
    "MOESCOPE_ALERTS_BUDGET": "1000",
}


def told(*words: str | Path, data: Path, expect: int = 0) -> Any:
    """What a command prints as JSON."""
    outcome = moescope(
        *words, "--data", data, "--json", folder=data.parent, variables=SETTINGS, expect=expect
    )
    return json.loads(outcome.stdout)


def now_us() -> int:
    """The wall clock, in whole seconds."""
    return SystemClock().now_us() // SECOND_US * SECOND_US


def play(data: Path, prefix: str, start_us: int, *, router: int, duration_s: int) -> str:
    """Simulate a small fleet and roll it up; another router goes by the same revision."""
    scenario = replace(
        scenario_named("healthy"), model=SMALL_MODEL, router=SMALL_ROUTER, traffic=TRAFFIC
    )
    simulate(
        scenario,
        data / "log",
        seed=router,
        duration_s=duration_s,
        nodes=1,
        start_us=start_us,
        node_prefix=prefix,
    )
    words = ("run", "all", "--until-idle", "--data", data)
    return moescope(*words, folder=data.parent, variables=SETTINGS).stderr


def at(time_us: int) -> str:
    """A time as it is typed."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_us // SECOND_US))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A healthy stretch, thresholds made from it and in force, then another router unannounced.

    The data directory, the version, and what the owner noted about the second stretch. That one
    begins now, so that what fires is not history.
    """
    data = tmp_path_factory.mktemp("thresholds") / "data"
    (data / "log").mkdir(parents=True)
    begin_us = now_us() - (HEALTHY_S + 300) * SECOND_US
    end_us = begin_us + HEALTHY_S * SECOND_US
    play(data, "well", begin_us, router=0, duration_s=HEALTHY_S)
    refused = moescope(
        "threshold", "calibrate", "--yes", "--data", data, folder=data.parent, expect=2
    )
    assert "baseline create" in refused.stderr
    span = ("--from", at(begin_us), "--to", at(end_us))
    told("baseline", "create", "default", *span, "--yes", "--reason", "quiet", data=data)
    made = told("threshold", "calibrate", "--yes", data=data)
    (version,) = [each["version"] for each in made["made"]]
    told("threshold", "activate", version, "--yes", "--reason", "seen", data=data)
    return data, version, play(data, "ill", now_us(), router=1, duration_s=ILL_S)


def test_a_planted_fault_is_judged_and_paged(calibrated: tuple[Path, str, str]) -> None:
    """From a baseline to levels, exceedances, an alert with its metric, and a notification."""
    data, version, noted = calibrated
    levels = query(
        data,
        "SELECT node LIKE 'ill%' AS ill, level, count(*) AS n FROM windows"
        " WHERE window_kind = 'token' AND complete GROUP BY ALL",
    )
    assert {row["level"] for row in levels if not row["ill"]} == {"insufficient"}
    assert {row["level"] for row in levels if row["ill"]} >= {"healthy", "red"}
    assert query(data, "SELECT count(*) AS n FROM exceedances WHERE value > 0")[0]["n"] > 0
    alerts = told("alert", "list", "--all", data=data)
    assert ("routing", "routing_shift") in {(a["family"], a["worst_metric"]) for a in alerts}
    assert {alert["version"] for alert in alerts} == {version}
    shown = told("alert", "show", alerts[0]["alert"], data=data)
    assert "firing" in {event["state"] for event in shown["events"]}
    assert query(data, shown["window_sql"])[0]["level"] == "red"
    sent = query(data, "SELECT alert, delivered_at IS NOT NULL AS delivered FROM outbox")
    assert sent
    assert all(row["delivered"] for row in sent)
    for row in sent:
        assert f"alert {row['alert']} firing: " in noted


def test_versions_are_listed_compared_and_taken_back(calibrated: tuple[Path, str, str]) -> None:
    """What judges is visible, a second calibration can be compared, and a rollback ends judging."""
    data, version, _ = calibrated
    (listed,) = told("threshold", "list", data=data)
    assert (listed["version"], listed["status"], listed["baseline"]) == (
        version,
        "active",
        "default",
    )
    assert listed["effective_from_us"] is not None
    lines = told("threshold", "show", version, "--kind", "token", data=data)["lines"]
    assert lines
    assert {line["window_kind"] for line in lines} == {"token"}
    second = told("threshold", "calibrate", "--yes", data=data)["made"][0]["version"]
    moves = told("threshold", "diff", version, second, data=data)
    assert {(row["only_old"], row["only_new"]) for row in moves} == {(0, 0)}
    told("threshold", "rollback", "--yes", "--reason", "trying", data=data)
    states = {row["version"]: row["status"] for row in told("threshold", "list", data=data)}
    assert states[version] != "active"
    assert states[second] == "draft"
