"""Settings of the plugin: environment variables only, since vLLM hands plugins no arguments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from moescope.core.errors import SettingsError, refuse
from moescope.core.vocabulary import UNKNOWN_SCENE, Fidelity, TokenIdKind
from moescope.producers.ring.facts import MAX_NAME_BYTES, is_name
from moescope.producers.ring.layout import DEFAULT_RING_BYTES
from moescope.producers.waiting import HELD_PASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DIRECTORY_VARIABLE: Final = "MOESCOPE_DIR"

_MIB: Final = 1024 * 1024
_SHOWN: Final = 80
_MOST_MIB: Final = 65_536
_MOST_PASSES: Final = 64


@dataclass(frozen=True, slots=True)
class Variable:
    """One setting.

    Attributes:
        name: Of the environment variable.
        field: Of `PluginSettings`.
        parse: Turns its text into the value; raises ValueError.
        kind: The type as the documentation shows it.
        help: One sentence.
        unit: What of the field a 1 in its text stands for, where it is a whole number.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    kind: str
    help: str
    unit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """What an engine's probe is told; see `VARIABLES`."""

    directory: str
    node: str | None = None
    model: str | None = None
    revision: str | None = None
    fidelity: Fidelity = Fidelity.FULL
    sampling_ratio: float = 1.0
    weights: bool = False
    scene: str = UNKNOWN_SCENE
    token_ids: TokenIdKind = TokenIdKind.OFF
    token_key_file: str | None = None
    content_key_file: str | None = None
    cpu_budget: float | None = None
    ring_bytes: int = DEFAULT_RING_BYTES
    held_passes: int = HELD_PASSES


def _boolean(text: str) -> bool:
    word = text.lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected true or false")


def _word_of(kind: type[Fidelity | TokenIdKind]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        words = {member.name.lower(): member for member in kind}
        if text.lower() not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return words[text.lower()]

    return parse


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError as error:
        raise ValueError("expected a number such as 0.05") from error
    if not 0 < ratio <= 1:
        raise ValueError("expected a number above 0, at most 1")
    return ratio


def _whole_number(highest: int, unit: int = 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) < _SHOWN
        if not is_number or not 1 <= int(text) <= highest:
            raise ValueError(f"expected a whole number from 1 to {highest}")
        return int(text) * unit

    return parse


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(f"expected valid text of at most {MAX_NAME_BYTES} bytes")
    return text


VARIABLES: Final = (
    Variable(
        DIRECTORY_VARIABLE, "directory", str, "folder",
        "Where the ring lies; without it the plugin does nothing.",
    ),
    Variable(
        "MOESCOPE_NODE", "node", _name, "text",
        "Name of this producer; by default the host's name and a digest of the folder.",
    ),
    Variable(
        "MOESCOPE_MODEL", "model", _name, "text",
        "Name of the model; by default the first name under which vLLM serves it.",
    ),
    Variable(
        "MOESCOPE_REVISION", "revision", _name, "text",
        "Revision of the model; by default vLLM's `--revision`, else `unknown`.",
    ),
    Variable(
        "MOESCOPE_FIDELITY", "fidelity", _word_of(Fidelity), "full, sampled or counts",
        "How much is shipped.",
    ),
    Variable(
        "MOESCOPE_SAMPLING_RATIO", "sampling_ratio", _ratio, "number",
        "Share of the requests that fidelity `sampled` records.",
    ),
    Variable(
        "MOESCOPE_WEIGHTS", "weights", _boolean, "true or false",
        "Whether routing weights are recorded.",
    ),
    Variable(
        "MOESCOPE_SCENE", "scene", _name, "text",
        "Traffic class of requests that name none.",
    ),
    Variable(
        "MOESCOPE_TOKEN_IDS", "token_ids", _word_of(TokenIdKind), "off, keyed_hash or plain",
        "What is recorded of token ids.",
    ),
    Variable(
        "MOESCOPE_TOKEN_KEY_FILE", "token_key_file", str, "file",
        "Key of `keyed_hash`.",
    ),
    Variable(
        "MOESCOPE_CONTENT_KEY_FILE", "content_key_file", str, "file",
        "Secret of content keys; without it none are recorded.",
    ),
    Variable(
        "MOESCOPE_CPU_BUDGET", "cpu_budget", _ratio, "number",
        "Share of the engine's time that recording may take: it steps down to stay below.",
    ),
    Variable(
        "MOESCOPE_RING_MIB", "ring_bytes", _whole_number(_MOST_MIB, _MIB), "whole number",
        "Size of the ring in MiB.", _MIB,
    ),
    Variable(
        "MOESCOPE_HELD_PASSES", "held_passes", _whole_number(_MOST_PASSES), "whole number",
        "The most decode passes that wait for each other, to be recorded together; 1: none waits.",
    ),
)  # fmt: skip


def plugin_settings(environment: Mapping[str, str] = os.environ) -> PluginSettings:
    """The settings that an environment holds.

    Raises:
        SettingsError: A value is not accepted, or two contradict each other; of several, all are
            told.
    """
    settings, refused = read_settings(environment)
    refuse(refused)
    return settings


def read_settings(environment: Mapping[str, str]) -> tuple[PluginSettings, list[SettingsError]]:
    """The settings that an environment holds, and what is wrong with it.

    Where something is, a variable that is not accepted counts as not set.
    """
    values: dict[str, Any] = {}
    refused: list[SettingsError] = []
    unread: set[str] = set()
    for variable in VARIABLES:
        text = environment.get(variable.name, "").strip()
        if not text:
            continue
        try:
            values[variable.field] = variable.parse(text)
        except ValueError as error:
            refused.append(
                SettingsError(
                    f"{variable.name} cannot be {text[:_SHOWN]!r}"
                    f"{'…' if len(text) > _SHOWN else ''}.",
                    why=f"{str(error).capitalize()}.",
                    next_step="Change the variable and start the engine again.",
                )
            )
            unread.add(variable.field)
    if "directory" not in values:
        refused.append(
            SettingsError(
                f"{DIRECTORY_VARIABLE} is not set.",
                why="The plugin has no folder for its ring.",
                next_step=f"Set {DIRECTORY_VARIABLE}, best to a folder of a memory file system.",
            )
        )
    settings = PluginSettings(**{"directory": "", **values})
    if settings.token_ids is TokenIdKind.KEYED_HASH and settings.token_key_file is None:
        refused.append(
            SettingsError(
                "Token ids cannot be hashed.",
                why="MOESCOPE_TOKEN_IDS is keyed_hash, and MOESCOPE_TOKEN_KEY_FILE is not set.",
                next_step="Name a file with a key, or leave token ids off.",
            )
        )
    if not unread & {"sampling_ratio", "fidelity"}:
        refused += _sampling_refusals(settings, values)
    return settings, refused


def _sampling_refusals(
    settings: PluginSettings, given: Mapping[str, Any]
) -> Iterator[SettingsError]:
    """What does not go together in a share of requests and the fidelity, by which one is set."""
    is_sampled = settings.fidelity is Fidelity.SAMPLED
    if (settings.sampling_ratio < 1) is is_sampled:
        return
    if is_sampled:
        found = f"is {settings.sampling_ratio:g}" if "sampling_ratio" in given else "is not set"
        yield SettingsError(
            f"MOESCOPE_FIDELITY is sampled, and MOESCOPE_SAMPLING_RATIO {found}.",
            why="Every request would be recorded.",
            next_step="Set MOESCOPE_SAMPLING_RATIO below 1, such as 0.1, or MOESCOPE_FIDELITY to "
            "another word.",
        )
    else:
        found = f"is {settings.fidelity.name.lower()}" if "fidelity" in given else "is not set"
        yield SettingsError(
            f"MOESCOPE_SAMPLING_RATIO is {settings.sampling_ratio:g}, and MOESCOPE_FIDELITY "
            f"{found}.",
            why="A ratio below 1 belongs to fidelity sampled, and to no other.",
            next_step="Set MOESCOPE_FIDELITY to sampled, or leave MOESCOPE_SAMPLING_RATIO out.",
        )
