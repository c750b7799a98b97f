from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from support.declared_rows import add_rows, empty_database

from moescope.console.demo.expectations import NOT_PRESENT, RECORDED, SIMULATED, Expectation
from moescope.console.demo.incidents import TINY_MOE, Stretch
from moescope.console.demo.plan import (
    MINUTE_US,
    RECORDINGS_START_US,
    SETTLING_US,
    read_recordings,
    timeline,
)
from moescope.console.demo.scorecard import WINDOW_KINDS, Outcome, Shown, outcomes
from moescope.console.demo.verdicts import AS_EXPECTED, TIME, TOKEN, verdict
from moescope.core.errors import InputError
from moescope.core.patterns import PATTERN_BY_NAME
from moescope.producers.simulator import scenario_named

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = Shown(10, 0, 4, 0, 0.0, None, "")
EVERYTHING = Shown(10, 10, 4, 4, 1.0, 5.0, "gini")


def outcome(expected: Expectation, values: dict[str, Any]) -> Outcome:
    """Four minutes in which nothing happened, but for the given values."""
    stretch = Stretch(name="x", model="m", start_us=0, end_us=4 * MINUTE_US, expected=expected)
    plain = Outcome(
        stretch=stretch,
        shown={f"{kind}:{size}": NOTHING for kind, size in WINDOW_KINDS},
        named_blocks={},
        pages=(),
        page_delay_s=None,
        uncovered_s=0,
    )
    return replace(plain, **values)


@pytest.mark.parametrize(
    ("expected", "values", "said"),
    [
        (NOT_PRESENT, {}, AS_EXPECTED),
        (NOT_PRESENT, {"pages": ("load in token windows",)}, "paged: load in token windows"),
        (NOT_PRESENT, {"named_blocks": {"fixed_prefix": 1}}, "fixed_prefix named in 1 of 4 min"),
        (NOT_PRESENT, {"named_blocks": {"mix_shift": 4}}, AS_EXPECTED),
        (Expectation(pattern="mix_shift"), {"named_blocks": {"mix_shift": 2}}, AS_EXPECTED),
        (
            Expectation(pattern="mix_shift"), {"named_blocks": {"mix_shift": 1}},
            "named in 1 of 4 min",
        ),
        (
            Expectation(pattern="periodic_pulse", experimental=True),
            {},
            "experimental: named in 0 of 4 min",
        ),
        (Expectation(pattern="few_shot_pull", paired=True), {}, "not shown"),
        (Expectation(pattern="few_shot_pull", paired=True), {"pulled": True}, AS_EXPECTED),
        (Expectation(pages=True), {}, "no page"),
        (Expectation(pages=True), {"joined": True}, "joined an open page"),
        (
            Expectation(pattern="mix_shift"),
            {"named_blocks": {"mix_shift": 4, "fixed_prefix": 1}},
            "fixed_prefix named in 1 of 4 min",
        ),
        (
            Expectation(pattern="mix_shift", companions=frozenset({"fixed_prefix"})),
            {"named_blocks": {"mix_shift": 4, "fixed_prefix": 1}},
            AS_EXPECTED,
        ),
        (Expectation(pages=True), {"page_delay_s": 5.0, "pages": ("x",)}, AS_EXPECTED),
        (Expectation(coverage=True), {}, "coverage did not drop"),
        (Expectation(coverage=True), {"uncovered_s": 5}, AS_EXPECTED),
        (
            Expectation(token=True, time=True), {},
            "token windows red in 0 of 4 min; time windows red in 0 of 4 min",
        ),
        (Expectation(token=True), {"shown": {TOKEN: EVERYTHING, TIME: NOTHING}}, AS_EXPECTED),
        (Expectation(unjudged="too short"), {"pages": ("x",)}, "not judged: too short"),
    ],
)  # fmt: skip
def test_a_verdict_says_where_an_outcome_differs(
    expected: Expectation, values: dict[str, Any], said: str
) -> None:
    """The scorecard never says "as expected" of something else."""
    assert verdict(outcome(expected, values)) == said


def test_expectations_name_what_exists(repository_root: Path) -> None:
    """Every incident of recordings and scenario has an expectation, of a declared pattern."""
    recordings = read_recordings(repository_root / "examples" / "tiny_moe" / "recordings")
    assert set(RECORDED) <= set(recordings)
    planted = {incident.name for incident in scenario_named("demo").incidents}
    assert planted == set(SIMULATED)
    for expected in (*RECORDED.values(), *SIMULATED.values()):
        assert not expected.pattern or expected.pattern in PATTERN_BY_NAME


def test_the_timeline_plays_everything_once_and_in_order(repository_root: Path) -> None:
    """Health first, then settling, then incidents with held-out minutes between them."""
    recordings = read_recordings(repository_root / "examples" / "tiny_moe" / "recordings")
    played = timeline(recordings, RECORDINGS_START_US)
    assert played.afterwards[0].start_us == played.calibration_us + SETTLING_US
    everything = [*played.healthy, *played.afterwards]
    for before, after in pairwise(everything):
        assert before.end_us <= after.start_us
    minutes: dict[str, list[tuple[int, int]]] = {}
    for playing in everything:
        minutes.setdefault(playing.recording.name, []).append(playing.part_us)
    for name, parts in minutes.items():
        assert sum(end - begin for begin, end in parts) == recordings[name].blocks * MINUTE_US
        assert sorted(parts) == parts
    incidents = [each for each in played.afterwards if not each.held_out]
    assert [each.recording.name for each in incidents] == list(RECORDED)
    assert played.afterwards[0].held_out


def test_a_broken_manifest_is_refused(tmp_path: Path) -> None:
    """A demo without its recordings says where they should be."""
    with pytest.raises(InputError, match="no recordings"):
        read_recordings(tmp_path)
    for content in ("{", json.dumps({"version": 2}), json.dumps({"version": 1, "block_us": 1})):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(InputError, match=r"manifest"):
            read_recordings(tmp_path)


def test_outcomes_count_windows_names_and_pages() -> None:
    """What the scorecard shows is what the tables hold, block by block."""
    begin = RECORDINGS_START_US
    stretches = [
        Stretch(
            name="one", model=TINY_MOE, start_us=begin, end_us=begin + 3 * MINUTE_US,
            expected=Expectation(pattern="fixed_prefix", time=True, pages=True),
        ),
        Stretch(
            name="health", model=TINY_MOE, start_us=begin + 3 * MINUTE_US,
            end_us=begin + 4 * MINUTE_US, expected=NOT_PRESENT, held_out=True,
        ),
    ]  # fmt: skip
    with empty_database() as connection:
        add_rows(connection, "lanes", [{"lane": "lane", "model": TINY_MOE, "layers": [0, 1, 2]}])
        add_rows(
            connection,
            "windows",
            [
                {
                    "lane": "lane", "model": TINY_MOE, "window_kind": "time", "scope_kind": "all",
                    "size": 5_000_000, "stride": 5_000_000, "layer": layer, "start": start,
                    "first_time": start, "last_time": start + 1, "close_time": start + 5_000_000,
                    "threshold_version": "t-1",
                    "level": "red" if red and layer < 2 else "healthy",
                    "red_metrics": ["gini"] if red else [],
                }
                for layer in range(3)
                for start, red in (
                    (begin + 5_000_000, False), (begin + 10_000_000, True),
                    (begin + MINUTE_US, True), (begin + 2 * MINUTE_US, False),
                    (begin + 3 * MINUTE_US, False),
                )
            ],
        )  # fmt: skip
        add_rows(
            connection,
            "patterns",
            [
                {
                    "finding": "p", "pattern": "fixed_prefix", "lane": "lane",
                    "began_at": begin + 10_000_000, "ended_at": begin + MINUTE_US + 5_000_000,
                    "evidence_json": "{}",
                }
            ],
        )  # fmt: skip
        add_rows(
            connection,
            "alerts",
            [
                {
                    "alert": name, "lane": "lane", "family": "load", "window_kind": "time",
                    "scope_kind": "all", "began_at": begin + 10_000_000, "caused_by": cause,
                    "fired_at": begin + fired * 1_000_000, "last_slot": begin,
                }
                for name, fired, cause in (("a", 20, ""), ("b", 25, "a"), ("c", 190, ""))
            ],
        )  # fmt: skip
        one, health = outcomes(connection, stretches)
    shown = one.shown["time:5000000"]
    assert (shown.windows, shown.red, shown.blocks, shown.red_blocks) == (4, 2, 3, 2)
    assert (shown.metric, shown.delay_s, shown.pointwise) == ("gini", 10.0, 4 / 12)
    assert one.named_blocks == {"fixed_prefix": 2}
    # A slot that begins at 20 s ends at 25 s and is judged 2 s later; "b" is no page of its own.
    assert (len(one.pages), one.page_delay_s, one.joined) == (2, 27.0, True)
    assert (health.pages, health.named_blocks) == ((), {})
    assert verdict(one) == AS_EXPECTED
