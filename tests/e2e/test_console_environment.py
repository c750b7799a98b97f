from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.command_line import moescope

if TYPE_CHECKING:
    from pathlib import Path

WRONG = {"MOESCOPE_DIR": "ring", "MOESCOPE_FIDELITY": "smapled"}


def test_config_check_and_doctor_refuse_what_an_engine_would(tmp_path: Path) -> None:
    """Exit codes stop a deployment, and the text says what is wrong, why and what to do."""
    refused = moescope("config", "check", folder=tmp_path, variables=WRONG, expect=2)
    assert refused.stderr.splitlines() == [
        "moescope: MOESCOPE_FIDELITY cannot be 'smapled'.",
        "Why: Expected one of full, sampled, counts.",
        "Next: Change the variable and start the engine again.",
    ]
    assert refused.stdout == ""
    printed = moescope("doctor", "--json", folder=tmp_path, variables=WRONG, expect=1).stdout
    (found,) = [each for each in json.loads(printed) if each["check"] == "settings"]
    assert found == {
        "check": "settings",
        "outcome": "failure",
        "detail": "MOESCOPE_FIDELITY cannot be 'smapled'. Expected one of full, sampled, counts.",
        "next_step": "Change the variable and start the engine again.",
    }
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    key.chmod(0o644)
    variables = {"MOESCOPE_DIR": "ring", "MOESCOPE_CONTENT_KEY_FILE": "key"}
    moescope("config", "check", folder=tmp_path, variables=variables, expect=2)
    key.chmod(0o600)
    told = moescope("config", "check", folder=tmp_path, variables=variables).stdout
    assert told.splitlines() == [
        "settings are valid; 0 differ from the defaults",
        "2 variables of the vLLM plugin: valid for this user",
    ]
    printed = moescope("config", "check", "--json", folder=tmp_path, variables=variables).stdout
    assert json.loads(printed)["producer_variables"] == list(variables)
