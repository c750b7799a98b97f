"""Which kinds of windows a page shows in full: one per phase, kind and scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.jobs.reports.rows import plain_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moescope.jobs.reports.schema import KeyLines, WindowsKey

Kind = tuple[str, str, int, int, str]


def kind_of(key: WindowsKey) -> Kind:
    """Phase, kind, size, stride and scope kind: what scenes and volume bands divide."""
    return key["phase"], key["window_kind"], key["size"], key["stride"], key["scope_kind"]


def by_kind(judged: Sequence[KeyLines]) -> dict[Kind, list[KeyLines]]:
    """Keys with lines, together with those that differ in scene and volume alone."""
    groups: dict[Kind, list[KeyLines]] = {}
    for each in judged:
        if each["lines"]:
            groups.setdefault(kind_of(each["key"]), []).append(each)
    return groups


def main_keys(judged: Sequence[KeyLines]) -> list[KeyLines]:
    """Of each group the windows of any scene with most windows behind them."""
    return [max(group, key=_weight) for group in by_kind(judged).values()]


def _weight(each: KeyLines) -> tuple[bool, int, int, tuple[str, ...]]:
    key = each["key"]
    any_scene = not key["scene"] or key["scope_kind"] == "scene"
    windows = max(line["windows"] for line in each["lines"])
    return any_scene, windows, len(each["lines"]), tuple(map(str, plain_key(key)))
