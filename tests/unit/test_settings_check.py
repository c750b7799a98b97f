from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moescope.console.settings_check import check_all, check_settings, environment_lines
from moescope.core.errors import MoescopeError, SettingsError, SeveralSettingsError
from moescope.core.settings import load_settings
from moescope.producers.vllm_plugin.settings import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moescope.producers.environment import ProducersEnvironment

DIRECTORY = {"MOESCOPE_DIR": "ring"}
NOBODY = 65_534
SECRET = b"0123456789abcdef0123456789abcdef\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder with key files: a good one, and others that no engine would take."""
    for name, content, mode in (
        ("good", SECRET, 0o600), ("open", SECRET, 0o644), ("empty", b"", 0o600),
        ("short", b"abc\n", 0o600), ("file", b"", 0o600),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(environment: Mapping[str, str]) -> ProducersEnvironment:
    """What `config check` does with these variables."""
    return check_settings(load_settings(environment=environment), environment)


@pytest.mark.parametrize(
    ("variables", "code", "says"),
    [
        ({"MOESCOPE_FIDELITY": "smapled"}, 2, ("MOESCOPE_FIDELITY cannot be 'smapled'", "counts")),
        (
            {"MOESCOPE_FIDELITY": "sampled"}, 2,
            ("SAMPLING_RATIO is not set", "below 1, such as 0.1"),
        ),
        (
            {"MOESCOPE_FIDELITY": "sampled", "MOESCOPE_SAMPLING_RATIO": "1"}, 2,
            ("SAMPLING_RATIO is 1", "below 1, such as 0.1"),
        ),
        (
            {"MOESCOPE_SAMPLING_RATIO": "0.5"}, 2,
            ("MOESCOPE_FIDELITY is not set", "ratio below 1", "MOESCOPE_FIDELITY to sampled"),
        ),
        (
            {"MOESCOPE_SAMPLING_RATIO": "0.5", "MOESCOPE_FIDELITY": "counts"}, 2,
            ("MOESCOPE_FIDELITY is counts", "ratio below 1", "MOESCOPE_FIDELITY to sampled"),
        ),
        (
            {"MOESCOPE_CPU_BUDGET": "5%"}, 2,
            ("MOESCOPE_CPU_BUDGET cannot be '5%'", "a number such as 0.05"),
        ),
        ({"MOESCOPE_CPU_BUDGET": "2"}, 2, ("MOESCOPE_CPU_BUDGET cannot be '2'", "at most 1")),
        ({"MOESCOPE_WEIGHTS": "maybe"}, 2, ("MOESCOPE_WEIGHTS", "true or false")),
        ({"MOESCOPE_RING_MIB": "1.5"}, 2, ("MOESCOPE_RING_MIB", "whole number")),
        ({"MOESCOPE_NODE": "n" * 200}, 2, ("node is longer than 190",)),
        ({"MOESCOPE_CONTENT_KEY_FILE": "open"}, 2, ("key file open", "Others", "chmod 600 open")),
        ({"MOESCOPE_CONTENT_KEY_FILE": "gone"}, 2, ("key file gone", "No such file")),
        ({"MOESCOPE_CONTENT_KEY_FILE": "empty"}, 2, ("16 to 64 bytes", "in empty has 0")),
        ({"MOESCOPE_TOKEN_IDS": "keyed_hash"}, 2, ("MOESCOPE_TOKEN_KEY_FILE is not set",)),
        (
            {"MOESCOPE_TOKEN_IDS": "keyed_hash", "MOESCOPE_TOKEN_KEY_FILE": "short"}, 2,
            ("has 3 bytes in short", "guessed"),
        ),
        (
            {"MOESCOPE_TOKEN_IDS": "keyed_hash", "MOESCOPE_TOKEN_KEY_FILE": "open"}, 2,
            ("key file open", "Others"),
        ),
        ({"MOESCOPE_DIR": "file"}, 3, ("cannot use the folder file", "Not a directory")),
        ({"MOESCOPE_DIR": "file/ring"}, 3, ("folder file/ring", "Not a directory")),
        ({"MOESCOPE_DIR": "link"}, 3, ("is a link to", "mkdir -p")),
        (
            {"MOESCOPE_ALERTS_WEBHOOK_URL": "ftp://here"}, 2,
            ("alerts.webhook_url is none", "http://"),
        ),
        (
            {
                "MOESCOPE_ALERTS_WEBHOOK_URL": "http://here",
                "MOESCOPE_ALERTS_WEBHOOK_SECRET_FILE": "gone",
            }, 2,
            ("secret file gone", "No such file"),
        ),
        (
            {
                "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "nowhere:1",
                "MOESCOPE_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
                "MOESCOPE_KAFKA_SASL_PASSWORD_FILE": "gone",
            }, 2,
            ("file gone of kafka.sasl_password_file", "No such file"),
        ),
        (
            {
                "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "nowhere:1",
                "MOESCOPE_KAFKA_SECURITY_PROTOCOL": "SSL",
                "MOESCOPE_KAFKA_SSL_CA_FILE": "file",
            }, 2,
            ("file of kafka.ssl_ca_file holds no certificate",),
        ),
    ],
)  # fmt: skip
def test_what_would_be_refused_at_a_start_is_refused_by_the_check(
    folder: Path, variables: dict[str, str], code: int, says: tuple[str, ...]
) -> None:
    """An operator learns of a wrong value before the engine runs without its plugin for days."""
    with pytest.raises(MoescopeError) as refused:
        check(DIRECTORY | variables)
    assert refused.value.exit_code == code
    for part in (*says, "Why: ", "Next: "):
        assert part in str(refused.value)
    assert not (folder / "ring").exists()


@pytest.mark.usefixtures("folder")
def test_all_that_is_wrong_is_told_at_once() -> None:
    """Whoever mends one slip after the other restarts a server for each: all are named."""
    wrong = {
        "MOESCOPE_DIR": "file", "MOESCOPE_WEIGHTS": "maybe", "MOESCOPE_RING_MIB": "1.5",
        "MOESCOPE_CONTENT_KEY_FILE": "open", "MOESCOPE_FIDELITY": "sampled",
        "MOESCOPE_NODE": "n" * 200, "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "nowhere:1",
        "MOESCOPE_KAFKA_SECURITY_PROTOCOL": "SSL", "MOESCOPE_KAFKA_SSL_CA_FILE": "gone",
    }  # fmt: skip
    with pytest.raises(SeveralSettingsError) as refused:
        check(wrong)
    assert len(refused.value.errors) == 7
    assert refused.value.exit_code == 2
    assert refused.value.what.startswith("7 settings are refused: (1) ")
    for part in (
        "folder file", "MOESCOPE_WEIGHTS", "MOESCOPE_RING_MIB", "key file open",
        "MOESCOPE_SAMPLING_RATIO", "node is longer", "kafka.ssl_ca_file",
    ):  # fmt: skip
        assert part in refused.value.what
    assert "(7) " in refused.value.why
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)  # noqa: S301 - made here


def test_a_wrong_setting_does_not_hide_a_wrong_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings and engines' variables are of two tables, and one slip in each is told as two."""
    monkeypatch.setenv("MOESCOPE_SQL_TIMEOUT", "soon")
    with pytest.raises(SettingsError, match=r"sql\.timeout") as alone:
        check_all(None, folder, {})
    assert not isinstance(alone.value, SeveralSettingsError)
    with pytest.raises(SeveralSettingsError) as refused:
        check_all(None, folder, {"MOESCOPE_DIR": "file"})
    assert len(refused.value.errors) == 2
    assert "sql.timeout" in refused.value.what
    assert "folder file" in refused.value.what
    monkeypatch.delenv("MOESCOPE_SQL_TIMEOUT")
    settings, _ = check_all(None, folder, {})
    assert settings.data_directory == folder


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no such file system")
@pytest.mark.parametrize("name", ["/proc/nope", "/proc/nope/ring"])
def test_a_folder_that_root_may_write_and_nobody_can_is_refused(name: str) -> None:
    """Permissions tell only half of it: what the recorder will do is tried."""
    with pytest.raises(MoescopeError, match=f"cannot use the folder {name}"):
        check({"MOESCOPE_DIR": name})


def test_what_is_tried_in_a_folder_is_gone(folder: Path) -> None:
    """The check leaves neither the ring's folder nor anything of its own, however deep it tries."""
    before = sorted(folder.iterdir())
    check({"MOESCOPE_DIR": "made/later/ring"})
    with pytest.raises(MoescopeError, match="too long"):
        check({"MOESCOPE_DIR": "made/" + "x" * 300})
    assert sorted(folder.iterdir()) == before
    (folder / "there").mkdir()
    check({"MOESCOPE_DIR": "there"})
    assert list((folder / "there").iterdir()) == []


def test_a_folder_that_nobody_may_write_is_refused(folder: Path) -> None:
    """The ring would not be made there, though the folder is."""
    readable, unsearchable = tempfile.mkdtemp(), tempfile.mkdtemp()  # where others may come to
    user = os.geteuid()
    try:
        os.chmod(readable, 0o555)  # noqa: PTH101, S103 - a folder that others may read
        (folder / "inside").mkdir(mode=0)
        os.chmod(unsearchable, 0o666)  # noqa: PTH101, S103 - written to, as far as its mode tells
        if not user:  # root may write everywhere: be somebody else for a moment
            os.seteuid(NOBODY)
        for name in (
            readable, f"{readable}/ring", str(folder / "inside" / "ring"),
            unsearchable, f"{unsearchable}/ring",
        ):  # fmt: skip
            with pytest.raises(MoescopeError, match="Permission denied"):
                check({"MOESCOPE_DIR": name})
    finally:
        os.seteuid(user)
        shutil.rmtree(readable)
        shutil.rmtree(unsearchable)


def test_a_good_environment_is_told_and_nothing_is_made(folder: Path) -> None:
    """Each variable of the plugin may be set; the check says how many it has seen."""
    variables = {
        "MOESCOPE_DIR": "ring/of/this", "MOESCOPE_NODE": "n1", "MOESCOPE_MODEL": "m",
        "MOESCOPE_REVISION": "r2", "MOESCOPE_FIDELITY": "sampled",
        "MOESCOPE_SAMPLING_RATIO": "0.25", "MOESCOPE_WEIGHTS": "yes", "MOESCOPE_SCENE": "chat",
        "MOESCOPE_TOKEN_IDS": "keyed_hash", "MOESCOPE_TOKEN_KEY_FILE": "good",
        "MOESCOPE_CONTENT_KEY_FILE": "good", "MOESCOPE_CPU_BUDGET": "0.01",
        "MOESCOPE_RING_MIB": "3", "MOESCOPE_HELD_PASSES": "1",
    }  # fmt: skip
    assert variables.keys() == {each.name for each in VARIABLES}
    found = check(variables)
    assert found.variables == tuple(variables)
    assert environment_lines(found) == [
        f"{len(VARIABLES)} variables of the vLLM plugin: valid for this user"
    ]
    assert not (folder / "ring").exists()


@pytest.mark.usefixtures("folder")
def test_variables_without_effect_are_pointed_at() -> None:
    """Neither a plugin without a folder nor a switched-off one records: the check says so."""
    assert environment_lines(check({})) == []
    assert environment_lines(check({"MOESCOPE_DIR": " ", "MOESCOPE_DISABLE": "0"})) == []
    found = check({"MOESCOPE_FIDELITY": "counts"})
    assert "MOESCOPE_DIR is not set: the plugin does nothing" in environment_lines(found)[1]
    with pytest.raises(MoescopeError, match="MOESCOPE_FIDELITY"):
        check({"MOESCOPE_FIDELITY": "most"})
    lines = environment_lines(check(DIRECTORY | {"MOESCOPE_DISABLE": "1"}))
    assert lines[1] == "MOESCOPE_DISABLE is set: an engine with this environment records nothing"
