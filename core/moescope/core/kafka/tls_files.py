"""The TLS files that the settings name, tried before a client: it says too little of bad ones."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from moescope.core.errors import SettingsError

if TYPE_CHECKING:
    from moescope.core.settings import Settings

_CA = "kafka.ssl_ca_file"
_CERTIFICATE = "kafka.ssl_certificate_file"
_KEY = "kafka.ssl_key_file"
_KEY_PASSWORD = "kafka.ssl_key_password_file"


def check_tls_files(settings: Settings) -> None:
    """Load the authorities, the certificate and its key as a client would.

    Raises:
        SettingsError: One cannot be read, is no PEM file of its kind, or does not fit the others.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings[_CA]:
        _check_certificates(settings, _CA)
    if settings[_CERTIFICATE]:
        _check_certificates(settings, _CERTIFICATE)
        _check_key(context, settings)
    elif settings[_KEY]:
        raise SettingsError(
            f"{_KEY} is set ({settings[_KEY]}), and {_CERTIFICATE} is not.",
            why="A key is of no use without its certificate.",
            next_step=f"Set {_CERTIFICATE}, or neither.",
        )


def secret(settings: Settings, name: str) -> str:
    """What the file of a setting holds, without the end of its last line; empty without a file.

    Raises:
        SettingsError: The file cannot be read.
    """
    return _text(settings, name).rstrip("\r\n") if settings[name] else ""


def _text(settings: Settings, name: str) -> str:
    path = settings[name]
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "It is no text."
        raise SettingsError(
            f"The file {path} of {name} cannot be read.",
            why=why or str(error),
            next_step="Check the path, and that the user of this process may read it.",
        ) from error


def _check_certificates(settings: Settings, name: str) -> None:
    text = _text(settings, name)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(
            f"The file {settings[name]} of {name} holds no certificate in PEM.",
            why=str(error),
            next_step="It has to hold -----BEGIN CERTIFICATE----- and what follows.",
        ) from error


def _check_key(context: ssl.SSLContext, settings: Settings) -> None:
    name = _KEY if settings[_KEY] else _CERTIFICATE
    holder = settings[name]
    has_label = "PRIVATE KEY-----" in _text(settings, name)
    password = secret(settings, _KEY_PASSWORD)
    is_asked = False

    def asked() -> str:
        nonlocal is_asked
        is_asked = True
        return password

    try:
        # Without a function OpenSSL would ask at the terminal.
        context.load_cert_chain(settings[_CERTIFICATE], settings[_KEY] or None, asked)
    except (ssl.SSLError, OSError, ValueError) as error:
        why = str(error)
        if "MISMATCH" in why.upper():
            raise SettingsError(
                f"The key {holder} of {name} is not that of the certificate "
                f"{settings[_CERTIFICATE]} of {_CERTIFICATE}.",
                why=why,
                next_step="Give the certificate and the key that were made together.",
            ) from error
        if is_asked:
            raise SettingsError(
                f"The password of the key {holder} of {name} is wrong."
                if settings[_KEY_PASSWORD]
                else f"The key {holder} of {name} has a password, and {_KEY_PASSWORD} is not set.",
                why=why,
                next_step=f"Check {settings[_KEY_PASSWORD] or name}, the file of {_KEY_PASSWORD}."
                if settings[_KEY_PASSWORD]
                else f"Set {_KEY_PASSWORD} to a file that holds it.",
            ) from error
        raise SettingsError(
            f"The file {holder} of {name} holds no usable private key in PEM.",
            why=why if has_label else "There is no -----BEGIN PRIVATE KEY----- in it.",
            next_step=f"Set {_KEY} to the file of the certificate's key.",
        ) from error
