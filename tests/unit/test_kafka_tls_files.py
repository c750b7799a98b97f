from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
from support.kafka_settings import kafka_settings
from support.kafka_tls import make_tls_files

from moescope.core.errors import SettingsError
from moescope.core.kafka import open_admin
from moescope.core.kafka.tls_files import check_tls_files
from moescope.core.self_metrics import SelfMetrics
from moescope.producers.shipping import Shipper

if TYPE_CHECKING:
    from pathlib import Path

    from support.kafka_tls import TlsFiles

    from moescope.core.settings import Settings


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """An authority and a client's certificate."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


def _settings(**files: Path | str) -> Settings:
    named = {f"kafka__ssl_{name}_file": str(path) for name, path in files.items()}
    return kafka_settings("127.0.0.1:1", "p", kafka__security_protocol="SSL", **named)


def _with_password(files: TlsFiles, folder: Path) -> Path:
    locked = folder / "locked.key"
    subprocess.run(
        [
            *("openssl", "pkcs8", "-topk8", "-in", files.client_key),
            *("-out", locked, "-passout", "pass:right"),
        ],
        check=True,
        capture_output=True,
    )
    return locked


def test_good_files_are_accepted(files: TlsFiles, tmp_path: Path) -> None:
    """With and without a password, and with the key in the certificate's file."""
    check_tls_files(_settings())
    known = {"ca": files.authority, "certificate": files.client_certificate}
    check_tls_files(_settings(**known, key=files.client_key))
    password = tmp_path / "password"
    password.write_text("right\n")
    locked = _with_password(files, tmp_path)
    check_tls_files(_settings(**known, key=locked, key_password=password))
    both = tmp_path / "both.pem"
    both.write_text(files.client_certificate.read_text() + files.client_key.read_text())
    check_tls_files(_settings(certificate=both))


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ("ca is no PEM", "kafka.ssl_ca_file"),
        ("ca is a key", "kafka.ssl_ca_file"),
        ("ca is missing", "kafka.ssl_ca_file"),
        ("ca is a folder", "kafka.ssl_ca_file"),
        ("certificate is no PEM", "kafka.ssl_certificate_file"),
        ("certificate without a key", "kafka.ssl_certificate_file"),
        ("key without a certificate", "kafka.ssl_key_file"),
        ("key is no PEM", "kafka.ssl_key_file"),
        ("key is another's", "kafka.ssl_key_file"),
        ("key has a password", "kafka.ssl_key_password_file"),
        ("password is wrong", "kafka.ssl_key_file"),
        ("password is missing", "kafka.ssl_key_password_file"),
    ],
)
def test_a_bad_file_is_named_with_its_setting(
    files: TlsFiles, tmp_path: Path, wrong: str, names: str
) -> None:
    """Whoever gives the wrong file learns which setting it is, before anything is connected."""
    good = {"certificate": files.client_certificate, "key": files.client_key}
    junk = tmp_path / "junk.pem"
    junk.write_bytes(b"\xff\x00 no PEM" if wrong.startswith("ca") else b"no PEM")
    locked = _with_password(files, tmp_path)
    wrong_password = tmp_path / "password"
    wrong_password.write_text("wrong")
    gone = tmp_path / "gone"
    settings = {
        "ca is no PEM": _settings(ca=junk),
        "ca is a key": _settings(ca=files.client_key),
        "ca is missing": _settings(ca=gone),
        "ca is a folder": _settings(ca=tmp_path),
        "certificate is no PEM": _settings(**good | {"certificate": junk}),
        "certificate without a key": _settings(certificate=files.client_certificate),
        "key without a certificate": _settings(key=files.client_key),
        "key is no PEM": _settings(**good | {"key": junk}),
        "key is another's": _settings(**good | {"key": files.authority.with_suffix(".key")}),
        "key has a password": _settings(**good | {"key": locked}),
        "password is wrong": _settings(**good | {"key": locked}, key_password=wrong_password),
        "password is missing": _settings(**good, key_password=gone),
    }[wrong]
    with pytest.raises(SettingsError) as caught:
        open_admin(settings)
    assert names in caught.value.what
    path = settings[names] or settings["kafka.ssl_key_file"]
    assert path in caught.value.what


def test_an_agent_with_a_bad_file_ends_at_once(tmp_path: Path) -> None:
    """A mistake in a setting is no broker that is away: nobody waits for it to be mended."""
    settings = _settings(ca=tmp_path / "gone.pem")
    with (
        pytest.raises(SettingsError, match=r"gone\.pem"),
        Shipper(settings, tmp_path, SelfMetrics()) as shipper,
    ):
        shipper.run(threading.Event())
