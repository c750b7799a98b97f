from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.prometheus_tools import run_tool

from moescope.console.watch.exposition import Exposition
from moescope.core.self_metrics import SELF_METRIC_BY_NAME, MetricKind, SelfMetrics

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES_FILE = "deploy/prometheus/moescope.rules.yml"
TESTS_FILE = "deploy/prometheus/moescope.rules.test.yml"
OF_PROMETHEUS = {"up", "process_start_time_seconds"}
LABELS_OF_TARGETS = {"job", "instance"}
SEVERITIES = {"critical", "warning"}
WATCHDOG = "MoescopeWatchdog"


def loaded(path: str) -> Any:
    """A YAML file of the repository."""
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


ALERTS: list[dict[str, Any]] = [
    rule for group in loaded(RULES_FILE)["groups"] for rule in group["rules"]
]
every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


def metrics_of(expression: str) -> set[str]:
    """Names of the metrics that an expression reads."""
    return set(re.findall(r"\b(?:moescope_\w+|process_\w+|up\b(?=\{))", expression))


def words_of(pattern: str, text: str) -> set[str]:
    """All words in the lists that a pattern finds."""
    return {word for found in re.findall(pattern, text) for word in re.findall(r"\w+", found)}


@every_alert
def test_rules_read_what_is_declared(alert: dict[str, Any]) -> None:
    """A rule over a metric or a label that nobody reports never fires, and nobody notices."""
    expression = alert["expr"]
    metrics = metrics_of(expression)
    assert metrics or alert["alert"] == WATCHDOG
    declared = [SELF_METRIC_BY_NAME[name] for name in metrics - OF_PROMETHEUS]
    labels = {label for metric in declared for label in metric.labels} | LABELS_OF_TARGETS
    matched = {name for name, _ in re.findall(r'(\w+)(=~|!=|=)"', expression)}
    grouped = words_of(r"\b(?:by|on) \(([^)]*)\)", expression)
    shown = words_of(r"\$labels\.(\w+)", " ".join(alert["annotations"].values()))
    assert matched | grouped | shown <= labels
    for metric in declared:
        counts = re.search(rf"(?:increase|rate)\({metric.name}\[", expression) is not None
        assert counts == (metric.kind is MetricKind.COUNTER), metric.name


@every_alert
def test_alerts_say_what_to_do(alert: dict[str, Any]) -> None:
    """Whoever is woken has a severity, two sentences, and a page with the alert's own heading."""
    name, annotations = alert["alert"], alert["annotations"]
    assert alert["labels"]["severity"] in SEVERITIES or name == WATCHDOG
    assert set(annotations) == {"summary", "description", "runbook"}
    assert all(
        text.strip().endswith(".") for text in map(annotations.get, ("summary", "description"))
    )
    page, _, heading = annotations["runbook"].partition("#")
    assert heading == name.lower()
    assert f"### {name}\n" in (ROOT / page).read_text(encoding="utf-8")


def test_names_of_alerts_are_unique() -> None:
    """An alert is silenced and looked up by its name."""
    names = [alert["alert"] for alert in ALERTS]
    assert sorted(set(names)) == sorted(names)
    assert WATCHDOG in names


def test_every_alert_is_seen_to_fire() -> None:
    """A rule without a case of its own may never fire."""
    cases = (ROOT / TESTS_FILE).read_text(encoding="utf-8")
    assert {alert["alert"] for alert in ALERTS} <= set(
        re.findall(r'alertname="(\w+)", alertstate="firing", severity', cases)
    )


def test_the_rules_are_scraped_for_what_they_select() -> None:
    """Rules select jobs by name, so the example's names have to be theirs."""
    jobs = {
        each["job_name"] for each in loaded("deploy/prometheus/prometheus.yml")["scrape_configs"]
    }
    assert {job for job in jobs if job.startswith("moescope-")} == {
        "moescope-agent", "moescope-processor", "moescope-store",
    }  # fmt: skip
    selected = {job for alert in ALERTS for job in re.findall(r'job="([^"]+)"', alert["expr"])}
    assert selected <= jobs
    assert loaded("deploy/prometheus/prometheus.yml")["rule_files"] == [Path(RULES_FILE).name]


def test_prometheus_accepts_the_rules_and_the_settings() -> None:
    """Promtool parses every expression and template as the server does."""
    for arguments in (
        ("check", "rules", "--lint-fatal", RULES_FILE),
        ("check", "config", "deploy/prometheus/prometheus.yml"),
    ):
        checked = run_tool("promtool", *arguments)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_accepts_what_is_served() -> None:
    """Promtool finds no fault with the format, the names and the help texts of all metrics."""
    metrics = SelfMetrics()
    for metric in SELF_METRIC_BY_NAME.values():
        report = metrics.add if metric.kind is MetricKind.COUNTER else metrics.set
        report(metric.name, 1.5, **dict.fromkeys(metric.labels, 'a "b"\n'))
    body, _ = Exposition(metrics, "store").render("")
    checked = run_tool("promtool", "check", "metrics", stdin=body.decode())
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout + checked.stderr == ""


def test_rules_fire_when_they_should_and_only_then() -> None:
    """The rules' own unit tests pass."""
    tested = run_tool("promtool", "test", "rules", TESTS_FILE)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_rule_that_changes_fails_its_case(tmp_path: Path) -> None:
    """The cases are no formality: with another condition the alert's own case fails."""
    rules = (ROOT / RULES_FILE).read_text(encoding="utf-8")
    name = Path(RULES_FILE).name
    changed = rules.replace("_unserved_partitions > 0", "_unserved_partitions > 9")
    (tmp_path / name).write_text(changed, encoding="utf-8")
    cases = loaded(TESTS_FILE)
    cases["tests"] = [
        each for each in cases["tests"] if each["name"] == "a store that stands still"
    ]
    path = tmp_path / Path(TESTS_FILE).name
    path.write_text(yaml.safe_dump(cases), encoding="utf-8")
    tested = run_tool("promtool", "test", "rules", str(path))
    assert tested.returncode == 1
    assert "MoescopePartitionsUnserved" in tested.stdout + tested.stderr


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (f"alertname={WATCHDOG} severity=none", "dead-man"),
        ("alertname=MoescopeStoreMissing severity=critical", "moescope-critical"),
        ("alertname=MoescopeDeadLetters severity=warning", "moescope-warnings"),
    ],
)
def test_alertmanager_sends_each_severity_where_it_belongs(labels: str, receiver: str) -> None:
    """The watchdog reaches the dead man's switch, and nobody's pager."""
    settings = "deploy/alertmanager/alertmanager.yml"
    checked = run_tool("amtool", "check-config", settings)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    routed = run_tool(
        "amtool", "config", "routes", "test", f"--config.file={settings}",
        f"--verify.receivers={receiver}", *labels.split(),
    )  # fmt: skip
    assert routed.returncode == 0, routed.stdout + routed.stderr


def test_alerts_that_are_inhibited_exist() -> None:
    """A silence for an alert of another name silences nothing."""
    names = {alert["alert"] for alert in ALERTS}
    text = (ROOT / "deploy/alertmanager/alertmanager.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"Moescope\w+", text)) <= names
