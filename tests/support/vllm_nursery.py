"""Runs in an engine's environment: imports vLLM once, then forks OpenAI-compatible servers.

Importing vLLM takes 20 s of CPU time, and a server started by hand does it four times (API server,
model inspection, engine core, worker). Here it is done once for all servers of a session, and each
is vLLM's own entry point, with its own processes, in a process group of its own.

    {"arguments": ["--model", …], "environment": {…}, "paths": […], "log": "…"}  lines on stdin
    {"pid": 123}                                              lines on stdout, one for each

At the end of stdin it kills the servers that are left, and ends.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

PRELOADED = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.olmoe",
)
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve commands until stdin ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints while it is imported
    for module in PRELOADED:
        importlib.import_module(module)
    _start_processes_by_fork()
    _inspect_models_in_this_process()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    print(json.dumps({"ready": True}), file=replies, flush=True)
    started = []
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if not pid:
            replies.close()
            _serve(command)
        started.append(pid)
        print(json.dumps({"pid": pid}), file=replies, flush=True)
    for pid in started:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _start_processes_by_fork() -> None:
    """Fork, as vLLM does by default: its CPU platform asks for `spawn`, which imports anew."""
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415 - in its environment only

    asked = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: object) -> None:
        asked(cls, vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _inspect_models_in_this_process() -> None:
    """Look at a model's class here: vLLM starts a Python of its own, to spare a GPU."""
    from vllm.model_executor.models import registry  # noqa: PLC0415 - in its environment only

    registry._run_in_subprocess = lambda look: look()  # noqa: SLF001 - nothing public decides it


def _serve(command: dict[str, Any]) -> None:
    """Become a server; never returns."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for name, value in command["environment"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        sys.path[:0] = command["paths"]
        importlib.invalidate_caches()
        sys.argv = ["vllm", *command["arguments"]]
        Path("/proc/self/comm").write_text("vllm-api", encoding="utf-8")
        importlib.import_module(PRELOADED[0]).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 (a fork must not go back into the nursery's loop)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
