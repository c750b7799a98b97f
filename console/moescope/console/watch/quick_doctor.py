"""`moescope doctor --component` without the command line's library.

A container asks every few seconds, beside an inference server: with the library the answer would
take four times as much processor time. Whatever is not exactly that question is left to the
real command, mistakes and `--help` included.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


def quick_answer(arguments: Sequence[str]) -> int | None:
    """Print what the command would, and give its exit code; None leaves it to the command.

    Raises:
        SettingsError: Something is not accepted.
    """
    if arguments[:1] != ["doctor"] or not any("--component" in each for each in arguments):
        return None
    options = _parsed(arguments[1:])
    if options is None:
        return None
    from moescope.console.finding_lines import show_findings
    from moescope.console.watch.verdict import local_findings
    from moescope.core.settings import load_settings

    path = options.config or os.environ.get("MOESCOPE_CONFIG")
    settings = load_settings(
        Path(path) if path else None,
        options={} if options.data is None else {"data.directory": options.data},
    )
    findings = local_findings(settings, options.component, options.max_age)
    return show_findings(findings, as_json=options.json)


def _parsed(arguments: Sequence[str]) -> Namespace | None:
    from argparse import ArgumentParser

    from moescope.console.watch.health import COMPONENTS

    class Parser(ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ValueError(message)

    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--component", choices=COMPONENTS, required=True)
    parser.add_argument("--max-age", type=float, default=30.0)
    parser.add_argument("--config")
    parser.add_argument("--data")
    parser.add_argument("--json", action="store_true")
    try:
        options, rest = parser.parse_known_args(arguments)
    except ValueError:
        return None
    return None if rest else options
