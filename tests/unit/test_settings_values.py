from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moescope.core.errors import SettingsError, SeveralSettingsError
from moescope.core.settings import SETTING_BY_NAME, SETTINGS, Setting, load_settings

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 1_000_000

AS_TYPED = {
    "windows.token": "128, 256,512/512",
    "windows.time": "1,5,60",
    "windows.step": "50",
    "windows.task": "yes",
    "scopes.node": "ON",
    "scopes.scene": "1",
}
"""How a person would write the defaults whose text differs from `str` of the value."""

REFUSED = [
    ("windows.token", "1", "at least 2"),
    ("windows.token", "128/100", "multiple of its stride"),
    ("windows.token", "128/256", "multiple of its stride"),
    ("windows.token", "128/0", "multiple of its stride"),
    ("windows.token", "128,128/128", "declared twice"),
    ("windows.token", "many", "could not convert"),
    ("windows.token", [True], "expected a size"),
    ("windows.token", 128, "expected a list"),
    ("windows.time", "0.5", "at least 1"),
    ("windows.step", [[50]], "expected a size"),
    ("windows.task", "perhaps", "expected true or false"),
    ("windows.task", 1, "expected true or false"),
    ("scopes.limit", "0", "from 1 to 10000"),
    ("scopes.limit", 1.5, "expected a whole number"),
    ("scopes.limit", True, "expected a whole number"),
    ("sql.timeout", "soon", "could not convert"),
    ("sql.timeout", "nan", "expected a number from"),
    ("sql.timeout", False, "expected a number"),
    ("store.minimum_coverage", 1.01, "expected a number from"),
    ("data.directory", 5, "expected text"),
    ("kafka.bootstrap_servers", "127.0.0.1:abc", "expected host:port"),
    ("kafka.bootstrap_servers", "kafka", "expected host:port"),
    ("kafka.bootstrap_servers", ":9092", "expected host:port"),
    ("kafka.bootstrap_servers", "::1:9092", "expected host:port"),
    ("kafka.bootstrap_servers", "PLAINTEXT://kafka:9092", "expected host:port"),
    ("kafka.bootstrap_servers", "kafka-1:9092 kafka-2:9092", "expected host:port"),
    ("kafka.bootstrap_servers", "kafka-1:9092,kafka-2:99999", "from 1 to 65535, not 99999"),
    ("kafka.bootstrap_servers", "kafka:0", "from 1 to 65535, not 0"),
    ("kafka.replication", "0", "1 or more, or -1"),
    ("kafka.topic_prefix", ".", "more than dots"),
    ("kafka.topic_prefix", "..", "more than dots"),
    ("kafka.group", "..", "more than dots"),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_text_form_of_each_default_is_accepted(setting: Setting) -> None:
    """A default can be written into the environment, where everything is text."""
    text = AS_TYPED.get(setting.name, str(setting.default))
    settings = load_settings(environment={setting.variable: text})
    assert settings[setting.name] == setting.default
    assert settings.origins[setting.name] == "environment"


@pytest.mark.parametrize(("name", "value", "why"), REFUSED)
def test_refusals_name_the_setting_the_value_and_the_reason(
    name: str, value: object, why: str
) -> None:
    """Whoever mistypes a value learns which one, why, and what the default would be."""
    with pytest.raises(SettingsError) as caught:
        load_settings(environment={}, options={name: value})
    assert name in caught.value.what
    assert repr(value) in caught.value.what
    assert "option" in caught.value.what
    assert why in caught.value.why
    assert repr(SETTING_BY_NAME[name].default) in caught.value.next_step
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "text",
    ["kafka:9092", " kafka-1.example.org:9092, 10.0.0.1:1 ,", "[::1]:65535", "[fe80::1%eth0]:9092"],
)
def test_addresses_of_brokers_are_taken_as_they_are_written(text: str) -> None:
    """Names, IPv4 and bracketed IPv6 addresses are what people have."""
    loaded = load_settings(environment={"MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": text})
    assert loaded["kafka.bootstrap_servers"] == text


def test_strides_and_fractions_keep_their_units() -> None:
    """Time windows are written in seconds and held in microseconds."""
    settings = load_settings(
        environment={"MOESCOPE_WINDOWS_TIME": "60/10", "MOESCOPE_WINDOWS_TOKEN": "128/64,1024"}
    )
    assert settings["windows.time"] == ((60 * SECOND, 10 * SECOND),)
    assert settings["windows.token"] == ((128, 64), (1024, 1024))


def test_a_kind_of_window_can_be_switched_off() -> None:
    """An empty list declares no windows of that kind."""
    assert load_settings(environment={"MOESCOPE_WINDOWS_STEP": ""})["windows.step"] == ()


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    """Precedence is what the documentation says, setting by setting."""
    path = tmp_path / "moescope.toml"
    path.write_text("[sql]\ntimeout = 1\nmemory = 100\n[scopes]\nlimit = 7\n")
    settings = load_settings(
        path,
        environment={"MOESCOPE_SQL_TIMEOUT": "2", "MOESCOPE_SQL_MEMORY": "200", "HOME": "x"},
        options={"sql.timeout": 3.0},
    )
    values = [settings[name] for name in ("sql.timeout", "sql.memory", "scopes.limit")]
    assert values == [3.0, 200, 7]
    origins = [settings.origins[name] for name in ("sql.timeout", "sql.memory", "scopes.limit")]
    assert origins == ["option", "environment", f"file {path}"]
    assert settings.origins["sql.timeout"] != settings.origins["windows.token"] == "default"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[sql]\ntimeuot = 5\n", "Unknown setting 'sql.timeuot'"),
        ("timeout = 5\n", "Unknown setting 'timeout'"),
        ("[sql]\n[sql.timeout]\nseconds = 5\n", "sql.timeout cannot be"),
        ("[sql\n", "not valid TOML"),
        ('[data]\ndirectory = "\\uD800"\n', "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """A typo in a file is an error, never a setting that silently has no effect."""
    path = tmp_path / "moescope.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(path, environment={})
    assert says in caught.value.what
    assert str(path) in caught.value.what
    assert caught.value.next_step


def test_all_wrong_settings_are_told_at_once(tmp_path: Path) -> None:
    """A second slip does not wait behind the first, nor does one in the file behind a variable."""
    path = tmp_path / "moescope.toml"
    path.write_text("[sql]\ntimeuot = 5\n")
    with pytest.raises(SeveralSettingsError) as caught:
        load_settings(path, {"MOESCOPE_SQL_TIMEOUT": "5%", "MOESCOPE_SCOPES_LIMIT": "few"})
    assert len(caught.value.errors) == 3
    for part in ("sql.timeuot", "sql.timeout cannot be '5%'", "scopes.limit cannot be 'few'"):
        assert part in caught.value.what
    assert "a number such as" in caught.value.why
    assert "a whole number from 1 to 10000" in caught.value.why


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    """A wrong path and a binary file are told apart from wrong settings."""
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path / "missing.toml", environment={})
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings(tmp_path / "binary.toml", environment={})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ("a = " + "{a=" * 5_000 + "1" + "}" * 5_000, "nested too deeply"),
        ("[sql]\ntimeout" + ".a" * 2_000 + " = 1", "sql.timeout cannot be so deep"),
        ("[sql]\ntimeout = [" + "1," * 100_000 + "]", "sql.timeout cannot be [1, 1,"),
    ],
    ids=["lists", "tables", "dotted", "long"],
)
def test_a_file_of_any_depth_and_length_is_refused_in_few_words(
    text: str, says: str, tmp_path: Path
) -> None:
    """Neither is a fault of moescope, nor does it fill somebody's terminal."""
    path = tmp_path / "moescope.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(path, environment={})
    assert says in caught.value.what
    assert caught.value.exit_code == 2
    assert len(str(caught.value)) < 1_000
