"""The page of known faults is what is declared, and each test that it names exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from support.known_faults import KNOWN_FAULTS, PAGE, Verdict, page

ROOT = Path(__file__).resolve().parents[2]


@cache
def functions_of(file: str) -> frozenset[str]:
    """Names of the test functions of a file, none if there is no such file."""
    path = ROOT / file
    if not path.exists():
        return frozenset()
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(
        node.name
        for node in found
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_the_page_is_what_is_declared() -> None:
    """A verdict that changes changes the page, and the page cannot be changed alone."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_thirty_faults_are_there() -> None:
    """None is left out, and none is told twice."""
    assert [fault.number for fault in KNOWN_FAULTS] == list(range(1, 31))
    assert len({report for fault in KNOWN_FAULTS for report in fault.reports}) == sum(
        len(fault.reports) for fault in KNOWN_FAULTS
    )


def test_each_fault_names_tests_that_exist() -> None:
    """A test that is renamed or removed takes its claim along."""
    missing = [
        (fault.number, test)
        for fault in KNOWN_FAULTS
        for test in fault.tests or ("no test at all",)
        if test.partition("::")[2] not in functions_of(test.partition("::")[0])
    ]
    assert missing == []


def test_what_is_not_visible_is_shown_in_every_check() -> None:
    """A claim of invisibility or of a flag does not wait for an engine to be installed."""
    for fault in KNOWN_FAULTS:
        if fault.verdict is not Verdict.PREVENTED:
            assert not fault.tests[0].startswith("tests/engines/"), fault.number
