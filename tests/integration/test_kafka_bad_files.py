"""Every command that needs a broker ends at once where a TLS file is no good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.command_line import moescope

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "command",
    [("run", "agent"), ("run", "processor"), ("run", "store"), ("kafka", "topics-check")],
    ids=" ".join,
)
def test_a_bad_authority_ends_the_command_and_is_named(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    """Waiting for a broker mends no file: exit code 2, the setting and the file."""
    junk = tmp_path / "ca.pem"
    junk.write_text("no PEM")
    variables = {
        "MOESCOPE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
        "MOESCOPE_KAFKA_SECURITY_PROTOCOL": "SSL",
        "MOESCOPE_KAFKA_SSL_CA_FILE": str(junk),
        "MOESCOPE_STORE_SOURCE": "deltas",
    }
    said = moescope(
        *command, "--data", tmp_path / "data", folder=tmp_path, variables=variables, expect=2
    ).stderr
    assert f"The file {junk} of kafka.ssl_ca_file" in said
