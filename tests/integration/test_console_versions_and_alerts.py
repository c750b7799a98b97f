from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from support.sample_store import MIDNIGHT, SampleStore
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.core.errors import InputError
from moescope.jobs.calibration import standing_versions

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

LEAD, FOLLOWER, LATER = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions of three scopes, one of them replaced once; two alerts of a cause, and another."""
    folder = tmp_path_factory.mktemp("a store")
    store = SampleStore.create(folder)
    for version, model, revision in (
        ("t-1", "m", "r"),
        ("t-2", "m", "s"),
        ("t-3", "m", "r"),
        ("t-4", "other", "r"),
    ):
        scope = {"model": model, "revision": revision, "sampling_ratio": 1.0}
        store.add("threshold_versions", version=version, layers=[0], summary_json="{}", **scope)
        if version != "t-3":
            store.add(
                "threshold_activations", activation=int(version[-1]), action="activate",
                version=version, **scope,
            )  # fmt: skip
    store.add(
        "threshold_activations", activation=9, action="activate", version="t-3", model="m",
        revision="r", sampling_ratio=1.0,
    )  # fmt: skip
    store.add(
        "lanes", lane="l", domain="live", model="m", revision="r", origin="model",
        fidelity="full", sampling_ratio=1.0, experts=8, top_k=2, layers=[0],
    )  # fmt: skip
    for alert, family, pattern, cause, over in (
        (LEAD, "load", "expert_collapse", "", MIDNIGHT),
        (FOLLOWER, "routing", "", LEAD, None),
        (LATER, "router", "", "", None),
    ):
        store.add(
            "alerts", alert=alert, lane="l", window_kind="token", size=128, stride=128,
            family=family, pattern=pattern, caused_by=cause, historic=False, fired_at=MIDNIGHT,
            resolved_at=over, state="firing", worst_metric="gini",
        )  # fmt: skip
    store.connection.close()
    return folder


def typed(data: Path, *words: str, answer: str = "") -> Result:
    """What a command does with the data."""
    return CliRunner().invoke(app, [*words, "--data", str(data)], input=answer)


def refused(data: Path, *words: str, answer: str = "") -> InputError:
    """Why a command refuses."""
    raised = typed(data, *words, answer=answer).exception
    assert isinstance(raised, InputError)
    return raised


def listed(data: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Alerts that are listed, by id."""
    found = typed(data, "alert", "list", "--json", *words)
    return {row["alert"]: row for row in json.loads(found.stdout)}


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        (("t-1", "t-2"), "t-1 is for revision r; t-2 is for revision s."),
        (("t-2", "t-4"), "t-2 is for model m, revision s; t-4 is for model other, revision r."),
    ],
)
def test_versions_for_different_windows_are_not_compared(
    versions: tuple[str, str], told: str, data: Path
) -> None:
    """Lines of two models side by side would look like lines that moved."""
    assert refused(data, "threshold", "diff", *versions).why == told
    assert typed(data, "threshold", "diff", "t-1", "t-3").exit_code == 0


def test_a_metric_that_does_not_exist_is_named_with_near_ones(data: Path) -> None:
    """An empty table would say that the version has no such lines."""
    error = refused(data, "threshold", "show", "t-1", "--metric", "load_share")
    assert "topk_load_share" in error.why
    assert "gini" in refused(data, "threshold", "show", "t-1", "--metric", "ginni").why
    assert typed(data, "threshold", "show", "t-1", "--metric", "gini").exit_code == 0


@pytest.mark.parametrize(
    ("model", "revision", "asked"),
    [
        ("m", "r", "Take t-3 back, and let t-1 judge again?"),
        ("other", "r", "judging goes OFF"),
        ("", "", "Take the newest activation back?"),
    ],
)
def test_a_rollback_says_first_what_judges_afterwards(
    model: str, revision: str, asked: str, data: Path
) -> None:
    """Nobody switches judging off without having been told."""
    outcome = typed(
        data, "threshold", "rollback", "--model", model, "--revision", revision, answer="n\n"
    )
    assert asked in outcome.stderr
    assert outcome.exit_code


def test_versions_that_were_rolled_back_do_not_stand() -> None:
    """A second rollback goes one further back, and may find nothing."""
    done = [("activate", "a"), ("activate", "b"), ("rollback", "a")]
    assert standing_versions(done) == ["a"]
    assert standing_versions([*done, ("rollback", "")]) == []


def test_one_alert_per_cause_is_listed(data: Path) -> None:
    """What was sent with another alert is left out, counted, and shown when it is asked for."""
    assert listed(data).keys() == {LEAD, LATER}
    assert listed(data, "--all").keys() == {LEAD, FOLLOWER, LATER}
    assert "left out: 1 " in typed(data, "alert", "list").stderr
    everything = typed(data, "alert", "list", "--all")
    assert f"with {LEAD}" in everything.stdout
    assert "left out" not in everything.stderr
    (lead,) = [line for line in everything.stdout.splitlines() if line.startswith(LEAD)]
    assert {"load", "expert_collapse"} <= set(lead.split())


def test_an_open_alert_is_listed_although_its_cause_is_over(data: Path) -> None:
    """Nothing that is still wrong hides behind an alert that is not shown."""
    assert listed(data, "--open").keys() == {FOLLOWER, LATER}


def test_the_query_for_the_worst_window_names_the_data(data: Path) -> None:
    """It can be pasted from any folder, also where the name has a blank."""
    (line,) = [
        line
        for line in typed(data, "alert", "show", "aaa").stdout.splitlines()
        if line.startswith("moescope sql")
    ]
    assert shlex.split(line.partition("<<")[0])[2:] == ["--data", str(data), "-"]
