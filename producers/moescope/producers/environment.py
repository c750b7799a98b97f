"""What the environment says to producers, checked by what they read it with when they start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from moescope.core.errors import MoescopeError, refuse
from moescope.core.vocabulary import TokenIdKind
from moescope.producers.profile import Profile
from moescope.producers.recording.description import checked_profile
from moescope.producers.recording.switch import disabled_by_environment
from moescope.producers.token_ids import KeyedHash
from moescope.producers.vllm_plugin.settings import (
    DIRECTORY_VARIABLE,
    VARIABLES,
    PluginSettings,
    read_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Checked = TypeVar("_Checked")


class ProducersEnvironment(NamedTuple):
    """What was found, where nothing of it is refused.

    Attributes:
        variables: Of the vLLM plugin, that have a value.
        is_used: Whether the plugin reads them: without a folder it does nothing.
        disabled: Why nothing is recorded at all, or empty.
    """

    variables: tuple[str, ...]
    is_used: bool
    disabled: str


def check_environment(environment: Mapping[str, str] = os.environ) -> ProducersEnvironment:
    """Check what an engine with this environment, and of this user, would be refused.

    Nothing stays that is made, and no engine is needed: what depends on its model (is the ring
    large enough?) shows when it starts. Key files are read, and have to be for this user alone.

    Raises:
        SettingsError: A value is not accepted, two contradict each other, or a key file is none; of
            several such things, all are told.
        RingCreateError: The folder cannot be used.
    """
    refused: list[MoescopeError] = []
    given = {each.name: environment.get(each.name, "") for each in VARIABLES}
    given = {name: value for name, value in given.items() if value.strip()}
    is_used = DIRECTORY_VARIABLE in given
    if given:
        settings, wrong = read_settings({DIRECTORY_VARIABLE: os.curdir, **given})
        refused += wrong
        checks = (_check_content_key, _check_token_key, _check_names)
        refused += filter(None, (_refusal(check, settings) for check in checks))
        if is_used:
            # Here, for an engine that only imports the producers shall not wait for the checksums.
            from moescope.producers.recording.folder import check_folder  # noqa: PLC0415 - it loads them

            folder = Path(given[DIRECTORY_VARIABLE].strip())
            refused += filter(None, (_refusal(check_folder, folder),))
    refuse(refused)
    return ProducersEnvironment(tuple(given), is_used, disabled_by_environment(environment))


def _refusal(check: Callable[[_Checked], None], checked: _Checked) -> MoescopeError | None:
    try:
        check(checked)
    except MoescopeError as error:
        return error
    return None


def _check_content_key(settings: PluginSettings) -> None:
    from moescope.producers.vllm_plugin.content import secret_of  # noqa: PLC0415 - where it is needed

    if settings.content_key_file is not None:
        secret_of(settings.content_key_file)


def _check_token_key(settings: PluginSettings) -> None:
    if settings.token_ids is TokenIdKind.KEYED_HASH and settings.token_key_file is not None:
        KeyedHash(settings.token_key_file)


def _check_names(settings: PluginSettings) -> None:
    """What a recorder refuses of names, whatever the model is: this one stands for any."""
    checked_profile(
        Profile(
            node=settings.node or "node",
            model=settings.model or "model",
            revision=settings.revision or "revision",
            layers=(0,),
            experts=2,
            top_k=1,
            token_id_kind=settings.token_ids,
        )
    )
