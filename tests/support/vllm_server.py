"""Real vLLM OpenAI-compatible servers on the CPU, for tests and benchmarks.

    with VllmNursery(python, folder) as nursery:
        server = nursery.start("plain", ServerOptions(model=MODEL))
        replies = complete_all(server, prompts)     # support.vllm_client
        server.stop()

A server has a process group of its own (API server, engine core, worker).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[2]
TINY_MOE = ROOT / "examples" / "tiny_moe" / "weights"
NURSERY = Path(__file__).with_name("vllm_nursery.py")
CACHE = ROOT / ".engines" / "vllm-cache"
"""Compiled graphs: compiling them anew takes longer than all else of a start."""
MODEL_NAME = "tiny-moe"
PLUGIN_SWITCH = "MOESCOPE_DIR"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}
"""Of every server. One compute thread: a fork inherits no thread pool, and machines are small."""
LONGEST_START_S = 480.0
LONGEST_STOP_S = 60.0


class VllmServerError(AssertionError):
    """A server did not start, or died."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a server is started.

    Attributes:
        model: Folder of the model; no tokenizer is needed, prompts are token ids.
        eager: No `torch.compile`.
        prefix_caching: Blocks of equal prefixes are computed once.
        kv_blocks: KV blocks of the cache, all of which is allocated; by default so many that
            `max_num_seqs` requests find room. A small number forces preemption.
        block_size: Tokens of a KV block.
        dtype: `float32` makes greedy outputs independent of which requests share a batch.
        bind_cores: As `VLLM_CPU_OMP_THREADS_BIND`: `nobind` lets the system place the worker.
        ring: Ring folder: switches moescope's plugin on; None: the server runs without.
        environment: More variables.
        paths: Folders before all others on `sys.path` (a test's own plugins).
        arguments: More arguments of vLLM.
    """

    model: Path = TINY_MOE
    eager: bool = True
    prefix_caching: bool = True
    kv_blocks: int | None = None
    block_size: int = 128
    max_model_len: int = 512
    max_num_seqs: int = 16
    dtype: str = "float32"
    bind_cores: str = "nobind"
    ring: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()
    arguments: tuple[str, ...] = ()

    def command_line(self, port: int) -> list[str]:
        """Arguments of vLLM's API server."""
        given = [
            *("--model", str(self.model), "--served-model-name", MODEL_NAME),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--skip-tokenizer-init", "--disable-log-stats", "--disable-uvicorn-access-log"),
            *("--max-model-len", str(self.max_model_len)),
            *("--max-num-seqs", str(self.max_num_seqs)),
            *("--num-gpu-blocks-override", str(self.kv_blocks or self._blocks_needed())),
            *("--block-size", str(self.block_size)),
            *("--dtype", self.dtype),
            "--enable-prefix-caching" if self.prefix_caching else "--no-enable-prefix-caching",
        ]
        if self.eager:
            given.append("--enforce-eager")
        return [*given, *self.arguments]

    def _blocks_needed(self) -> int:
        return (self.max_num_seqs + 1) * -(-self.max_model_len // self.block_size) + 1

    def variables(self) -> dict[str, str | None]:
        """What differs from the nursery's environment; None: unset."""
        own = {
            "VLLM_CPU_OMP_THREADS_BIND": self.bind_cores,
            PLUGIN_SWITCH: None if self.ring is None else str(self.ring),
        }
        return own | dict(self.environment)


class EngineProcess(NamedTuple):
    """One process of a server; `title` is `EngineCore`, `Worker`, or its program's name."""

    pid: int
    title: str


class VllmServer:
    """A server that answers, or did."""

    def __init__(self, pid: int, port: int, log: Path) -> None:
        self.pid, self.port, self.log = pid, port, log

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether its API server lives."""
        return _is_alive(self.pid)

    def is_healthy(self) -> bool:
        """Whether it answers, and its engine lives."""
        with (
            suppress(OSError),
            urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer,  # noqa: S310 - its own server, by HTTP
        ):
            return bool(answer.status == HTTPStatus.OK)
        return False

    def processes(self) -> list[EngineProcess]:
        """All living processes of its group."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with suppress(OSError, ValueError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.pid and fields[0] != "Z":
                    title = (folder / "cmdline").read_bytes().partition(b"\0")[0].decode()
                    title = title.rpartition("/")[2].rpartition("::")[2]
                    found.append(EngineProcess(int(folder.name), title))
        return sorted(found)

    def log_text(self) -> str:
        """What it has written."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def stop(self) -> None:
        """Ask it to end as an operator would, and wait; kill what is left."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        _wait_until(lambda: not self.processes(), LONGEST_STOP_S)
        self.kill()

    def kill(self) -> None:
        """End all its processes at once, as a crash would, and remove what they shared."""
        left = {file for process in self.processes() for file in _shared_memory(process.pid)}
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        _wait_until(lambda: not self.processes(), LONGEST_STOP_S)
        for file in left:
            file.unlink(missing_ok=True)


class VllmNursery:
    """A process of the engine's environment that has imported vLLM, and forks servers.

    Args:
        python: The environment's interpreter.
        folder: For logs.
    """

    def __init__(self, folder: Path, python: Path | str = sys.executable) -> None:
        self._folder = folder
        self._log = folder / "nursery.log"
        caches = {
            "VLLM_CACHE_ROOT": str(CACHE),
            "TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor"),
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(python), "-P", str(NURSERY)],
                env=os.environ | OFFLINE | caches,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._servers: list[VllmServer] = []

    def launch(self, name: str, options: ServerOptions) -> VllmServer:
        """Start a server, and do not wait until it answers."""
        self._expect_ready()
        port = _free_port()
        log = self._folder / f"{name}.log"
        reply = self._ask(
            {
                "arguments": options.command_line(port),
                "environment": options.variables(),
                "paths": [str(path) for path in options.paths],
                "log": str(log),
            }
        )
        server = VllmServer(reply["pid"], port, log)
        self._servers.append(server)
        return server

    def start(self, name: str, options: ServerOptions) -> VllmServer:
        """Start a server, and wait until it answers.

        Raises:
            VllmServerError: It died, or took too long.
        """
        server = self.launch(name, options)
        wait_until_ready(server)
        return server

    def close(self) -> None:
        """Kill all servers and end."""
        for server in self._servers:
            server.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(LONGEST_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _expect_ready(self) -> None:
        if not self._servers:
            self._read_reply()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._read_reply()

    def _read_reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            raise VllmServerError(f"The vLLM nursery ended:\n{text[-3000:]}")
        reply: dict[str, Any] = json.loads(line)
        return reply


def wait_until_ready(server: VllmServer, longest_s: float = LONGEST_START_S) -> None:
    """Wait until a launched server answers.

    Raises:
        VllmServerError: It died, or took too long.
    """
    if _wait_until(lambda: not server.is_running or server.is_healthy(), longest_s):
        if server.is_running:
            return
        why = "died"
    else:
        why = f"did not answer within {longest_s:g} s"
    text = server.log_text()
    server.kill()
    raise VllmServerError(f"vLLM {why}:\n{text[-4000:]}")


def _wait_until(condition: Callable[[], object], longest_s: float) -> bool:
    end = time.monotonic() + longest_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _shared_memory(pid: int) -> set[Path]:
    """Segments of Python's shared memory that a process has mapped: nobody removes a dead one's."""
    found = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines():
            path = line.partition("/")[2]
            if path.startswith("dev/shm/psm_") and not path.endswith("(deleted)"):
                found.add(Path("/") / path)
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
