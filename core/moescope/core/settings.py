"""Settings: one table of names, types, defaults and help; a TOML file, variables, options.

The table is the only declaration: help texts, the reference page, validation and the typed
sections below all come from it.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescope.core.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENVIRONMENT_PREFIX = "MOESCOPE_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: `section.key`; in TOML a key of a table, in the environment
            `MOESCOPE_SECTION_KEY`.
        parse: Turns a TOML value or a string into the typed value; raises ValueError.
        default: Typed default.
        kind: The type as the reference page shows it.
        help: One sentence.
    """

    name: str
    parse: Callable[[object], Any]
    default: Any
    kind: str
    help: str

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper().replace(".", "_")


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("expected text")
    return value


def _path(value: object) -> str:
    if not _text(value).strip():
        raise ValueError("expected a path")
    return _text(value)


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"1", "true", "yes", "on"}:
        return True
    if isinstance(value, str) and value.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected true or false")


def _integer(low: int, high: int = 2**62) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("expected a whole number")
        number = int(value)
        if not low <= number <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return number

    return parse


def _number(low: float, high: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("expected a number")
        number = float(value)
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}")
        return number

    return parse


def _clock_time(value: object) -> str:
    hours, colon, minutes = _text(value).partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and len(minutes) == 2):  # noqa: PLR2004
        raise ValueError("expected a time of day such as 03:00")
    if int(hours) >= 24 or int(minutes) >= 60:  # noqa: PLR2004
        raise ValueError("expected a time of day from 00:00 to 23:59")
    return f"{int(hours):02}:{minutes}"


Pairs = tuple[tuple[int, int], ...]


def _pairs(low: int, scale: int = 1) -> Callable[[object], Pairs]:
    """Windows as `[128, 256]` or `["512/128"]` (size/stride); text: comma-separated."""

    def one(item: object) -> tuple[int, int]:
        if isinstance(item, bool) or not isinstance(item, int | float | str):
            raise ValueError("expected a size or 'size/stride'")
        size_text, _, stride_text = str(item).partition("/")
        size = round(float(size_text) * scale)
        stride = round(float(stride_text) * scale) if stride_text else size
        if size < low or not 0 < stride <= size or size % stride:
            raise ValueError(f"size must be at least {low / scale:g}, and a multiple of its stride")
        return size, stride

    def parse(value: object) -> Pairs:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise ValueError("expected a list")
        pairs = tuple(one(item) for item in items if str(item).strip())
        if len(set(pairs)) != len(pairs):
            raise ValueError("a window is declared twice")
        return pairs

    return parse


_SECOND = 1_000_000

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "data.directory", _path, "moescope-data", "path",
        "Where the batch logs, the store file and the Parquet export live.",
    ),
    Setting(
        "windows.token", _pairs(2), ((128, 128), (256, 256), (512, 512)), "sizes",
        "Token windows in positions, as size or size/stride.",
    ),
    Setting(
        "windows.time", _pairs(_SECOND, _SECOND),
        ((_SECOND, _SECOND), (5 * _SECOND, 5 * _SECOND), (60 * _SECOND, 60 * _SECOND)),
        "seconds", "Time windows in whole seconds, as size or size/slide; panes are 1 s.",
    ),
    Setting("windows.task", _boolean, True, "boolean", "Whether task windows are formed."),
    Setting(
        "windows.step", _pairs(1), ((50, 50),), "steps",
        "Step windows in optimizer steps, as size or size/stride.",
    ),
    Setting("scopes.node", _boolean, True, "boolean", "Also form time windows per node."),
    Setting("scopes.scene", _boolean, True, "boolean", "Also form time windows per scene."),
    Setting(
        "scopes.limit", _integer(1, 10_000), 256, "integer",
        "Most nodes of a partition that get time windows of their own; further ones get none.",
    ),
    Setting(
        "store.token_row_budget", _integer(1), 600_000, "rows per minute",
        "Token window rows (window x layer) kept per minute and partition before row sampling.",
    ),
    Setting(
        "store.minimum_coverage", _number(0.0, 1.0), 0.9, "share",
        "A window that saw a smaller share of its tokens is insufficient.",
    ),
    Setting(
        "processor.commit_interval", _number(0.0, 60.0), 1.0, "seconds",
        "Longest time between two commits while records arrive.",
    ),
    Setting(
        "processor.commit_records", _integer(1, 100_000), 256, "records",
        "Most records in one commit.",
    ),
    Setting(
        "export.interval", _number(0.1, 3600.0), 1.0, "seconds",
        "How often closed windows are exported to Parquet.",
    ),
    Setting(
        "sql.timeout", _number(0.1, 3600.0), 30.0, "seconds", "Longest run of one query.",
    ),
    Setting(
        "sql.memory", _integer(64, 1_000_000), 1536, "MiB", "Memory limit of a query worker.",
    ),
    Setting(
        "log.byte_cap", _integer(1 << 20), 8 << 30, "bytes",
        "Largest size of one partition's batch log.",
    ),
    Setting(
        "profiles.lag_ratio", _number(0.0, 1.0), 0.01, "share",
        "Share of requests whose last 64 rows are kept for the lag overlap.",
    ),
    Setting(
        "calibration.baseline", _text, "default", "name",
        "Baseline that the daily calibration uses.",
    ),
    Setting(
        "calibration.block", _integer(1, 86_400), 600, "seconds",
        "Blocks of event time that are the sampling units of windows over several requests.",
    ),
    Setting(
        "calibration.minimum_units", _integer(29), 29, "units",
        "With fewer requests or blocks a line is not set at all.",
    ),
    Setting(
        "calibration.resamples", _integer(50, 100_000), 400, "integer",
        "Bootstrap resamples behind each interval.",
    ),
    Setting(
        "alerts.budget", _number(0.001, 1000.0), 1.0, "pages per day",
        "False pages that a model may cost in a day of health, over all families and windows.",
    ),
    Setting(
        "alerts.no_data_after", _number(5.0, 86_400.0), 300.0, "seconds",
        "An alert whose windows stop arriving is in state no_data after this event time.",
    ),
    Setting(
        "alerts.webhook_url", _text, "", "URL",
        "Where alerts are posted as JSON; empty: the log only.",
    ),
    Setting(
        "alerts.webhook_secret_file", _text, "", "path",
        "File whose content signs webhook bodies (HMAC-SHA256); empty: unsigned.",
    ),
    Setting("jobs.enabled", _boolean, True, "boolean", "Whether the owner runs scheduled jobs."),
    Setting(
        "jobs.calibrate_at", _clock_time, "03:00", "HH:MM", "When calibration runs each day, UTC."
    ),
    Setting(
        "jobs.report_at", _clock_time, "04:00", "HH:MM",
        "When the calibration report is written each day, UTC.",
    ),
    Setting(
        "jobs.retention_at", _clock_time, "05:00", "HH:MM", "When old rows go each day, UTC."
    ),
    Setting(
        "retention.windows", _integer(1, 36_500), 30, "days",
        "How long windows, histograms and ingest accounts live, by event time.",
    ),
    Setting(
        "retention.red", _integer(1, 36_500), 365, "days",
        "How long red windows, alerts, findings and job runs live.",
    ),
)  # fmt: skip

SETTING_BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    """Validated settings; `values[name]` is typed, `origins[name]` says where it came from."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 (the table holds the type)
        """The typed value of a setting."""
        return self.values[name]

    @property
    def data_directory(self) -> Path:
        """Root of everything that moescope writes."""
        return Path(self.values["data.directory"])


def load_settings(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
) -> Settings:
    """Read settings; options win over variables, variables over the file.

    Args:
        path: A TOML file, or None.
        environment: Defaults to the process environment.
        options: `section.key` → value.

    Raises:
        SettingsError: A file that cannot be read, an unknown name or a refused value.
    """
    values: dict[str, Any] = {setting.name: setting.default for setting in SETTINGS}
    origins: dict[str, str] = dict.fromkeys(values, "default")
    for origin, found in (
        (f"file {path}", _from_file(path) if path else {}),
        ("environment", _from_environment(os.environ if environment is None else environment)),
        ("option", dict(options or {})),
    ):
        for name, raw in found.items():
            setting = SETTING_BY_NAME.get(name)
            if setting is None:
                raise SettingsError(
                    f"Unknown setting {name!r} ({origin}).",
                    next_step="`moescope config show` lists the settings.",
                )
            try:
                values[name] = setting.parse(raw)
            except (ValueError, OverflowError) as error:
                raise SettingsError(
                    f"Setting {name} cannot be {raw!r} ({origin}).",
                    why=str(error),
                    next_step=f"{setting.help} Default: {setting.default!r}.",
                ) from error
            origins[name] = origin
    return Settings(values, origins)


def _from_file(path: Path) -> dict[str, object]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"The settings file {path} cannot be read.", why=str(error), next_step="Check --config."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The settings file {path} is not valid TOML.", why=str(error), next_step="Mend it."
        ) from error
    found: dict[str, object] = {}
    for section, keys in tables.items():
        if isinstance(keys, dict):
            found.update({f"{section}.{key}": value for key, value in keys.items()})
        else:
            found[section] = keys
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    by_variable = {setting.variable: setting.name for setting in SETTINGS}
    return {
        by_variable[variable]: value
        for variable, value in environment.items()
        if variable in by_variable
    }
