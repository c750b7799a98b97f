"""Clients of a broker that is not there leave nothing behind."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.kafka_settings import kafka_settings

from moescope.core.kafka import (
    BrokerUnreachableError,
    open_admin,
    open_consumer,
    open_producer,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("open_client", [open_admin, open_consumer, open_producer])
def test_client_that_finds_no_broker_leaves_no_thread_and_no_socket(
    open_client: Callable[..., object],
) -> None:
    """Who tries again for hours must not gather threads and files with each try."""
    settings = kafka_settings("127.0.0.1:1", "absent", kafka__connect_timeout=0.5)
    with pytest.raises(BrokerUnreachableError):
        open_client(settings)
    threads, files = threading.active_count(), _open_files()
    for _ in range(3):
        with pytest.raises(BrokerUnreachableError):
            open_client(settings)
        gc.collect()
    assert threading.active_count() <= threads
    assert _open_files() <= files


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
