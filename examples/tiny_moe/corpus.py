"""Text that comes with Python, in three scenes and three parts that share no document.

| scene | documents |
|---|---|
| code | modules of the standard library without their docstrings |
| prose | the docstrings of each of these modules, and the topics of `help()` |
| json | generated records of a few shapes |

The same Python version gives the same text.
"""

from __future__ import annotations

import ast
import inspect
import json
import random
import sysconfig
import warnings
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCENES: Final = ("code", "prose", "json")
PARTS: Final = ("train", "recorded", "held_out")
JSON_DOCUMENTS: Final = 1_200

_SHARES: Final = (0.40, 0.75)
"""Below the first a document is trained on, below the second recorded, else held out."""
_LEFT_OUT: Final = frozenset({"site-packages", "__pycache__", "lib2to3", "idlelib", "turtledemo"})
_SHORTEST_CHARACTERS: Final = 400


@dataclass(frozen=True, slots=True)
class Document:
    """One document; `name` decides its part."""

    name: str
    scene: str
    text: str

    @property
    def part(self) -> str:
        """`train`, `recorded` or `held_out`, by a hash of the name."""
        digest = blake2b(self.name.encode(), digest_size=8).digest()
        share = int.from_bytes(digest, "little") / 2**64
        return PARTS[sum(share >= border for border in _SHARES)]


def documents() -> list[Document]:
    """All documents that are long enough, in an order that depends on names only."""
    found = [*_library(), *_help_topics(), *_json_documents()]
    return [document for document in found if len(document.text) >= _SHORTEST_CHARACTERS]


def _library() -> Iterator[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if _LEFT_OUT & set(name.parts) or name.parts[0].startswith("_sysconfigdata"):
            continue
        if name.parts[0] == "pydoc_data" or "bad" in name.name:
            continue
        try:
            source = path.read_text(encoding="utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except (SyntaxError, ValueError):  # inputs of the parser's own tests
            continue
        strings = list(_docstrings(tree))
        is_test = "test" in name.parts or "tests" in name.parts
        if not is_test:  # tests are many and alike: only their docstrings are taken
            yield Document(f"code/{name.as_posix()}", "code", _without(source, strings))
        prose = "\n\n".join(inspect.cleandoc(node.value) for node in strings)
        yield Document(f"prose/{name.as_posix()}", "prose", prose)


def _docstrings(tree: ast.Module) -> Iterator[Any]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if (
            isinstance(node, owners)
            and ast.get_docstring(node)
            and isinstance(node.body[0], ast.Expr)
        ):
            yield node.body[0].value


def _without(source: str, strings: list[Any]) -> str:
    """The source without the lines of these string literals."""
    gone = {number for node in strings for number in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = source.splitlines()
    return "\n".join(line for number, line in enumerate(lines, 1) if number not in gone) + "\n"


def _help_topics() -> Iterator[Document]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield Document(f"prose/topic/{name}", "prose", topics[name])


def _json_documents() -> Iterator[Document]:
    for number in range(JSON_DOCUMENTS):
        draw = random.Random(f"json {number}")  # noqa: S311 - reproducible text, no secret
        shape = _SHAPES[number % len(_SHAPES)]
        records = [shape(draw) for _ in range(draw.randint(8, 40))]
        indent = draw.choice((None, None, 1, 2))
        text = (
            "\n".join(json.dumps(record) for record in records)
            if indent is None
            else json.dumps(records, indent=indent)
        )
        yield Document(f"json/{number:05d}", "json", text + "\n")


_WORDS: Final = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "falcon",
    "garnet",
    "harbor",
    "iris",
    "juniper",
    "karma",
    "lotus",
    "maple",
    "nimbus",
    "onyx",
    "pepper",
    "quartz",
    "river",
    "saffron",
    "tulip",
    "umber",
    "velvet",
    "willow",
    "xenon",
    "yarrow",
    "zephyr",
]


def _name(draw: random.Random) -> str:
    return f"{draw.choice(_WORDS)}-{draw.choice(_WORDS)}"


def _order(draw: random.Random) -> dict[str, Any]:
    return {
        "order_id": draw.randint(100_000, 999_999),
        "customer": {"name": _name(draw), "vip": draw.random() < 0.2},  # noqa: PLR2004 - how often
        "items": [
            {
                "sku": f"{draw.choice(_WORDS)[:3].upper()}-{draw.randint(1, 999):03d}",
                "quantity": draw.randint(1, 9),
                "price": round(draw.uniform(1, 400), 2),
            }
            for _ in range(draw.randint(1, 4))
        ],
        "status": draw.choice(("open", "paid", "shipped", "returned")),
    }


def _reading(draw: random.Random) -> dict[str, Any]:
    return {
        "sensor": f"{_name(draw)}/{draw.randint(0, 63)}",
        "time": f"2026-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}T"
        f"{draw.randint(0, 23):02d}:{draw.randint(0, 59):02d}:00Z",
        "values": [round(draw.gauss(20, 6), 3) for _ in range(draw.randint(2, 8))],
        "ok": draw.random() < 0.9,  # noqa: PLR2004 - how often
    }


def _log_line(draw: random.Random) -> dict[str, Any]:
    return {
        "level": draw.choice(("debug", "info", "info", "warning", "error")),
        "logger": f"{draw.choice(_WORDS)}.{draw.choice(_WORDS)}",
        "message": " ".join(draw.choices(_WORDS, k=draw.randint(3, 9))),
        "line": draw.randint(1, 2_000),
        "tags": sorted(draw.sample(_WORDS, draw.randint(0, 3))),
        "trace": None if draw.random() < 0.6 else f"{draw.getrandbits(64):016x}",  # noqa: PLR2004 - how often
    }


def _setting(draw: random.Random) -> dict[str, Any]:
    return {
        "key": ".".join(draw.choices(_WORDS, k=3)),
        "value": draw.choice((True, False, draw.randint(0, 10_000), _name(draw), None)),
        "limits": {"min": draw.randint(0, 10), "max": draw.randint(11, 1_000)},
        "description": " ".join(draw.choices(_WORDS, k=draw.randint(4, 12))),
    }


_SHAPES: Final[tuple[Callable[[random.Random], dict[str, Any]], ...]] = (
    _order,
    _reading,
    _log_line,
    _setting,
)
