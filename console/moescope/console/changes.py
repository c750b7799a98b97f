"""The commands that change something, as plain values: the same with and without an owner."""

from __future__ import annotations

import types
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final, get_args, get_origin, get_type_hints

from moescope.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One command.

    Attributes:
        action: As typed, for example `threshold activate`.
    """

    action: ClassVar[str] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBaseline(Change):
    """Declare windows healthy.

    Attributes:
        from_us, to_us: Only windows inside of this span of event time; None: of any time.
        models, revisions, scenes, nodes, domains: Only these; empty: all.
        without_nodes: Not these.
        without_spans: Not these spans of event time.
    """

    action: ClassVar[str] = "baseline create"
    name: str
    from_us: int | None = None
    to_us: int | None = None
    models: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()
    scenes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    without_nodes: tuple[str, ...] = ()
    without_spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateThresholds(Change):
    """Make a version of thresholds per scope; empty model and revision: all of them."""

    action: ClassVar[str] = "threshold calibrate"
    baseline: str
    model: str = ""
    revision: str = ""
    activate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivateThresholds(Change):
    """Let a version judge from an event time on; None: as soon as it may."""

    action: ClassVar[str] = "threshold activate"
    version: str
    from_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBackThresholds(Change):
    """Let the version before judge again; empty model and revision: there must be one scope."""

    action: ClassVar[str] = "threshold rollback"
    model: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTestAlert(Change):
    """Send a test notification to every receiver."""

    action: ClassVar[str] = "alert test"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport(Change):
    """Write the calibration report of a version; changes nothing in the store.

    Attributes:
        version: Empty: the newest.
        folder: Absolute; empty: the data directory's own.
    """

    action: ClassVar[str] = "report calibration"
    version: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob(Change):
    """Run a job now."""

    action: ClassVar[str] = "job run"
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseJob(Change):
    """Skip a job's schedule until it is resumed."""

    action: ClassVar[str] = "job pause"
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeJob(Change):
    """Follow a job's schedule again."""

    action: ClassVar[str] = "job resume"
    job: str


CHANGES: Final[dict[str, type[Change]]] = {
    each.action: each
    for each in (
        CreateBaseline,
        CalibrateThresholds,
        ActivateThresholds,
        RollBackThresholds,
        SendTestAlert,
        WriteReport,
        RunJob,
        PauseJob,
        ResumeJob,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A change, who wants it and why."""

    change: Change
    author: str
    reason: str

    def to_document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "action": self.change.action,
            "arguments": asdict(self.change),
            "author": self.author,
            "reason": self.reason,
        }

    @classmethod
    def of_document(cls, document: dict[str, Any]) -> Order:
        """From what `to_document` wrote, perhaps in another process of another version.

        Raises:
            InputError: It is no command of this version.
        """
        kind = CHANGES.get(str(document.get("action")))
        arguments = document.get("arguments")
        author, reason = document.get("author"), document.get("reason")
        if kind is None or not (
            isinstance(arguments, dict) and isinstance(author, str) and isinstance(reason, str)
        ):
            raise _refused("it is not known here")
        hints = get_type_hints(kind)
        known = {each.name for each in fields(kind)}
        try:
            values = {name: _typed(value, hints[name]) for name, value in arguments.items()}
            if unknown := values.keys() - known:
                raise _refused(f"it has no {', '.join(sorted(unknown))}")
            return cls(change=kind(**values), author=author, reason=reason)
        except (KeyError, TypeError, ValueError) as error:
            raise _refused(f"its arguments do not fit: {error}") from error


def _typed(value: object, hint: Any) -> Any:  # noqa: ANN401 (whatever the field declares)
    """A JSON value as the declared type."""
    if get_origin(hint) is types.UnionType:
        if value is None and type(None) in get_args(hint):
            return None
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError("expected a list")
        inner = get_args(hint)
        if inner[-1] is Ellipsis:
            return tuple(_typed(each, inner[0]) for each in value)
        return tuple(_typed(each, kind) for each, kind in zip(value, inner, strict=True))
    if type(value) is not hint:
        raise ValueError(f"expected {hint.__name__}, got {value!r}")
    return value


def _refused(why: str) -> InputError:
    return InputError(
        "The owner does not understand the command; nothing was done.",
        why=f"In this version of moescope {why}.",
        next_step="Use the same version on the command line as the owner runs.",
    )
