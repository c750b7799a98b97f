"""The page of what engines' tests verified."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    Page = Callable[[list[dict[str, Any]]], str]

USUAL = ("ids", "weights")


@pytest.fixture(scope="module")
def page(repository_root: Path) -> Page:
    """The function that writes the page."""
    script = runpy.run_path(str(repository_root / "scripts" / "engine_matrix.py"))
    written: Page = script["page"]
    return written


def result(engine: str, **claims: tuple[str, ...] | Mapping[str, str]) -> dict[str, Any]:
    """What an environment's tests leave: subject → verified claims, or claim → why it is not."""
    cells = []
    for subject, whats in claims.items():
        reasons = whats if not isinstance(whats, tuple) else dict.fromkeys(whats, "")
        name = subject.replace("__", " ")
        cells += [{"subject": name, "what": what, "why": why} for what, why in reasons.items()]
    return {"engine": engine, "cells": cells}


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The other cells of a table's rows by the first."""
    section = text.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
    return {first: rest for first, *rest in cells}


def test_a_family_has_one_row_with_a_cell_per_version(page: Page) -> None:
    """What is whole, partial, refused with a reason, and absent can be told apart."""
    text = page(
        [
            result(
                "transformers 5.12.1", mixtral=USUAL, olmoe=(*USUAL, "drops"),
                doge={"routing": "no scores"},
            ),
            result(
                "transformers 5.6.2", mixtral=USUAL, olmoe=("ids",),
                jamba={"routing": "transformers 5.6.2 fails"},
            ),
        ]
    )  # fmt: skip
    table = rows(text, "Model families")
    assert table["family"] == ["5.6.2", "5.12.1", "remarks"]
    assert table["`mixtral`"] == ["✓", "✓", ""]
    assert table["`olmoe`"] == ["ids", "✓", "also verified: drops (5.12.1)"]
    assert table["`doge`"] == ["–", "no", "routing not verified: no scores"]
    assert table["`jamba`"] == ["no", "–", "routing not verified: transformers fails"]
    assert "**✓**: verified: ids and weights." in text


def test_a_feature_has_one_row_with_a_cell_per_engine(page: Page) -> None:
    """A feature that only families verify is told as their number, and no engine stands for two."""
    text = page(
        [
            result("vLLM 0.32.0", vLLM__plugin=("ids", "preemption")),
            result(
                "transformers 5.6.2", torch__probe={"preemption": "has none"}, mixtral=USUAL,
                olmoe=USUAL, jamba=("weights",),
            ),
        ]
    )  # fmt: skip
    table = rows(text, "Features")
    assert table["feature"] == ["transformers 5.6.2", "vLLM 0.32.0", "remarks"]
    assert table["ids"] == ["2 families", "✓", ""]
    assert table["preemption"] == ["no", "✓", "has none"]
    assert "weights" not in table


def test_versions_that_no_feature_was_tested_on_are_told_apart(page: Page) -> None:
    """Who runs an older transformers does not take a feature of the newest for one of his own."""
    text = page(
        [
            result("transformers 5.6.2", olmoe=USUAL),
            result("transformers 5.12.1", olmoe=USUAL, torch__probe=("static cache",)),
        ]
    )
    assert "was tested with version 5.12.1 only" in " ".join(text.split())
    assert "only" not in page([result("vLLM 0.32.0", vLLM__plugin=("ids",))])


@pytest.mark.parametrize(
    "lost", [result("vLLM 0.32.0", new__part=("ids",)), result("other 1.0", vLLM__plugin=("ids",))]
)
def test_nothing_verified_is_left_out(page: Page, lost: dict[str, Any]) -> None:
    """A part or an engine that no table has stops the generator."""
    with pytest.raises(ValueError, match="would be in no table"):
        page([lost])


@pytest.fixture
def command(
    repository_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """The script, in a checkout of its own: arguments → exit code."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "tests" / "engines").mkdir(parents=True)
    script = str(tmp_path / "scripts" / "engine_matrix.py")
    shutil.copy(repository_root / "scripts" / "engine_matrix.py", script)

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        main: Callable[[], int] = runpy.run_path(script)["main"]
        return main()

    return run


def left_by_tests(root: Path, name: str, *whats: str) -> None:
    """What an environment's tests verified, as they leave it."""
    file = root / "build" / "engines" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result("transformers 5.6.2", olmoe=whats)), encoding="utf-8")


def test_a_test_that_verifies_something_else_is_told(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More or less than the page says fails the check, which keeps nothing of it."""
    left_by_tests(tmp_path, "torch", "ids", "weights")
    assert command("--check") == 1
    assert command() == 0
    assert command("--check") == 0
    kept = (tmp_path / "tests" / "engines" / "matrix" / "torch.json").read_bytes()
    for whats, line in (
        (("ids",), "  olmoe: weights"),
        (("ids", "weights", "drops"), "  olmoe: drops"),
    ):
        left_by_tests(tmp_path, "torch", *whats)
        capsys.readouterr()
        assert command("--check") == 1
        told = capsys.readouterr().out.splitlines()
        assert told[:2] == ["engines: torch.json is not what tests/engines/matrix has.", line]
        assert (tmp_path / "tests" / "engines" / "matrix" / "torch.json").read_bytes() == kept


def test_the_check_is_of_all_environments_or_those_that_are_named(
    command: Callable[..., int], tmp_path: Path
) -> None:
    """One that left nothing fails a check of all, and no check of another one."""
    assert command("--check") == 1
    for name in ("torch", "vllm"):
        left_by_tests(tmp_path, name, "ids")
    assert command() == 0
    (tmp_path / "build" / "engines" / "vllm.json").unlink()
    assert command("--check") == 1
    assert command("--check", "torch", "vllm") == 1
    assert command("--check", "torch") == 0
    assert command("--check", "vllm") == 1
