"""Which windows are healthy: spans, revisions, scenes, nodes, and what is out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from moescope.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Span(NamedTuple):
    """Event time from `from_us` to before `to_us`."""

    from_us: int
    to_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A selection of windows that somebody vouches for. Empty tuples mean: all.

    Attributes:
        name: Its name. version: 1, 2, …; 0 before it is stored.
        spans: A window belongs when it lies wholly inside of one. Without spans windows of any
            time, and of none, belong.
        models, revisions, domains: As in `windows`.
        scenes: Windows whose rows are all of these scenes.
        nodes: Windows of these nodes. Like `without_nodes` it leaves out windows that mix nodes.
        without_nodes: Nodes known to be bad.
        without_spans: Incidents: windows that touch one are out.
        without_alerts: Whether the times of alerts that fired are out as well.
    """

    name: str
    version: int = 0
    spans: tuple[Span, ...] = ()
    models: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()
    scenes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    without_nodes: tuple[str, ...] = ()
    without_spans: tuple[Span, ...] = ()
    without_alerts: bool = True

    def __post_init__(self) -> None:
        """Refuse what could never select anything.

        Raises:
            InputError: No name, or a span that ends before it begins.
        """
        if not self.name:
            raise InputError("A baseline needs a name.")
        for span in (*self.spans, *self.without_spans):
            if span[0] >= span[1]:
                raise InputError(
                    f"A span of baseline {self.name!r} ends before it begins.",
                    why=f"It goes from {span[0]} to {span[1]} (µs).",
                    next_step="Give the earlier time first.",
                )

    def to_json(self) -> dict[str, Any]:
        """What `baselines.selection_json` holds: everything but name and version."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in {"name", "version"}
        }

    @classmethod
    def from_json(cls, name: str, version: int, selection: Mapping[str, Any]) -> Baseline:
        """The baseline that `to_json` gave, read back from JSON."""
        values: dict[str, Any] = {}
        for key, value in selection.items():
            if key in {"spans", "without_spans"}:
                values[key] = tuple(Span(*span) for span in value)
            else:
                values[key] = tuple(value) if isinstance(value, list) else value
        return cls(name=name, version=version, **values)
