from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.declared_rows import add_rows, empty_database

from moescope.core.errors import InputError, InsufficientDataError
from moescope.core.patterns import COMPARING, PAIRING, PATTERNS
from moescope.jobs.patterns.detect import DETECTORS, LOOK_BACK_US, detect
from moescope.jobs.patterns.engine_faults import engine_fault_findings
from moescope.jobs.patterns.generations import late_convergence_findings
from moescope.jobs.patterns.paired import paired_pull
from moescope.jobs.patterns.pulse import peaks, periodic_pulse_findings
from moescope.jobs.patterns.time_windows import time_window_findings
from moescope.jobs.reports.comparison.sentences import FRAMEWORK_SKEW
from moescope.processors.finish import WindowFinisher
from moescope.storage.shared import WindowShapes
from moescope.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import duckdb

    from moescope.jobs.patterns import Finding

SECOND = 1_000_000
MINUTE = 60 * SECOND
T0 = 1_000_000_000 * SECOND
LAYERS = 4
COLLISION = {"request_similarity": 2, "positional_agreement": 4, "routing_shift": 3}
ALWAYS = (0, 2 * T0)


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Empty tables."""
    with empty_database() as connection:
        yield connection


def time_windows(
    number: int, size: int, red: dict[str, int], first: int = 0
) -> Iterator[dict[str, Any]]:
    """Windows in a row in which each metric is red in so many of four layers."""
    for window in range(first, first + number):
        start = T0 + window * size
        for layer in range(LAYERS):
            yield {
                "lane": "lane", "phase": "prefill", "scope_kind": "all", "window_kind": "time",
                "size": size, "stride": size, "start": start, "layer": layer,
                "close_time": start + size, "threshold_version": "t-1",
                "positional_agreement": 0.25 * layer,
                "red_metrics": [name for name, layers in red.items() if layer < layers],
            }  # fmt: skip


def names(findings: Iterable[Finding]) -> list[tuple[str, int, int]]:
    """(pattern, from s, to s)."""
    return [
        (each.pattern, (each.began_us - T0) // SECOND, (each.ended_us - T0) // SECOND)
        for each in findings
    ]


@pytest.mark.parametrize(
    ("size", "windows", "red", "expected"),
    [
        (5, 6, {"positional_agreement": 2}, ["fixed_prefix"]),
        (5, 6, {"positional_agreement": 1}, []),
        (5, 3, {"positional_agreement": 4}, []),
        (60, 2, {"positional_agreement": 2}, ["fixed_prefix"]),
        (60, 1, {"positional_agreement": 4}, []),
        (5, 2, COLLISION, ["concurrency_collision"]),
        (5, 6, {"request_similarity": 4}, []),
        (5, 6, {"request_similarity": 4, "routing_shift": 4}, []),
        (5, 2, {**COLLISION, "mix_shift": 2}, []),
        (60, 1, COLLISION, []),
        (5, 4, {"mix_shift": 4, "gini": 4}, ["mix_shift"]),
        (5, 4, {"mix_shift": 4, "routing_shift": 2}, []),
    ],
)
def test_time_windows_are_named_by_what_is_red_in_them(
    database: duckdb.DuckDBPyConnection,
    size: int,
    windows: int,
    red: dict[str, int],
    expected: list[str],
) -> None:
    """A pattern needs its metrics in half of the layers, in enough windows in a row."""
    quiet = time_windows(4, size * SECOND, {}, first=20)
    add_rows(database, "windows", [*time_windows(windows, size * SECOND, red), *quiet])
    assert names(time_window_findings(database, *ALWAYS)) == [
        (name, 0, windows * size) for name in expected
    ]


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        (None, ["fixed_prefix"]),
        ("suspicious rows", ["fixed_prefix"]),
        ("coverage", []),
        ("coverage unknown", []),
    ],
)
def test_windows_with_a_few_lost_rows_are_named(
    database: duckdb.DuckDBPyConnection, reason: str | None, named: list[str]
) -> None:
    """What is missing hides no pattern, unless the window as a whole says too little."""
    rows = time_windows(6, 5 * SECOND, {"positional_agreement": 4})
    add_rows(
        database, "windows", [{**row, "complete": False, "level_reason": reason} for row in rows]
    )
    found = time_window_findings(database, T0, T0 + 10**12)
    assert [finding.pattern for finding in found] == named


def test_windows_without_thresholds_name_nothing(database: duckdb.DuckDBPyConnection) -> None:
    """Before a calibration there are no lines, so nothing can be past one."""
    rows = [
        {**row, "threshold_version": None}
        for row in time_windows(6, 5 * SECOND, {"positional_agreement": 4})
    ]
    add_rows(database, "windows", rows)
    assert not list(time_window_findings(database, *ALWAYS))


def generation(request: int, *, late_red: bool) -> Iterator[dict[str, Any]]:
    """Three token windows of one generation; the last one may be past its lines."""
    for window in range(3):
        for layer in range(LAYERS):
            yield {
                "lane": "lane", "phase": "decode", "scope_kind": "all", "window_kind": "token",
                "size": 128, "stride": 128, "start": 100 + window * 128, "layer": layer,
                "request": f"r{request}", "weight": 1.0, "threshold_version": "t-1",
                "close_time": T0 + (window * 15 + 10) * SECOND,
                "red_metrics": ["topk_overlap"] if late_red and window == 2 and layer < 2 else [],
            }  # fmt: skip


@pytest.mark.parametrize(("requests", "red", "found"), [(8, 4, 1), (8, 3, 0), (4, 4, 0)])
def test_most_long_generations_must_narrow(
    database: duckdb.DuckDBPyConnection, requests: int, red: int, found: int
) -> None:
    """One looping request is no pattern; half of at least five are."""
    rows = [row for number in range(requests) for row in generation(number, late_red=number < red)]
    add_rows(database, "windows", rows)
    findings = list(late_convergence_findings(database, *ALWAYS))
    assert len(findings) == found
    for finding in findings:
        assert finding.evidence["requests"] == requests
        assert finding.evidence["converged_requests"] == red


def test_rows_that_no_router_chooses_are_an_engine_fault(
    database: duckdb.DuckDBPyConnection,
) -> None:
    """The node and the reason are named; a stray row in a thousand is not a fault."""
    add_rows(
        database, "lanes", [{"lane": "lane", "model": "m", "revision": "r", "layers": [0, 1, 2, 3]}]
    )
    for node, pairs, reason in (
        ("broken", 400, "suspicious_rows"),
        ("fine", 4, "suspicious_rows"),
        ("looping", 400, "repeated_generation"),
        ("both", 400, "all_zero_layer"),
    ):
        add_rows(
            database,
            "batches",
            [
                {
                    "node": node, "model": "m", "revision": "r", "accepted_rows": 1000,
                    "suspicious_pairs": pairs, "reasons": [reason],
                    "append_time": T0 + minute * MINUTE, "log_offset": minute,
                }
                for minute in (0, 1)
            ],
        )  # fmt: skip
    both = {"node": "both", "model": "m", "revision": "r", "suspicious_pairs": 10}
    add_rows(
        database,
        "batches",
        [
            {
                **both, "accepted_rows": 1, "append_time": T0, "log_offset": 9,
                "reasons": ["repeated_generation", "all_zero_layer"],
            }
        ],
    )  # fmt: skip
    both_finding, finding = engine_fault_findings(database, *ALWAYS)
    assert both_finding.scope_value == "both"
    assert (finding.pattern, finding.scope_value) == ("engine_fault", "broken")
    assert finding.evidence["suspicious_share"] == 0.1
    assert finding.evidence["reasons"] == ["suspicious_rows"]
    assert names([finding])[0][2] - names([finding])[0][1] == 120


def lag_rows(number: int, period: int, first: int = 0, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Time windows whose lag overlap falls off smoothly, with a bump at a period's multiples."""
    draw = np.random.default_rng(seed)
    lags = np.arange(1, 65)
    for window in range(first, first + number):
        for layer in range(LAYERS):
            overlap = 0.2 + 0.3 / lags + draw.normal(0, 0.01, 64)
            if period:
                overlap[period - 1 :: period] += 0.2
            start = T0 + window * 60 * SECOND
            yield {
                "lane": "lane", "phase": "prefill", "scope_kind": "all", "window_kind": "time",
                "size": MINUTE, "stride": MINUTE, "start": start, "layer": layer,
                "close_time": start + MINUTE, "lag_overlap": overlap.tolist(),
            }  # fmt: skip


def test_a_pulse_stands_out_from_the_baseline(database: duckdb.DuckDBPyConnection) -> None:
    """A period is found with its lag, health is not, and without a baseline nothing is.

    A few lost rows hide nothing; windows that saw too little show nothing.
    """
    lossy = [{**row, "complete": False} for row in lag_rows(6, 16, first=200, seed=1)]
    add_rows(database, "windows", [*lag_rows(150, 0), *lossy])
    add_rows(database, "windows", list(lag_rows(6, 0, first=300, seed=2)))
    thin = [{**row, "level_reason": "coverage"} for row in lag_rows(6, 16, first=400, seed=3)]
    add_rows(database, "windows", thin)
    assert not list(periodic_pulse_findings(database, T0 + 190 * MINUTE, 2 * T0))
    add_rows(
        database,
        "baselines",
        [
            {
                "baseline": "b", "version": 1,
                "selection_json": json.dumps({"spans": [[T0, T0 + 151 * MINUTE]]}),
            }
        ],
    )  # fmt: skip
    add_rows(
        database,
        "threshold_versions",
        [{"version": "t-1", "baseline": "b", "baseline_version": 1, "status": "active"}],
    )
    (finding,) = periodic_pulse_findings(database, T0 + 190 * MINUTE, 2 * T0)
    assert names([finding]) == [("periodic_pulse", 200 * 60, 206 * 60)]
    assert set(finding.evidence["lags"]) <= {16, 32, 48}


def test_peaks_find_the_lag_that_stands_out() -> None:
    """The most prominent lag is named, lags without pairs are not."""
    overlap = np.full((2, 64), 0.3)
    overlap[0, 31] = 0.6
    overlap[1, 40:] = np.nan
    overlap[1, 19] = 0.5
    value, lag = peaks(overlap)
    assert lag.tolist() == [32, 20]
    np.testing.assert_allclose(value, [0.3, 0.2])


def questions(prefix: str, number: int, pull: float, seed: int) -> Iterator[dict[str, Any]]:
    """The last token windows of requests whose loads share a part `pull` of their draws."""
    draw = np.random.default_rng(seed)
    common = draw.dirichlet(np.full(16, 0.3), LAYERS)
    for question in range(number):
        for layer in range(LAYERS):
            own = draw.dirichlet(np.full(16, 0.5))
            counts = draw.multinomial(512, pull * common[layer] + (1 - pull) * own)
            yield {
                "phase": "prefill", "window_kind": "token", "size": 128, "stride": 128,
                "start": 256, "layer": layer, "request": f"{prefix}{question}",
                "counts": counts.tolist(),
            }  # fmt: skip


def test_examples_that_pull_are_told_from_examples_that_do_not(
    database: duckdb.DuckDBPyConnection,
) -> None:
    """Pairs decide: the same questions are more alike with examples than without."""
    add_rows(database, "windows", list(questions("with/", 24, 0.6, 1)))
    add_rows(database, "windows", list(questions("without/", 24, 0.0, 2)))
    add_rows(database, "windows", list(questions("other/", 24, 0.0, 3)))
    pulled = paired_pull(database, with_prefix="with/", without_prefix="without/", size=128)
    assert pulled.pulled
    assert pulled.questions == 24
    assert (pulled.difference > 0).all()
    same = paired_pull(database, with_prefix="other/", without_prefix="without/", size=128)
    assert not same.pulled


def test_too_few_pairs_give_no_answer(database: duckdb.DuckDBPyConnection) -> None:
    """An honest refusal instead of a p-value from a handful of questions."""
    add_rows(database, "windows", list(questions("with/", 4, 0.6, 1)))
    with pytest.raises(InsufficientDataError, match="Only 0 questions"):
        paired_pull(database, with_prefix="with/", without_prefix="without/", size=128)
    with pytest.raises(InputError, match="same prefix"):
        paired_pull(database, with_prefix="with/", without_prefix="with/", size=128)


def test_findings_are_stored_once_and_grow(tmp_path: Path) -> None:
    """Overlapping runs neither repeat a finding nor lose its beginning."""
    with Store(tmp_path / "store.duckdb", WindowFinisher(), WindowShapes((), ())) as store:

        def plant(windows: int, first: int) -> None:
            store.change(
                lambda connection, _: add_rows(
                    connection,
                    "windows",
                    list(time_windows(windows, 5 * SECOND, {"positional_agreement": 4}, first)),
                ),
                author="test",
                action="plant",
            )

        plant(6, 0)
        first = detect(store, T0, T0 + MINUTE)
        assert [each.pattern for each in first.found] == ["fixed_prefix"]
        again = detect(store, T0, T0 + MINUTE)
        assert (again.found, again.extended) == ((), ())
        plant(300, 6)
        grown = detect(store, T0 + LOOK_BACK_US, T0 + LOOK_BACK_US + 30 * MINUTE)
        assert not grown.found
        assert [each.name for each in grown.extended] == [first.found[0].name]
        rows = (
            store.cursor()
            .execute("SELECT finding, epoch_us(began_at), epoch_us(ended_at), pages FROM patterns")
            .fetchall()
        )
    assert rows == [(first.found[0].name, T0, T0 + 306 * 5 * SECOND, True)]


def test_an_alert_gets_the_name_of_what_overlaps_it(tmp_path: Path) -> None:
    """The page's reader learns what it looks like; alerts at other times stay without a name."""

    def plant(connection: duckdb.DuckDBPyConnection, _: int) -> None:
        add_rows(connection, "lanes", [{"lane": "lane", "model": "m"}])
        rows = list(time_windows(6, 5 * SECOND, {"positional_agreement": 4}))
        add_rows(connection, "windows", rows)
        for name, began in (("in", T0 + 10 * SECOND), ("later", T0 + 600 * SECOND)):
            alert = {
                "alert": name, "lane": "lane", "phase": "prefill", "scope_kind": "all",
                "state": "firing", "began_at": began, "fired_at": began,
                "last_slot": began + 5 * SECOND,
            }  # fmt: skip
            add_rows(connection, "alerts", [alert])

    with Store(tmp_path / "store.duckdb", WindowFinisher(), WindowShapes((), ())) as store:
        store.change(plant, author="test", action="plant")
        detect(store, T0, T0 + MINUTE)
        rows = (
            store.cursor()
            .execute("SELECT alert, pattern, epoch_us(began_at) FROM alerts ORDER BY alert")
            .fetchall()
        )
    assert rows == [
        ("in", "fixed_prefix", T0 + 10 * SECOND),
        ("later", "", T0 + 600 * SECOND),
    ]


def test_every_unpaired_pattern_has_a_detector() -> None:
    """What `pattern list` promises is looked for, and paired ones say that they need a person."""
    looked_for = [name for names in DETECTORS.values() for name in names]
    assert sorted(looked_for) == sorted(p.name for p in PATTERNS if not p.paired)
    for pattern in PATTERNS:
        assert pattern.paired == (pattern.found_by in {PAIRING, COMPARING}), pattern.name
    assert [pattern.name for pattern in PATTERNS if pattern.found_by == PAIRING] == [
        "few_shot_pull"
    ]
    compared = [pattern.name for pattern in PATTERNS if pattern.found_by == COMPARING]
    assert compared == [FRAMEWORK_SKEW.name]
