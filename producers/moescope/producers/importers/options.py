"""Options of import formats: declared once, for parsing, help and the identity of an import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moescope.core.vocabulary import MAX_EXPERTS, Phase, RankOrder
from moescope.producers.importers.errors import ImportFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

IMPORTABLE_PHASES = {
    phase.name.lower(): phase
    for phase in (Phase.PREFILL, Phase.DECODE, Phase.EVAL, Phase.TRAIN, Phase.WARMUP, Phase.DRAFT)
}
RANK_ORDERS = {order.name.lower(): order for order in RankOrder}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a format.

    Attributes:
        parse: Text → value; raises ValueError.
        default: Value when it is not given.
        changes_rows: Whether it changes what is imported, and so the identity of the import.
        example: A value, where nothing can be imported without one; else empty.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    changes_rows: bool = True
    example: str = ""


def parse_options(declared: Sequence[Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Typed values of all options.

    Raises:
        ImportFormatError: An unknown name or a value that does not parse.
    """
    values = {option.name: option.default for option in declared}
    by_name = {option.name: option for option in declared}
    for name, text in given.items():
        option = by_name.get(name)
        if option is None:
            raise ImportFormatError(
                f"There is no import option {name!r}.",
                next_step=f"Options of this format: {', '.join(by_name)}.",
            )
        try:
            values[name] = option.parse(text)
        except ValueError as error:
            raise ImportFormatError(
                f"The import option {name} cannot be {text!r}.",
                why=str(error),
                next_step=option.help,
            ) from error
    return values


def missing_options(declared: Sequence[Option], values: Mapping[str, Any]) -> list[Option]:
    """Options without which nothing can be imported, and which were not given."""
    return [option for option in declared if option.example and values[option.name] is None]


def identity_of(form: str, declared: Sequence[Option], values: Mapping[str, Any]) -> bytes:
    """What distinguishes imports of one file: the format, and options that change its rows."""
    shown = [
        f"{option.name}={values[option.name]!r}"
        for option in sorted(declared, key=lambda option: option.name)
        if option.changes_rows and values[option.name] != option.default
    ]
    return "\0".join([form, *shown]).encode()


def integer(lowest: int, highest: int) -> Callable[[str], int]:
    """Parser of an integer within bounds."""

    def parse(text: str) -> int:
        message = f"It has to be a whole number, {lowest} to {highest}."
        try:
            value = int(text)
        except ValueError:
            raise ValueError(message) from None
        if not lowest <= value <= highest:
            raise ValueError(message)
        return value

    return parse


def choice(known: Mapping[str, Any]) -> Callable[[str], Any]:
    """Parser of one of several words."""

    def parse(text: str) -> Any:
        if text not in known:
            message = f"It has to be one of {', '.join(known)}."
            raise ValueError(message)
        return known[text]

    return parse


def non_empty(text: str) -> str:
    """Parser of a name."""
    if not text:
        message = "It must not be empty."
        raise ValueError(message)
    return text


def layer_list(text: str) -> tuple[int, ...]:
    """Parser of layer indices such as `0,3-5`: ascending, without repeats."""
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        end = int(last if dash else first)
        if end > MAX_EXPERTS:
            message = f"A layer is at most {MAX_EXPERTS}."
            raise ValueError(message)
        layers += range(int(first), end + 1)
    if not layers or layers != sorted(set(layers)) or layers[-1] > MAX_EXPERTS:
        message = "Layers are listed ascending, without repeats."
        raise ValueError(message)
    return tuple(layers)


MODEL = Option("model", non_empty, "imported", "Name of the model.")
REVISION = Option("revision", str, "imported", "Revision of the model.")
EXPERTS = Option(
    "experts",
    integer(1, MAX_EXPERTS),
    None,
    "Experts per layer of the whole model (num_experts of its config; --num-experts); a file only "
    "shows which were used.",
    example="64",
)
SCENE = Option("scene", non_empty, "unknown", "Scene of requests that name none.")
MAX_REJECTED = Option(
    "max_rejected",
    integer(0, 2**62),
    None,
    "Stop when more lines than this are rejected; by default an import never stops for them.",
    changes_rows=False,
)
MAX_MEMORY = Option(
    "max_memory_mib",
    integer(1, 1 << 20),
    2048,
    "Most memory for the rows of one file, in MiB; larger files have to be split.",
    changes_rows=False,
)
RUN_OPTIONS = (MODEL, REVISION, SCENE, MAX_REJECTED)
"""Of a run whose files do not say what it is called."""

ROW_OPTIONS = (*RUN_OPTIONS, MAX_MEMORY)
"""The same, where a file's rows are held in memory."""
