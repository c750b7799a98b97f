"""The owner, and notifications that cannot be delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.console.owner import Owner
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_broken_outbox_does_not_end_the_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be told must not stop what is recorded, whatever the database raises."""
    settings = load_settings(environment={"MOESCOPE_DATA_DIRECTORY": str(tmp_path)})
    with Owner(settings) as owner:
        owner.parts.store.change(
            lambda connection, _: connection.execute(
                "ALTER TABLE outbox RENAME COLUMN not_before TO elsewhere"
            ),
            author="test",
            action="rename",
            audit=False,
        )
        assert owner.run(until_idle=True).records == 0
    assert "notifications wait for the next owner" in capsys.readouterr().err
