from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.console.findings import Outcome
from moescope.console.watch import Health, HealthStatus, serving
from moescope.console.watch.verdict import component_findings
from moescope.core.clock import ManualClock
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.console.findings import Finding
    from moescope.core.settings import Settings

NOW_US = 1_800_000_000_000_000
HEAVY = {"duckdb", "numba", "polars", "pyarrow", "kafka", "prometheus_client", "numpy"}


def settings_of(directory: Path) -> Settings:
    """Settings of a component without a port."""
    return load_settings(None, environment={}, options={"data.directory": str(directory)})


def written(directory: Path, **changes: object) -> Path:
    """A health file of this process and machine, as `changes` say."""
    clock = ManualClock(NOW_US)
    with serving(settings_of(directory), SelfMetrics(), "processor", clock=clock) as watch:
        document = watch.latest.document() | changes
    path = directory / f"health-processor-{document['host']}-{document['pid']}.json"
    path.write_text(json.dumps(document))
    return path


def judged(directory: Path, host: str = "here", later_seconds: float = 5.0) -> list[Finding]:
    """What is found a few seconds after the report."""
    return component_findings(
        directory,
        "processor",
        host=host,
        now_us=NOW_US + round(later_seconds * 1e6),
        max_age_seconds=30.0,
    )


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("ok", "ok"), ("starting", "ok"), ("waiting", "ok"), ("failing", "failure")],
)
def test_a_living_component_is_taken_at_its_word(tmp_path: Path, status: str, outcome: str) -> None:
    """Only `failing` is unhealthy: a broker that is away is nothing that a restart mends."""
    written(tmp_path, host="here", status=status, why="the broker is away", facts={"lag": 3})
    (finding,) = judged(tmp_path)
    assert finding.outcome.value == outcome
    assert "the broker is away" in finding.detail
    assert "lag=3" in finding.detail


def test_an_old_report_is_unhealthy(tmp_path: Path) -> None:
    """A process that hangs, or cannot write, is found by its silence."""
    written(tmp_path, host="here")
    assert [finding.outcome for finding in judged(tmp_path, later_seconds=29)] == [Outcome.OK]
    (finding,) = judged(tmp_path, later_seconds=31)
    assert finding.outcome is Outcome.FAILURE
    assert "31 s old" in finding.detail


def test_no_report_is_unhealthy(tmp_path: Path) -> None:
    """A component that never came up has no file; one on another machine does not count."""
    assert [finding.outcome for finding in judged(tmp_path / "missing")] == [Outcome.FAILURE]
    written(tmp_path, host="elsewhere")
    (finding,) = judged(tmp_path)
    assert finding.outcome is Outcome.FAILURE
    assert "1 on other machines" in finding.detail


def test_a_killed_process_is_unhealthy_until_another_runs(tmp_path: Path) -> None:
    """A fresh file does not hide that its process is gone, nor spoil what was started since."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    written(tmp_path, host="here", pid=ended.pid)
    (gone,) = judged(tmp_path)
    assert gone.outcome is Outcome.FAILURE
    assert str(ended.pid) in gone.detail
    written(tmp_path, host="here")
    assert [finding.outcome for finding in judged(tmp_path)] == [Outcome.OK]


def test_a_number_that_another_process_has_got_does_not_count(tmp_path: Path) -> None:
    """In a container every process has the same number: its time of birth tells them apart."""
    written(tmp_path, host="here", birth=1)
    assert [finding.outcome for finding in judged(tmp_path)] == [Outcome.FAILURE]


def test_every_processor_of_a_machine_is_judged(tmp_path: Path) -> None:
    """Two share a data directory; one that fails is named beside one that is well."""
    written(tmp_path, host="here", status="failing", why="no transaction ever ends")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        written(tmp_path, host="here", pid=other.pid, birth=0)
        findings = judged(tmp_path)
        other.communicate()
    assert {finding.outcome: str(os.getpid()) in finding.detail for finding in findings} == {
        Outcome.OK: False,
        Outcome.FAILURE: True,
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"status": "splendid"}', "\0" * 9])
def test_a_file_that_is_no_report_is_named(tmp_path: Path, text: str) -> None:
    """Whatever lies there, the answer is a finding."""
    (tmp_path / "health-processor-here-7.json").write_text(text)
    findings = judged(tmp_path)
    assert {finding.outcome for finding in findings} == {Outcome.FAILURE}
    assert any("health-processor-here-7.json" in finding.detail for finding in findings)


def asked(directory: Path, *options: str) -> tuple[int, str]:
    """Exit code and output of a container's health command."""
    command = ["doctor", "--component", "store", "--data", str(directory)]
    outcome = CliRunner().invoke(app, [*command, *options])
    return outcome.exit_code, outcome.stdout


def test_the_command_answers_by_its_exit_code(tmp_path: Path) -> None:
    """What orchestrators look at, on a component that runs now."""
    assert asked(tmp_path)[0] == 1
    health = Health(HealthStatus.WAITING, "another owner has the store")
    with serving(settings_of(tmp_path), SelfMetrics(), "store", status=lambda: health):
        code, text = asked(tmp_path)
        assert code == 0
        assert "another owner has the store" in text
        code, text = asked(tmp_path, "--max-age", "0", "--json")
    assert code == 1
    assert [finding["outcome"] for finding in json.loads(text)] == ["failure"]


def test_the_command_imports_nothing_heavy(tmp_path: Path) -> None:
    """It runs every few seconds beside an inference server."""
    program = (
        "import sys; sys.argv = ['moescope', 'doctor', '--component', 'store', '--data', "
        f"{str(tmp_path)!r}]\n"
        "from moescope.console.main import main\n"
        "try:\n    main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert outcome.returncode == 1
    assert set(outcome.stderr.split()) & HEAVY == set()
