"""Kernels are compiled before work begins, where this machine has not done so, and that is said."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from numba import njit
from support.small_windows import CONFIG

from moescope.console import compiling
from moescope.console.compiling import COMPILING, compile_first, has_machine_code, run_kernels
from moescope.console.processor_work import _State
from moescope.console.watch import HealthStatus
from moescope.core.kafka.broker_watch import BrokerWatch
from moescope.core.self_metrics import SelfMetrics

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SOURCE = """
def doubled(number):
    return 2 * number
"""


def _function(folder: Path) -> Any:
    """A small function with a source file of its own, compiled when it is called."""
    source = folder / "small.py"
    if not source.exists():
        source.write_text(SOURCE)
    names: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), names)  # noqa: S102 (the text above)
    return njit(cache=True)(names["doubled"])


def test_code_counts_until_its_source_is_newer(tmp_path: Path) -> None:
    """Nothing in the cache, code in the cache, and code of an older source."""
    function = _function(tmp_path)
    assert not has_machine_code(function)
    assert function(21) == 42
    assert has_machine_code(_function(tmp_path))
    later = time.time() + 60
    os.utime(tmp_path / "small.py", (later, later))
    assert not has_machine_code(_function(tmp_path))


def test_a_function_without_a_cache_is_compiled_each_time() -> None:
    """Where no folder can be written there is no code from before."""
    assert not has_machine_code(njit(lambda number: number))


def test_a_machine_that_has_compiled_says_nothing() -> None:
    """What is in the cache is loaded when it is needed, as ever."""
    run_kernels(CONFIG)
    said: list[str] = []
    compile_first(CONFIG, said.append)
    assert said == []


def test_a_machine_that_has_not_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it takes its time, and it does the work."""
    monkeypatch.setattr(compiling, "has_machine_code", lambda _: False)
    said: list[str] = []
    compile_first(CONFIG, said.append)
    assert said == [COMPILING]


def test_kernels_are_used_by_what_compiles_them() -> None:
    """The few simulated seconds reach both halves: rows are counted, and windows finished."""
    assert run_kernels(CONFIG) > 0
    entries: tuple[Any, ...] = compiling._ENTRIES  # noqa: SLF001 - nothing public lists them
    assert all(each.signatures for each in entries)


def test_a_processor_is_starting_while_it_prepares() -> None:
    """Its health says what it does, and afterwards what it waits for."""
    state = _State(SelfMetrics(), BrokerWatch(print))
    state.prepares(COMPILING)
    assert (state.health().status, state.health().why) == (HealthStatus.STARTING, COMPILING)
    state.is_prepared()
    assert state.health().status is HealthStatus.WAITING
