"""Settings: one table of names, types, defaults and help; a TOML file, variables, options.

The table is the only declaration: help texts, the reference page, validation and the typed
sections below all come from it.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescope.core.broker_addresses import broker_addresses
from moescope.core.errors import SettingsError, refuse

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
        wanted = f"expected a whole number from {low} to {high}"
        try:
            number = int(value)
        except ValueError as error:
            raise ValueError(wanted) from error
        if not low <= number <= high:
            raise ValueError(wanted)
        return number

    return parse


def _number(low: float, high: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError("expected a number")
        try:
            number = float(value)
        except ValueError as error:
            raise ValueError(f"{error}: expected a number such as {high:g}") from error
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low} to {high}")
        return number

    return parse


def _choice(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return str(value)

    return parse


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST_NAME = 200
_LONGEST_SHOWN = 400


def _kafka_name(value: object) -> str:
    """What Kafka accepts in a topic's name, with room for a suffix."""
    name = _text(value)
    if not name or len(name) > _LONGEST_NAME or not _NAME_CHARACTERS.issuperset(name):
        raise ValueError("expected letters, digits, '.', '_' and '-', at most 200")
    if name in {".", ".."}:
        raise ValueError("expected more than dots")
    return name


def _brokers(value: object) -> str:
    broker_addresses(_text(value))
    return _text(value)


_BROKER_DEFAULT = -1
_MOST_REPLICAS = 32_767


def _replication(value: object) -> int:
    number = _integer(_BROKER_DEFAULT, _MOST_REPLICAS)(value)
    if not number:
        raise ValueError("expected 1 or more, or -1 for the broker's default")
    return number


def _clock_time(value: object) -> str:
    hours, colon, minutes = _text(value).partition(":")
    if not (colon and hours.isdecimal() and minutes.isdecimal() and len(minutes) == 2):  # noqa: PLR2004 - two digits
        raise ValueError("expected a time of day such as 03:00")
    if int(hours) >= 24 or int(minutes) >= 60:  # noqa: PLR2004 - of a day, of an hour
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
    Setting(
        "alerts.kafka", _boolean, True, "boolean",
        "With Kafka: whether alerts are also written to PREFIX.alerts.",
    ),
    Setting(
        "store.source", _choice("routing", "deltas"), "routing", "routing or deltas",
        "With Kafka: whether the owner reads routing batches itself, or what processors made.",
    ),
    Setting(
        "kafka.bootstrap_servers", _brokers, "", "host:port, …",
        "Brokers to begin with; empty: no Kafka, one machine only.",
    ),
    Setting(
        "kafka.topic_prefix", _kafka_name, "moescope", "name",
        "Topics are called PREFIX.routing, PREFIX.deltas and so on.",
    ),
    Setting(
        "kafka.group", _kafka_name, "moescope", "name", "Consumer group of the processors.",
    ),
    Setting(
        "kafka.instance_id", _text, "", "name",
        "Name of this processor that stays the same over restarts, unique in its group; "
        "empty: a new one each time, so that a restart waits for the session time-out.",
    ),
    Setting(
        "kafka.partitions", _integer(1, 10_000), 12, "integer",
        "Partitions of PREFIX.routing: the most processors that can share the load. Fixed.",
    ),
    Setting(
        "kafka.replication", _replication, -1, "integer",
        "Replication factor of topics that `kafka topics-apply` makes; -1: the broker's default.",
    ),
    Setting(
        "kafka.routing_retention", _number(0.01, 87_600.0), 72.0, "hours",
        "How long PREFIX.routing and PREFIX.deltas are kept.",
    ),
    Setting(
        "kafka.dlq_retention", _number(0.01, 87_600.0), 336.0, "hours",
        "How long PREFIX.dlq is kept.",
    ),
    Setting(
        "kafka.alerts_retention", _number(0.01, 87_600.0), 720.0, "hours",
        "How long PREFIX.alerts is kept.",
    ),
    Setting(
        "kafka.connect_timeout", _number(0.5, 600.0), 10.0, "seconds",
        "How long a client looks for a broker before it says that there is none.",
    ),
    Setting(
        "kafka.request_timeout", _number(0.5, 600.0), 10.0, "seconds",
        "How long one request to a broker may take.",
    ),
    Setting(
        "kafka.delivery_timeout", _number(1.0, 600.0), 15.0, "seconds",
        "How long the client tries to deliver a record before the agent takes over trying.",
    ),
    Setting(
        "kafka.session_timeout", _number(1.0, 600.0), 10.0, "seconds",
        "A processor that is silent for so long loses its partitions.",
    ),
    Setting(
        "kafka.max_poll_interval", _number(1.0, 3_600.0), 60.0, "seconds",
        "A processor that takes longer between two reads loses its partitions.",
    ),
    Setting(
        "kafka.transaction_timeout", _number(1.0, 900.0), 10.0, "seconds",
        "An unfinished commit of a dead processor holds up the store for at most so long.",
    ),
    Setting(
        "kafka.in_flight_bytes", _integer(1 << 20), 32 << 20, "bytes",
        "Most bytes that an agent has sent and not yet heard back about.",
    ),
    Setting(
        "kafka.buffer_bytes", _integer(1 << 20), 16 << 20, "bytes",
        "Records read ahead per partition before a processor pauses it.",
    ),
    Setting(
        "kafka.security_protocol",
        _choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), "PLAINTEXT", "protocol",
        "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    ),
    Setting(
        "kafka.sasl_mechanism",
        _choice("", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), "", "mechanism",
        "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.",
    ),
    Setting("kafka.sasl_username", _text, "", "name", "User of the SASL mechanism."),
    Setting(
        "kafka.sasl_password_file", _text, "", "path", "File that holds the user's password.",
    ),
    Setting(
        "kafka.ssl_ca_file", _text, "", "path",
        "PEM file of the authorities that brokers' certificates are checked against.",
    ),
    Setting(
        "kafka.ssl_certificate_file", _text, "", "path",
        "PEM file of this client's certificate, where brokers ask for one (mTLS).",
    ),
    Setting("kafka.ssl_key_file", _text, "", "path", "PEM file of that certificate's key."),
    Setting(
        "kafka.ssl_key_password_file", _text, "", "path", "File that holds the key's password.",
    ),
    Setting(
        "kafka.ssl_check_hostname", _boolean, True, "boolean",
        "Whether a broker's certificate has to name its host.",
    ),
    Setting(
        "dead_letters.kept_per_minute", _integer(0, 1_000_000), 60, "records",
        "Dead letters kept whole per partition and minute; further ones are counted only.",
    ),
    Setting(
        "watch.host", _text, "127.0.0.1", "address",
        "Address that serves /metrics and /healthz.",
    ),
    Setting(
        "watch.port", _integer(0, 65_535), 0, "port",
        "Port that serves /metrics and /healthz; 0: none.",
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


def without_kafka(settings: Settings) -> Settings:
    """The same settings for one machine without a broker."""
    return replace(settings, values={**settings.values, "kafka.bootstrap_servers": ""})


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
        SettingsError: A file that cannot be read, an unknown name or a refused value; of several,
            all are told.
    """
    refused: list[SettingsError] = []
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
                refused.append(
                    SettingsError(
                        f"Unknown setting {name!r} ({origin}).",
                        next_step="`moescope config show` lists the settings.",
                    )
                )
                continue
            try:
                values[name] = setting.parse(raw)
            except (ValueError, OverflowError) as error:
                refused.append(
                    SettingsError(
                        f"Setting {name} cannot be {_shown(raw)} ({origin}).",
                        why=str(error),
                        next_step=f"{setting.help} Default: {setting.default!r}.",
                    )
                )
            origins[name] = origin
    refuse(refused)
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
    except RecursionError as error:
        raise SettingsError(
            f"The settings file {path} is nested too deeply.",
            why="No setting is deeper than a list of lists.",
            next_step="Mend it; `moescope config show` lists the settings.",
        ) from error
    found: dict[str, object] = {}
    for section, keys in tables.items():
        if isinstance(keys, dict):
            found.update({f"{section}.{key}": value for key, value in keys.items()})
        else:
            found[section] = keys
    return found


def _shown(raw: object) -> str:
    """A value in a message: its beginning, since it may be longer or deeper than can be shown."""
    try:
        text = repr(raw)
    except RecursionError:
        return "so deep"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    by_variable = {setting.variable: setting.name for setting in SETTINGS}
    return {
        by_variable[variable]: value
        for variable, value in environment.items()
        if variable in by_variable
    }
