"""Compiling kernels before anything waits for them, the first time on a machine."""

from __future__ import annotations

import inspect
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from moescope.processors.finish import WindowFinisher
from moescope.processors.finish_rows import finish_rows
from moescope.processors.kernels.apply import apply_ops
from moescope.processors.pipeline import Pipeline
from moescope.processors.sources.batch_log import BatchLogSource
from moescope.producers.simulator import (
    ModelSpec,
    RouterSpec,
    TrafficSpec,
    scenario_named,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from moescope.core.accounts import PartitionProgress
    from moescope.core.emission import Emission
    from moescope.processors.config import WindowConfig

COMPILING: Final = "compiling kernels, about a minute the first time"
_SIMULATED_SECONDS: Final = 12
_MODEL: Final = ModelSpec(experts=16, top_k=2, layers=(1, 3))
_ROUTER: Final = RouterSpec(pool_tokens=512)
_ENTRIES: Final = (apply_ops, finish_rows)
"""One of those that count rows, and one of those that finish windows."""


def compile_first(config: WindowConfig, log: Callable[[str], None]) -> None:
    """Compile what counts rows and finishes windows, unless this machine has done so before.

    Who takes part in a group first, and compiles then, is silent for longer than the group waits.

    Args:
        config: Declared windows.
        log: Told once, before it takes its time.
    """
    if all(map(has_machine_code, _ENTRIES)):
        return
    log(COMPILING)
    run_kernels(config)


def has_machine_code(function: Any) -> bool:  # noqa: ANN401 (numba's dispatchers are untyped)
    """Whether the cache on disk holds code of a compiled function as its source is now."""
    if not hasattr(function, "stats"):
        # NUMBA_DISABLE_JIT: there is nothing to compile.
        return True
    folder = function.stats.cache_path
    if folder is None:
        return False
    source = Path(inspect.getfile(function.py_func)).stat().st_mtime
    return any(
        index.stat().st_mtime >= source
        for index in Path(folder).glob(f"*.{function.__name__}-*.nbi")
    )


def run_kernels(config: WindowConfig) -> int:
    """Roll a few simulated seconds up, and forget them; gives the number of commits."""
    with tempfile.TemporaryDirectory(prefix="moescope-") as folder:
        root = Path(folder)
        scenario = replace(
            scenario_named("healthy"), model=_MODEL, router=_ROUTER, traffic=TrafficSpec()
        )
        simulate(scenario, root, duration_s=_SIMULATED_SECONDS, nodes=1)
        store = _Forgetful()
        with BatchLogSource(root) as source:
            Pipeline(source, store, WindowFinisher(), config).run(until_idle=True)
        return store.commits


class _Forgetful:
    """A store that keeps nothing."""

    def __init__(self) -> None:
        self.commits = 0

    def load_progress(self) -> dict[str, PartitionProgress]:
        """Nothing was stored."""
        return {}

    def apply(self, _: Emission) -> None:
        """Store nothing."""
        self.commits += 1
