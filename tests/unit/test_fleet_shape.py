"""Work with processors where the settings say that the store does without."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from moescope.console.processor_work import run_processor
from moescope.console.store_work import run_store
from moescope.core.errors import SettingsError
from moescope.core.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from moescope.core.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a fleet whose store reads routing batches itself, as by default."""
    options = {"data.directory": str(tmp_path), "kafka.bootstrap_servers": "127.0.0.1:9"}
    return load_settings(environment={}, options=options)


def test_a_processor_whose_output_nobody_reads_does_not_start(settings: Settings) -> None:
    """It would fill a topic that is never applied, and move the group's offsets past it."""
    with pytest.raises(SettingsError, match=r"A processor needs store\.source") as caught:
        run_processor(settings, threading.Event(), until_idle=True)
    assert 'store.source = "deltas"' in caught.value.next_step
    assert caught.value.exit_code == 2


def test_processors_are_not_reset_where_none_may_run(settings: Settings) -> None:
    """The states would be written for a group that nobody joins."""
    with pytest.raises(SettingsError, match=r"--reset-processors needs store\.source"):
        run_store(settings, threading.Event(), reset_processors=True, until_idle=True)
