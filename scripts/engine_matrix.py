"""What the engines' tests verified, as a page: docs/reference/engines.md.

`make engines` leaves a file per environment in build/engines; they are kept in
tests/engines/matrix, and the page is written from those by `make docs`. With --check, only compare:
a test that verifies more or less than the page says shows there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT = Path(__file__).resolve().parent.parent
FRESH = ROOT / "build" / "engines"
KEPT = ROOT / "tests" / "engines" / "matrix"


def kept() -> list[dict[str, Any]]:
    """The results that the page is written from."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(KEPT.glob("*.json"))]


class _Subject(NamedTuple):
    """What is known about one family or feature: engine → what was verified; what was not."""

    verified: dict[str, set[str]]
    not_verified: dict[tuple[str, str], set[str]]


def engines_page() -> str:
    """The matrix: subject × engine, and below what nobody verified."""
    results = kept()
    engines = sorted({str(result["engine"]) for result in results}, key=_natural)
    subjects: dict[str, _Subject] = {}
    for result in results:
        for cell in result["cells"]:
            subject = subjects.setdefault(cell["subject"], _Subject({}, {}))
            if cell["why"]:
                place = subject.not_verified.setdefault((cell["what"], cell["why"]), set())
                place.add(result["engine"])
            else:
                subject.verified.setdefault(result["engine"], set()).add(cell["what"])
    parts = ["# Engines and model families", _INTRODUCTION]
    for name in ("transformers", "OLMo-core", "vLLM"):
        columns = [engine for engine in engines if engine.startswith(name)]
        verified = {
            subject: known.verified
            for subject, known in sorted(subjects.items())
            if any(engine in known.verified for engine in columns)
        }
        if verified:
            parts += [f"## {name}", _verified_table(columns, verified)]
    missing = [
        [f"`{subject}`", what, ", ".join(sorted(where, key=_natural)), why]
        for subject, known in sorted(subjects.items())
        for (what, why), where in sorted(known.not_verified.items())
    ]
    if missing:
        parts += [
            "## Not verified",
            _table(("subject", "what", "engine", "why"), missing),
        ]
    return "\n\n".join(parts)


_INTRODUCTION = """\
What tests verified, on which engine: each cell comes from a test of `make engines` that passed,
which fails when a test verifies more or less than this page says. Nothing here ran on a GPU.
A cell with letters says which of the table's claims hold there; – means that the engine has no such
family, or that nothing was verified."""


def _verified_table(engines: list[str], subjects: dict[str, dict[str, set[str]]]) -> str:
    claims = sorted(
        {what for known in subjects.values() for each in known.values() for what in each}
    )
    letters = {what: _letter(number) for number, what in enumerate(claims)}
    rows = [
        [f"`{subject}`"]
        + [
            " ".join(letters[what] for what in sorted(known.get(engine, ()))) or "–"
            for engine in engines
        ]
        for subject, known in subjects.items()
    ]
    legend = "\n".join(f"- **{letter}**: {what}" for what, letter in letters.items())
    return f"{_table(('subject', *engines), rows)}\n\n{legend}"


def _letter(number: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    tens, ones = divmod(number, len(letters))
    return (letters[tens - 1] if tens else "") + letters[ones]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _natural(engine: str) -> list[tuple[int, str]]:
    """5.6 before 5.12."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", engine)]


def main() -> int:
    """Keep what the tests left, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("engines", nargs="*", help="the environments; by default all that ran")
    arguments = parser.parse_args()
    fresh = _texts(FRESH, arguments.engines)
    if not fresh:
        print(f"engines: no results in {FRESH.relative_to(ROOT)}. Run make engines.")
        return 1
    if not arguments.check:
        KEPT.mkdir(exist_ok=True)
        for name, text in fresh.items():
            (KEPT / name).write_text(text, encoding="utf-8")
        print(f"engines: {len(fresh)} results are kept. Run make docs for the page.")
        return 0
    stored = _texts(KEPT, arguments.engines)
    different = sorted(
        name for name in stored.keys() | fresh.keys() if stored.get(name) != fresh.get(name)
    )
    for name in different:
        print(f"engines: {name} is not what tests/engines/matrix has.")
        for line in sorted(_cells(fresh.get(name)) ^ _cells(stored.get(name))):
            print(f"  {line}")
    if different:
        print("engines: if the tests are right, run `scripts/engine_matrix.py` and `make docs`.")
    return 1 if different else 0


def _texts(folder: Path, engines: Sequence[str]) -> dict[str, str]:
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in folder.glob("*.json")
        if not engines or file.stem in engines
    }


def _cells(text: str | None) -> set[str]:
    cells = json.loads(text)["cells"] if text else []
    return {": ".join(filter(None, cell.values())) for cell in cells}


if __name__ == "__main__":
    sys.exit(main())
