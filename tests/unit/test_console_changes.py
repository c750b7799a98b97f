from __future__ import annotations

import json
from typing import Any

import pytest

from moescope.console.alert_lines import alert_line
from moescope.console.changes import (
    CHANGES,
    ActivateThresholds,
    CalibrateThresholds,
    Change,
    CreateBaseline,
    Order,
    PauseJob,
    ResumeJob,
    RollBackThresholds,
    RunJob,
    SendTestAlert,
    WriteReport,
)
from moescope.console.times import shown, span_us, time_us
from moescope.core.errors import InputError

EXAMPLES: tuple[Change, ...] = (
    CreateBaseline(name="b"),
    CreateBaseline(name="b", from_us=1, to_us=2, nodes=("a", "b"), without_spans=((3, 4), (5, 6))),
    CalibrateThresholds(baseline="b", activate=True),
    ActivateThresholds(version="t-1"),
    ActivateThresholds(version="t-1", from_us=7),
    RollBackThresholds(model="m"),
    SendTestAlert(),
    WriteReport(version="", folder="/out"),
    RunJob(job="export"),
    PauseJob(job="export"),
    ResumeJob(job="export"),
)


@pytest.mark.parametrize("change", EXAMPLES, ids=str)
def test_a_change_survives_the_spool(change: Change) -> None:
    """What the owner reads is what the command line meant, of every kind."""
    order = Order(change=change, author="ann", reason="why")
    assert Order.of_document(json.loads(json.dumps(order.to_document()))) == order
    assert {type(each) for each in EXAMPLES} == set(CHANGES.values())


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"action": "store erase"},
        {"action": "job run", "arguments": {"job": 7}},
        {"action": "job run", "arguments": {}},
        {"action": "job run", "arguments": {"job": "a", "shell": "b"}},
        {"action": "threshold activate", "arguments": {"version": "t-1", "from_us": "1"}},
        {"action": "threshold activate", "arguments": {"version": "t-1", "from_us": True}},
        {"action": "threshold calibrate", "arguments": {"baseline": "b", "activate": 1}},
        {"action": "baseline create", "arguments": {"name": "b", "nodes": "abc"}},
        {"action": "baseline create", "arguments": {"name": "b", "without_spans": [[1]]}},
        {"action": "job run", "arguments": {"job": "a"}, "author": None},
    ],
)
def test_what_is_no_command_is_refused(document: dict[str, Any]) -> None:
    """A file of another version, or one that somebody wrote by hand, changes nothing."""
    with pytest.raises(InputError, match="does not understand"):
        Order.of_document({"author": "ann", "reason": "", **document})


def test_times_are_utc_unless_they_say_otherwise() -> None:
    """The same moment in two notations is the same number, and is shown as it is stored."""
    assert time_us("2026-11-30T10:00") == 1_796_032_800_000_000
    assert time_us("2026-11-30T11:00:00.5+01:00") == 1_796_032_800_500_000
    assert time_us("1969-12-31") == -86_400_000_000
    assert shown(1_796_032_800_000_000) == "2026-11-30 10:00:00"
    assert shown(None) == ""
    assert span_us("2026-11-30/2026-12-01") == (time_us("2026-11-30"), time_us("2026-12-01"))


@pytest.mark.parametrize("text", ["noon", "2026-13-01/2026-14-01", "2026-01-01", "b/a", "/"])
def test_spans_that_are_none_are_refused(text: str) -> None:
    """Wrong times are wrong use, with an example of a right one."""
    with pytest.raises(InputError):
        span_us(text)
    with pytest.raises(InputError, match="empty"):
        span_us("2026-01-02/2026-01-01")


def test_alerts_are_one_line_whatever_they_hold() -> None:
    """The summary of a notification, without what a terminal would obey; never an error."""
    body = json.dumps({"alert": "a1", "state": "firing", "summary": "m r1: load\x1b[2J firing"})
    assert alert_line(body) == "alert a1 firing: m r1: load\\x1b[2J firing"
    assert alert_line(json.dumps({"summary": "a test"})) == "a test"
    assert alert_line("no\njson") == "no\\njson"
    assert alert_line("[1]") == "[1]"
