"""A certificate authority, a broker's and a client's certificate, made by openssl as PEM files."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files; keys are PKCS #8 without a password.

    Attributes:
        authority: The certificate that both sides trust.
        broker_key_and_certificate: What Kafka reads as a PEM keystore; for 127.0.0.1 and localhost.
        client_certificate: Signed by the authority.
        client_key: Belongs to it.
    """

    authority: Path
    broker_key_and_certificate: Path
    client_certificate: Path
    client_key: Path


def make_tls_files(folder: Path) -> TlsFiles:
    """Make a new authority and certificates that it signed, valid for two days.

    Raises:
        FileNotFoundError: Without openssl on PATH.
    """
    if shutil.which("openssl") is None:
        raise FileNotFoundError("openssl is not on PATH (Debian: apt-get install -y openssl).")
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    _certificate(
        authority, authority_key, "moescope test authority", "keyUsage=keyCertSign,cRLSign"
    )
    signed = ["-CA", str(authority), "-CAkey", str(authority_key)]
    not_an_authority = "basicConstraints=critical,CA:FALSE"
    broker, broker_key = folder / "broker.pem", folder / "broker.key"
    addresses = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    _certificate(broker, broker_key, "localhost", addresses, not_an_authority, options=signed)
    client, client_key = folder / "client.pem", folder / "client.key"
    _certificate(client, client_key, "client", not_an_authority, options=signed)
    keystore = folder / "broker_keystore.pem"
    keystore.write_text(broker_key.read_text() + broker.read_text())
    return TlsFiles(
        authority=authority,
        broker_key_and_certificate=keystore,
        client_certificate=client,
        client_key=client_key,
    )


def _certificate(
    certificate: Path, key: Path, name: str, *extensions: str, options: list[str] | None = None
) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}", *(options or [])]
    command += ["-keyout", str(key), "-out", str(certificate)]
    for extension in extensions:
        command += ["-addext", extension]
    subprocess.run(command, check=True, capture_output=True)
