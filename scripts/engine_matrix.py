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
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
FRESH = ROOT / "build" / "engines"
KEPT = ROOT / "tests" / "engines" / "matrix"


def kept() -> list[dict[str, Any]]:
    """The results that the page is written from."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(KEPT.glob("*.json"))]


PROBE = "torch probe"
PARTS = frozenset(
    {
        PROBE,
        "training",
        "vLLM plugin",
        "OLMo-core router",
        "OLMo-core experts",
        "routers of one's own",
    }
)
"""Subjects that are parts of moescope or of an engine; every other one is a family of models."""

TRANSFORMERS = "transformers "
ENGINES = (TRANSFORMERS, "OLMo-core ", "vLLM ")
"""What names of engines begin with, in the order of the columns."""

_VERIFIED, _NOT_VERIFIED, _NOTHING = "✓", "no", "–"


class _Cell(NamedTuple):
    """What is known of one subject on one engine."""

    verified: set[str]
    not_verified: dict[str, str]


_Cells = dict[str, dict[str, _Cell]]
"""Subject → engine → cell."""


def engines_page() -> str:
    """The page, from the kept results."""
    return page(kept())


def page(results: Iterable[dict[str, Any]]) -> str:
    """Two tables: families by version of transformers, and what was verified by engine."""
    cells: _Cells = {}
    engines = set()
    for result in results:
        engine = str(result["engine"])
        engines.add(engine)
        for note in result["cells"]:
            cell = cells.setdefault(note["subject"], {}).setdefault(engine, _Cell(set(), {}))
            if note["why"]:
                cell.not_verified[note["what"]] = note["why"]
            else:
                cell.verified.add(note["what"])
    families = {subject: cells[subject] for subject in sorted(cells.keys() - PARTS)}
    parts = {subject: cells[subject] for subject in sorted(cells.keys() & PARTS)}
    ordered = [
        engine
        for name in ENGINES
        for engine in sorted(engines, key=_natural)
        if engine.startswith(name)
    ]
    lost = sorted(
        subject
        for subject, known in families.items()
        if not all(engine.startswith(TRANSFORMERS) for engine in known)
    )
    if lost or len(ordered) < len(engines):
        message = f"{lost or engines} would be in no table: name it in PARTS or ENGINES"
        raise ValueError(message)
    return "\n\n".join(
        [
            "# Engines and model families",
            _INTRODUCTION,
            *_families(families, [each for each in ordered if each.startswith(TRANSFORMERS)]),
            *_features(parts, families, ordered),
        ]
    )


_INTRODUCTION = """\
What tests verified, on which engine: each cell comes from a test of `make engines` that passed,
which fails when a test verifies more or less than this page says. Nothing here ran on a GPU.

- *Is my model covered?* Look for its family in the first table, in the column of your version.
  That table is of the torch probe. The vLLM plugin goes by how a layer routes, not by families:
  [which models](../how-to/watch-vllm.md#which-models). It was verified on one model.
- *Is what I do with it covered?* Look in the second table.
- *My version has no column.* Nothing was tested with it, be it between the columns, older or newer.
  Nothing refuses it, either: the probe goes by classes and by what routers return. What that means
  is said [above the first table](#model-families-by-version-of-transformers). The vLLM plugin was
  tested with the one version in the second table; where another has not what it hooks, the engine
  serves unwatched and says so in its log.
- *My model brings code of its own* (`trust_remote_code`). No such model was tested. A router of it
  is read like a known one if its class has that one's name, or if it [does what a known one
  does](../how-to/declare-a-router.md); else `attach` refuses the model, and you declare the router.
  A class of a known name that scores otherwise is not noticed: [check
  once](../how-to/declare-a-router.md#check-it) what is recorded."""


def _families(families: _Cells, engines: list[str]) -> Iterator[str]:
    counted = Counter(
        frozenset(cell.verified)
        for known in families.values()
        for cell in known.values()
        if cell.verified
    )
    if not counted:
        return
    most = max(counted.values())
    usual = set(min((claims for claims in counted if counted[claims] == most), key=sorted))
    rows = [
        [
            f"`{subject}`",
            *(_family_cell(known.get(engine), usual) for engine in engines),
            "; ".join(_remarks(known, usual)),
        ]
        for subject, known in families.items()
    ]
    yield "## Model families, by version of transformers"
    yield f"""\
A family is a folder of `transformers.models`, mostly the `model_type` of a model's `config.json`;
behind a comma stands a variant that routes in another way. A test builds a small model with random
weights, and compares what the torch probe says with what the experts got.

- **{_VERIFIED}**: verified: {_listed(usual)}. Words in its place: only those.
- **{_NOT_VERIFIED}**: not covered; the last column says why.
- **{_NOTHING}**: this version has no such family.

**Other versions**, between two columns (4.58, 5.9), older or newer, were not tested. What the probe
knows is bound to a router's class and to the form of what it returns, not to a version. `attach`
refuses a router that it neither knows nor recognises, layers that do not agree, and, with 5.0 to
5.5, routers not seen to return logits. A pass whose routers return another form is not recorded
(`probe.counters.errors`). A version that computes scores otherwise and returns the same form is not
noticed: ids that a router returns stay right, entropy, margin and computed weights may not. [Check
that once](../how-to/declare-a-router.md#check-it), or take a version that has a column."""
    yield _table(("family", *map(_version, engines), "remarks"), rows)


def _family_cell(cell: _Cell | None, usual: set[str]) -> str:
    if cell is None:
        return _NOTHING
    if usual <= cell.verified:
        return _VERIFIED
    return ", ".join(sorted(cell.verified & usual)) or _NOT_VERIFIED


def _remarks(known: dict[str, _Cell], usual: set[str]) -> Iterator[str]:
    """What is verified beyond the usual, and what is not, each with the versions it is said of."""
    more: dict[str, list[str]] = {}
    for engine in sorted(known, key=_natural):
        for what in known[engine].verified - usual:
            more.setdefault(f"also verified: {what}", []).append(engine)
        for what, why in known[engine].not_verified.items():
            # A version that fails itself names itself: all that do share a remark.
            reason = why.replace(engine, "transformers")
            more.setdefault(f"{what} not verified: {reason}", []).append(engine)
    for text, engines in sorted(more.items()):
        everywhere = len(engines) == len(known)
        yield text if everywhere else f"{text} ({', '.join(map(_version, engines))})"


def _features(parts: _Cells, families: _Cells, engines: list[str]) -> Iterator[str]:
    names = {
        what
        for known in parts.values()
        for cell in known.values()
        for what in cell.verified | cell.not_verified.keys()
    }
    if not names:
        return
    rows = []
    for what in sorted(names):
        of_engine = {
            engine: [known[engine] for known in parts.values() if engine in known]
            for engine in engines
        }
        whys = sorted(
            {cell.not_verified.get(what, "") for each in of_engine.values() for cell in each}
        )
        rows.append(
            [
                what,
                *(
                    _feature_cell(what, of_engine[engine], _number(what, families, engine))
                    for engine in engines
                ),
                "; ".join(filter(None, whys)),
            ]
        )
    probed = [
        _version(engine)
        for engine in engines
        if engine.startswith(TRANSFORMERS) and engine in parts.get(PROBE, {})
    ]
    only = (
        "\nOf transformers, all of this but families and routers of one's own (`generate`, caches, "
        f"padding, Trainer) was tested with version {_listed(probed)} only."
        if probed
        else ""
    )
    yield "## Features"
    yield f"""\
With transformers and OLMo-core the torch probe was tested, and the callback for transformers'
Trainer; with vLLM the plugin.{only}

- **{_VERIFIED}**: a test of this feature passed.
- **n families**: so many rows of the first table verified it.
- **{_NOT_VERIFIED}**: known not to be covered; the last column says why.
- **{_NOTHING}**: no test of it ran on this engine.

*Refused*: moescope does not record it, and says why. *Same output* or *same answers*: something was
made to fail, and the engine gave what it gives without moescope; *counted*: what was not recorded
is in the counters."""
    yield _table(("feature", *engines, "remarks"), rows)


def _number(what: str, families: _Cells, engine: str) -> int:
    return sum(engine in known and what in known[engine].verified for known in families.values())


def _feature_cell(what: str, cells: list[_Cell], families: int) -> str:
    words = []
    if any(what in cell.verified for cell in cells):
        words.append(_VERIFIED)
    elif any(what in cell.not_verified for cell in cells):
        words.append(_NOT_VERIFIED)
    if families:
        words.append(f"{families} families" if families > 1 else "1 family")
    return ", ".join(words) or _NOTHING


def _listed(words: Iterable[str]) -> str:
    *first, last = sorted(words)
    return f"{', '.join(first)} and {last}" if first else last


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _version(engine: str) -> str:
    return engine.removeprefix(TRANSFORMERS)


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
