"""Settings checked by what reads them when it starts: files and producers' variables, too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from moescope.console.options import settings_from
from moescope.core.errors import MoescopeError, SettingsError, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from moescope.core.settings import Settings
    from moescope.producers.environment import ProducersEnvironment


def check_settings(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> ProducersEnvironment:
    """Refuse what a process with these settings and this environment would refuse at its start.

    Nothing is started or connected to, and nothing stays that is made.

    Returns:
        What the environment says to engines.

    Raises:
        SettingsError: Windows contradict each other, a file of a setting is none, or a variable of
            the producers is not accepted; of several such things, all are told.
        RingCreateError: The producers' folder cannot be used.
    """
    from moescope.processors.config import WindowConfig
    from moescope.producers.environment import check_environment

    refused: list[MoescopeError] = []
    for check in (WindowConfig.from_settings, _check_broker_files, _check_receivers):
        try:
            check(settings)
        except MoescopeError as error:
            refused.append(error)
    try:
        found = check_environment(environment)
    except MoescopeError as error:
        refused.append(error)
    refuse(refused)
    return found


def check_all(
    config: Path | None, data: Path | None, environment: Mapping[str, str] = os.environ
) -> tuple[Settings, ProducersEnvironment]:
    """Read the settings and check them; what is wrong with engines' variables is told along.

    Raises:
        SettingsError: As `settings_from` and `check_settings` do.
        RingCreateError: Likewise.
    """
    from moescope.producers.environment import check_environment

    try:
        settings = settings_from(config, data)
    except SettingsError as error:
        refused: list[MoescopeError] = [error]
        try:
            check_environment(environment)
        except MoescopeError as another:
            refused.append(another)
        refuse(refused)
        raise
    return settings, check_settings(settings, environment)


def environment_lines(found: ProducersEnvironment) -> list[str]:
    """What a person should know of an environment in which nothing is refused."""
    lines = []
    if found.variables:
        count = len(found.variables)
        noun = "variable" if count == 1 else "variables"
        lines.append(f"{count} {noun} of the vLLM plugin: valid for this user")
    if found.variables and not found.is_used:
        lines.append(
            "MOESCOPE_DIR is not set: the plugin does nothing, and its other variables have no "
            "effect"
        )
    if found.disabled:
        lines.append(f"{found.disabled}: an engine with this environment records nothing")
    return lines


def _check_receivers(settings: Settings) -> None:
    if settings["alerts.webhook_url"]:  # else nobody reads its secret, and the store's part is away
        from moescope.core.clock import SystemClock
        from moescope.jobs.notifications import receivers_from

        receivers_from(settings, SystemClock())


def _check_broker_files(settings: Settings) -> None:
    """As a client does before it connects."""
    from moescope.core.kafka.tls_files import check_tls_files, secret

    protocol = settings["kafka.security_protocol"]
    if not settings["kafka.bootstrap_servers"].strip(", "):
        return
    if protocol.startswith("SASL_"):
        secret(settings, "kafka.sasl_password_file")
    if protocol.endswith("SSL"):
        check_tls_files(settings)
