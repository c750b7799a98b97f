"""Real vLLM servers for a session of tests: `support.vllm_server` says how they are started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.vllm_server import VllmNursery

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmNursery]:
    """Starts servers: `nursery.start("name", ServerOptions(ring=folder))`."""
    pytest.importorskip("vllm", reason="`make engines` has vLLM")
    with VllmNursery(tmp_path_factory.mktemp("vllm")) as nursery:
        yield nursery
