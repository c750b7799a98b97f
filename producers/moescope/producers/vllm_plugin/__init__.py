"""A plugin of vLLM that records routing from inside the engine.

vLLM finds `register` by the entry point group `vllm.general_plugins`, in each of its processes. It
does nothing unless `MOESCOPE_DIR` names the ring's folder. Nothing of torch or vLLM is imported
before that, and nothing that goes wrong here ever reaches the engine.
"""

from __future__ import annotations

import logging
import os

from moescope.producers.vllm_plugin.settings import DIRECTORY_VARIABLE

__all__ = ["register"]

_log = logging.getLogger("moescope.producers")


def register() -> None:
    """Have each worker of this process attach a probe to its model once it is loaded.

    May be called any number of times, as vLLM does.
    """
    if not os.environ.get(DIRECTORY_VARIABLE, "").strip():
        return
    try:
        from moescope.producers.vllm_plugin.workers import watch_workers  # noqa: PLC0415 - only where it is asked for

        watch_workers()
    except Exception:  # noqa: BLE001 - inference comes first
        _log.exception(
            "The engine is not watched by moescope: this version of vLLM cannot be hooked."
        )
