"""A plugin of vLLM that puts clocks around moescope's: loaded inside an engine by `vllm_inside`."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

FILE_VARIABLE = "BENCHMARK_INSIDE_FILE"
BEGINNING, ROUTERS, END, PASS = "beginning", "routers", "end", "pass"
WRITE_EVERY = 400


def register() -> None:
    """Called by vLLM."""
    from moescope.producers.vllm_plugin import workers  # noqa: PLC0415 - not before vLLM asks
    from moescope.producers.vllm_plugin.capture import RoutingCapture  # noqa: PLC0415 - likewise
    from moescope.producers.vllm_plugin.probe import EngineProbe  # noqa: PLC0415 - likewise

    if getattr(EngineProbe, "is_timed", False):
        return
    file = Path(os.environ[FILE_VARIABLE])
    taken: dict[str, list[int]] = defaultdict(list)
    spent: dict[str, int] = defaultdict(int)

    def timed(kind: type, method: str, where: str) -> None:
        inner = getattr(kind, method)

        def around(self: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter_ns()
            try:
                return inner(self, *args, **kwargs)
            finally:
                spent[where] += time.perf_counter_ns() - began

        setattr(kind, method, around)

    def hook_runner(runner: Any, probe: Any) -> None:
        hook(runner, probe)
        inner = runner.execute_model

        def execute_model(*args: Any, **kwargs: Any) -> Any:
            spent.clear()
            began = time.perf_counter_ns()
            result = inner(*args, **kwargs)
            spent[PASS] = time.perf_counter_ns() - began
            if ROUTERS in spent:
                for where in (BEGINNING, ROUTERS, END, PASS):
                    taken[where].append(spent[where])
                if len(taken[PASS]) % WRITE_EVERY == 0:
                    file.write_text(json.dumps(taken), encoding="ascii")
            return result

        runner.execute_model = execute_model

    hook, workers.hook_runner = workers.hook_runner, hook_runner
    timed(EngineProbe, "before_pass", BEGINNING)
    timed(RoutingCapture, "observe", ROUTERS)
    timed(EngineProbe, "after_pass", END)
    EngineProbe.is_timed = True  # type: ignore[attr-defined]  # the mark of the benchmark
