"""Write docs/reference/ from the declarations in the code; with --check, only compare.

A page with the marker in its first line is generated; the other pages of the folder are written
by hand and left alone.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from moescope.core.errors import MoescopeError
from moescope.core.metrics import METRICS
from moescope.core.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
MARKER = "<!-- Written by `make docs` from the code: change the declaration, not this page. -->"
COMPONENTS = ("core", "producers", "processors", "storage", "jobs", "console")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells lose their line breaks, and bars are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def document(*parts: str) -> str:
    """Paragraphs, one blank line between them."""
    return "\n\n".join(parts)


def settings_page() -> str:
    """One row per setting."""
    rows = [
        (
            f"`{setting.name}`",
            f"`{setting.variable}`",
            setting.kind,
            f"`{setting.default!r}`",
            setting.help,
        )
        for setting in SETTINGS
    ]
    return document(
        "# Settings",
        "Read from a TOML file (`[section]`, then `key`), from environment variables, and from "
        "options of the command line; later ones win.",
        table(("setting", "variable", "type", "default", "meaning"), rows),
    )


EXAMPLE_ROUTER = (64, 8)


def metrics_page() -> str:
    """What each stored metric is, and the values that it can take."""
    rows = []
    for metric in METRICS:
        low, high = metric.bounds(*EXAMPLE_ROUTER)
        rows.append(
            (
                f"`{metric.name}`",
                f"{metric.summary}.",
                f"`{metric.formula}`",
                metric.unit,
                metric.side.value,
                "yes" if metric.alerts else "no",
                metric.needs.value,
                f"{low:.3g} to {high:.3g}",
                str(metric.version),
            )
        )
    experts, top_k = EXAMPLE_ROUTER
    return document(
        "# Metrics",
        "One column of `windows` each. A window at a layer has counts `c_e` of `E` experts, "
        "`n = Σ c_e` assignments (tokens × `k`), mean `m = n / E` and shares `p = c / n`; `q` is "
        "the reference, and `p̃` the shares smoothed like it.",
        "A metric whose bad side is `none` is context and never judged. A token selects `k` "
        f"distinct experts, so no value lies outside of the attainable range, given here for "
        f"{experts} experts and top-{top_k}. Values of different formula versions are never "
        "compared.",
        table(
            (
                "metric", "tells", "formula", "unit", "bad side", "alerts", "needs",
                f"range at {experts} experts, top-{top_k}", "version",
            ),
            rows,
        ),
    )  # fmt: skip


def import_everything() -> None:
    """Import each module, so that every error class exists."""
    for component in COMPONENTS:
        package = importlib.import_module(f"moescope.{component}")
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


def subclasses(kind: type[MoescopeError]) -> Iterator[type[MoescopeError]]:
    """A class and all classes below it, parents first."""
    yield kind
    for child in sorted(kind.__subclasses__(), key=lambda found: found.__name__):
        yield from subclasses(child)


def errors_page() -> str:
    """One row per error class."""
    import_everything()
    rows = [
        (
            f"`{kind.__name__}`",
            f"`{kind.__module__}`",
            str(kind.exit_code),
            "yes" if kind.retriable else "no",
            (kind.__doc__ or "").strip().splitlines()[0],
        )
        for kind in dict.fromkeys(subclasses(MoescopeError))
    ]
    exit_codes = (
        ("0", "fine"),
        ("1", "the answer is no: a check found something, or `--fail-on` was reached"),
        ("2", "wrong use or bad input"),
        ("3", "something that moescope depends on is unreachable"),
        ("4", "insufficient data"),
        ("70", "internal error"),
    )
    return document(
        "# Errors and exit codes",
        "Every error says what happened, why, and what to do next. A retriable error may go "
        "away without a change.",
        "## Exit codes of the command line",
        table(("code", "meaning"), exit_codes),
        "## Error classes",
        table(("error", "module", "exit code", "retriable", "meaning"), rows),
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "errors.md": errors_page,
}


def generated_pages() -> dict[str, str]:
    """Name and text of each page."""
    return {name: f"{MARKER}\n\n{page()}\n" for name, page in PAGES.items()}


def existing_pages(folder: Path) -> dict[str, str]:
    """The generated pages that lie in the folder."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    return {name: text for name, text in texts.items() if text.startswith(MARKER)}


def main() -> int:
    """Write the pages, or say how they differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--folder", type=Path, default=REFERENCE, help="where the pages lie")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    wanted, found = generated_pages(), existing_pages(folder)
    if arguments.check:
        for name in sorted(wanted.keys() | found.keys()):
            old, new = found.get(name, ""), wanted.get(name, "")
            sys.stdout.writelines(
                difflib.unified_diff(
                    old.splitlines(keepends=True), new.splitlines(keepends=True), name, name
                )
            )
        if wanted != found:
            print("docs/reference is out of date: run `make docs`.", file=sys.stderr)
        return int(wanted != found)
    folder.mkdir(parents=True, exist_ok=True)
    for name in found.keys() - wanted.keys():
        (folder / name).unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
