"""Write docs/reference/ from the declarations in the code; with --check, only compare.

A page with the marker in its first line is generated; the other pages of the folder are written
by hand and left alone.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import runpy
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.testing import CliRunner

from moescope.console.app import app
from moescope.core.kafka.broker_settings import BROKER_SETTINGS, SINGLE_NODE_SETTINGS
from moescope.core.kafka.topics import PURPOSES, declared_topics
from moescope.core.metrics import METRICS
from moescope.core.patterns import PATTERNS
from moescope.core.self_metrics import SELF_METRICS
from moescope.core.settings import SETTINGS, load_settings
from moescope.core.tables import TABLES, VIEWS
from moescope.producers.recording.switch import DISABLE_FILE, DISABLE_VARIABLE
from moescope.producers.vllm_plugin.settings import VARIABLES, PluginSettings, Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
MARKER = "<!-- Written by `make docs` from the code: change the declaration, not this page. -->"
ROOT_ERROR = "MoescopeError"
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
    """One row per setting, then one per variable of the producers."""
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
        "Two kinds of program are set up, each in its own way: the [commands](#commands), such as "
        "the agent, the processor and the store, and the [producers](#producers), which record "
        "inside an engine and read no settings file.",
        "## Commands",
        "Read from a TOML file (`[section]`, then `key`), from environment variables, and from "
        "options of the command line; later ones win. `MOESCOPE_CONFIG` names the file, as "
        "`--config` does; `MOESCOPE_TRACEBACK=1` shows the traceback of an internal error.",
        table(("setting", "variable", "type", "default", "meaning"), rows),
        "## Producers",
        f"`{DISABLE_VARIABLE}=1` switches recording off in any process that is started with it: "
        "the vLLM plugin, the torch probe, each `Recorder`. While one runs, a file "
        f"`{DISABLE_FILE}` in the ring's folder does it, until the file is removed. These two are "
        "all that a `Recorder` or `attach` takes from outside; the rest are "
        "[arguments](../how-to/record-routing.md).",
        "The [vLLM plugin](../how-to/watch-vllm.md) is set up by variables alone, in the "
        "environment of the server. A variable that is empty is one that is not set.",
        table(("variable", "type", "default", "meaning"), plugin_rows()),
    )


def plugin_rows() -> Iterator[tuple[str, str, str, str]]:
    """One row per variable of the vLLM plugin."""
    fields = {field.name: field for field in dataclasses.fields(PluginSettings)}
    for variable in VARIABLES:
        default = _plugin_default(variable, fields[variable.field].default)
        yield f"`{variable.name}`", variable.kind, default, variable.help


def _plugin_default(variable: Variable, value: object) -> str:
    """A default as one would write it into the variable; empty where there is none."""
    if value is None or value is dataclasses.MISSING:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        return f"`{value.name.lower()}`"
    if isinstance(value, int):
        return f"`{value // variable.unit}`"
    return f"`{value}`"


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


def patterns_page() -> str:
    """One section per pattern."""
    sections = []
    for pattern in PATTERNS:
        marks = [
            "may page" if pattern.pages else "informs, never pages",
            *([f"found by {pattern.found_by} only"] if pattern.paired else []),
            *(["experimental"] if pattern.experimental else []),
        ]
        sections.append(
            document(
                f"## `{pattern.name}`",
                f"{pattern.summary} ({'; '.join(marks)})",
                f"- Evidence: {pattern.evidence}\n- Likely cause: {pattern.likely_cause}\n"
                f"- Next step: {pattern.next_step}",
            )
        )
    return document(
        "# Patterns",
        "What detectors name, and what to do about it. `moescope pattern list` shows what "
        "the job `patterns` found; rows are in the table of that name. Lines are those of the "
        "thresholds in force: before a calibration the job finds `engine_fault` only.",
        *sections,
    )


def tables_page() -> str:
    """Every table and view with its columns."""
    introduction = (
        "Names are an interface: they are migrated, never silently changed. Times are UTC. "
        "Columns named `…_us` hold microseconds since the epoch. Tables marked internal are not "
        "shown to queries."
    )
    parts = ["# Tables and views", introduction, "## Views"]
    for view in VIEWS:
        columns = ((f"`{name}`", meaning) for name, meaning in view.columns)
        parts += [f"### `{view.name}`", view.doc, table(("column", "meaning"), columns)]
    parts.append("## Tables")
    for declared in TABLES:
        key = ", ".join(f"`{name}`" for name in declared.key) or "none"
        rows = (
            (
                f"`{column.name}`",
                f"`{column.type}`",
                "yes" if column.nullable else "no",
                column.doc,
            )
            for column in declared.columns
        )
        parts += [
            f"### `{declared.name}`",
            declared.doc + ("" if declared.exported else " Internal."),
            f"Key: {key}. Kept: {declared.retention.rstrip('.')}.",
            table(("column", "type", "null", "meaning"), rows),
        ]
    return document(*parts)


def class_definitions() -> Iterator[tuple[str, ast.ClassDef]]:
    """Module and definition of each class of the sources.

    Read without importing: some modules cost seconds, and some need what is not installed here.
    """
    for component in COMPONENTS:
        for path in sorted((ROOT / component).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT / component).with_suffix("").parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    yield module.removesuffix(".__init__"), node


def class_constants(node: ast.ClassDef) -> dict[str, object]:
    """Names that the class body sets to a literal."""
    constants: dict[str, object] = {}
    for line in node.body:
        targets = line.targets if isinstance(line, ast.Assign) else []
        if isinstance(line, ast.AnnAssign):
            targets = [line.target]
        value = getattr(line, "value", None)
        if isinstance(value, ast.Constant):
            constants |= {to.id: value.value for to in targets if isinstance(to, ast.Name)}
        elif {getattr(to, "id", "") for to in targets} & {"exit_code", "retriable"}:
            raise ValueError(f"{node.name}, line {line.lineno}: not a literal, so not in the page")
    return constants


def error_classes() -> list[type[Any]]:
    """`MoescopeError` and all classes below it, sorted, rebuilt from their definitions.

    Python itself then says what they inherit, several bases included.
    """
    waiting = list(class_definitions())
    rebuilt: dict[str, type[Any]] = {}
    progress = True
    while progress:
        progress = False
        for module, node in list(waiting):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            pending = {other.name for _, other in waiting if other.name.endswith("Error")}
            known = tuple(rebuilt[base] for base in bases if base in rebuilt)
            if node.name == ROOT_ERROR or (known and pending.isdisjoint(bases)):
                rebuilt[node.name] = type(
                    node.name,
                    known or (object,),
                    {
                        **class_constants(node),
                        "__module__": module,
                        "__doc__": ast.get_docstring(node),
                    },
                )
                waiting.remove((module, node))
                progress = True
    return sorted(rebuilt.values(), key=lambda kind: (kind.__module__, kind.__name__))


def errors_page() -> str:
    """One row per error class."""
    rows = [
        (
            f"`{kind.__name__}`",
            f"`{kind.__module__}`",
            str(kind.exit_code),
            "yes" if kind.retriable else "no",
            (kind.__doc__ or "").partition("\n")[0],
        )
        for kind in error_classes()
    ]
    exit_codes = (
        ("0", "fine"),
        (
            "1",
            "the answer is no: `doctor` found something broken, or `topics-check` a difference",
        ),
        ("2", "wrong use or bad input"),
        (
            "3",
            "something that moescope depends on is unreachable: a broker, a lock, a file, a disk",
        ),
        ("4", "insufficient data"),
        ("70", "internal error"),
        ("130", "interrupted with Ctrl-C; each `run …` ends with 0 instead, also after SIGTERM"),
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


def self_metrics_page() -> str:
    """One section per component, one row per metric."""
    introduction = (
        "What moescope says of itself at `/metrics`, where `watch.port` is set. Names and labels "
        "are an interface. Base units: seconds and bytes; a counter ends with `_total`, a time "
        "with `_timestamp_seconds` (since the epoch). A process shows what it has reported, and "
        "the `process_…` metrics of Prometheus's client. "
        "[Watch moescope](../how-to/watch-moescope.md) shows how to scrape them, and the rules."
    )
    parts = ["# Self-metrics", introduction]
    for component in dict.fromkeys(metric.component for metric in SELF_METRICS):
        rows = (
            (
                f"`{metric.name}`",
                metric.kind.value,
                ", ".join(f"`{label}`" for label in metric.labels),
                metric.help,
            )
            for metric in SELF_METRICS
            if metric.component == component
        )
        parts += [
            f"## {component.capitalize()}",
            table(("metric", "kind", "labels", "meaning"), rows),
        ]
    return document(*parts)


def topics_page() -> str:
    """The topics by default settings, and what is asked of a broker."""
    topics = declared_topics(load_settings(environment={}))
    rows = [
        (
            f"`{spec.name}`",
            str(spec.partitions),
            PURPOSES[spec.topic],
            ", ".join(f"`{name}={value}`" for name, value in sorted(spec.configs.items())),
        )
        for spec in topics
    ]
    return document(
        "# Topics and broker settings",
        "`moescope kafka topics-apply` makes the topics, `topics-check` compares them. Names begin "
        "with the setting `kafka.topic_prefix`; the table shows the defaults. Further "
        "[settings](settings.md): `kafka.partitions`, `kafka.replication`, "
        "`kafka.routing_retention`, `kafka.dlq_retention` and `kafka.alerts_retention`. "
        "Configurations that are not named here are free.",
        table(("topic", "partitions", "holds", "configuration"), rows),
        "The number of partitions of the routing topic is the most processors that can share the "
        "load. It is never changed: a node's batches would move to another partition in the "
        "middle of its requests. Another number needs another prefix.",
        "## Settings of any broker",
        "`moescope doctor` warns where a broker's limits are tighter. The time-outs of the "
        "settings `kafka.session_timeout` and `kafka.transaction_timeout` have to lie inside of "
        "`group.min.session.timeout.ms`, `group.max.session.timeout.ms` and "
        "`transaction.max.timeout.ms`.",
        _properties(BROKER_SETTINGS),
        "## Further settings of a single node",
        "What a broker without peers needs on top: docker compose, `make kafka` and the tests.",
        _properties(SINGLE_NODE_SETTINGS),
        "With more than one broker, give topics three replicas (`kafka.replication = 3`, or the "
        "broker's `default.replication.factor`) and `min.insync.replicas=2`.",
    )


def _properties(values: Mapping[str, str]) -> str:
    lines = (f"{name}={value}" for name, value in values.items())
    return "\n".join(["```properties", *lines, "```"])


def command_paths(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:  # noqa: ANN401 (typer's own classes have no public name)
    """The words of each command, groups left out."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from command_paths(command, (*path, name))
        else:
            yield *path, name


def commands_page() -> str:
    """What `--help` says, for every command."""
    terminal = CliRunner(env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    introduction = (
        "Data goes to standard output, progress to standard error. "
        "[Exit codes](errors.md) are the same everywhere."
    )
    parts = ["# Commands", introduction]
    for path in command_paths(typer.main.get_command(app)):
        outcome = terminal.invoke(app, [*path, "--help"], prog_name="moescope")
        if outcome.exit_code:
            raise SystemExit(f"moescope {' '.join(path)} --help failed: {outcome.output}")
        lines = [line.rstrip() for line in outcome.output.strip().splitlines()]
        parts += [f"## `moescope {' '.join(path)}`", "\n".join(["```text", *lines, "```"])]
    return document(*parts)


def engines_page() -> str:
    """What tests of engines verified; see `engine_matrix.py`."""
    # Not imported: on a path that has this folder, `kafka` would be the script beside it.
    page: str = runpy.run_path(str(Path(__file__).with_name("engine_matrix.py")))["engines_page"]()
    return page


PAGES: dict[str, Callable[[], str]] = {
    "engines.md": engines_page,
    "settings.md": settings_page,
    "topics.md": topics_page,
    "self-metrics.md": self_metrics_page,
    "metrics.md": metrics_page,
    "patterns.md": patterns_page,
    "tables.md": tables_page,
    "errors.md": errors_page,
    "commands.md": commands_page,
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
