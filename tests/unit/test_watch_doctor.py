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
from moescope.console.watch.quick_doctor import quick_answer
from moescope.console.watch.verdict import component_findings
from moescope.core.clock import ManualClock
from moescope.core.self_metrics import SelfMetrics
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.console.findings import Finding
    from moescope.core.settings import Settings

NOW_US = 1_800_000_000_000_000
QUESTION = ("--component", "store", "--data")
HEAVY = {"duckdb", "kafka", "numba", "numpy", "polars", "prometheus_client", "pydantic", "typer"}


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
    """Exit code and output of the real command."""
    command = ["doctor", "--component", "store", "--data", str(directory)]
    outcome = CliRunner().invoke(app, [*command, *options])
    return outcome.exit_code, outcome.stdout


def test_the_command_answers_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What orchestrators look at, on a component that runs now; the short way says the same."""
    asking: list[tuple[str, ...]] = [(), ("--json",), ("--max-age", "0", "--json")]
    health = Health(HealthStatus.WAITING, "another owner has the store")
    with serving(settings_of(tmp_path), SelfMetrics(), "store", status=lambda: health) as watch:
        answers = [asked(tmp_path, *options) for options in asking[:2]]
        quick = [quick_answer(["doctor", *QUESTION, str(tmp_path), *each]) for each in asking[:2]]
        assert [code for code, _ in answers] == quick == [0, 0]
        assert capsys.readouterr().out == "".join(text for _, text in answers)
        assert all("another owner has the store" in text for _, text in answers)
        assert watch.latest.is_well
        code, text = asked(tmp_path, *asking[2])
        assert (code, json.loads(text)[0]["outcome"]) == (1, "failure")
        assert quick_answer(["doctor", *QUESTION, str(tmp_path), *asking[2]]) == 1
    assert asked(tmp_path)[0] == quick_answer(["doctor", *QUESTION, str(tmp_path)]) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["doctor"],
        ["sql", "--component"],
        ["doctor", "--component"],
        ["doctor", "--component", "broker"],
        ["doctor", "--component", "store", "--help"],
        ["doctor", "--component", "store", "--max-age", "old"],
        ["doctor", "--component", "store", "--splendid"],
    ],
)
def test_other_questions_are_left_to_the_command(arguments: list[str]) -> None:
    """Mistakes are explained in one place."""
    assert quick_answer(arguments) is None


def test_the_short_way_reads_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container names its data directory in a variable or a file."""
    directory = tmp_path / "elsewhere"
    monkeypatch.setenv("MOESCOPE_DATA_DIRECTORY", str(directory))
    assert quick_answer(["doctor", *QUESTION[:2]]) == 1
    assert str(directory) in capsys.readouterr().out
    monkeypatch.delenv("MOESCOPE_DATA_DIRECTORY")
    config = tmp_path / "moescope.toml"
    config.write_text(f"[data]\ndirectory = '{directory}'\n")
    monkeypatch.setenv("MOESCOPE_CONFIG", str(config))
    assert quick_answer(["doctor", *QUESTION[:2]]) == 1
    assert str(directory) in capsys.readouterr().out


def test_the_command_imports_nothing_heavy(tmp_path: Path) -> None:
    """It runs every few seconds beside an inference server."""
    program = (
        f"import sys; sys.argv = ['moescope', 'doctor', *{QUESTION}, {str(tmp_path)!r}]\n"
        "from moescope.console.main import main\n"
        "try:\n    main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert outcome.returncode == 1
    assert "none reports" in outcome.stdout
    assert set(outcome.stderr.split()) & HEAVY == set()
