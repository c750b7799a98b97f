"""What a server's worker can be asked to do to its model, by `/collective_rpc`: for tests.

vLLM mixes the class into its worker (`--worker-extension-cls`); the route exists in its
development mode.
"""

from __future__ import annotations

import gc
import json
import urllib.request
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.vllm_server import VllmServer

LONGEST_WAIT_S = 60.0
ARGUMENTS = ("--worker-extension-cls", f"{Path(__file__).stem}.UnloadingWorker")
PATHS = (Path(__file__).parent,)
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}


class UnloadingWorker:
    """Mixed into vLLM's worker."""

    model_runner: Any

    def drop_model(self) -> dict[str, int]:
        """Let go of the model; how many of its modules and weights are there all the same."""
        runner = self.model_runner
        modules = [weakref.ref(module) for module in runner.model.modules()]
        weights = [weakref.ref(weight) for weight in runner.model.parameters()]
        runner.model = None
        # Attention and MoE layers are found by name in a pass.
        runner.vllm_config.compilation_config.static_forward_context.clear()
        gc.collect()
        return {
            "modules": sum(module() is not None for module in modules),
            "weights": sum(weight() is not None for weight in weights),
        }


def post(server: VllmServer, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask a server to do something."""
    request = urllib.request.Request(  # noqa: S310 - its own server, by HTTP
        f"{server.url}{path}",
        data=json.dumps(body or {}).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=LONGEST_WAIT_S) as answer:  # noqa: S310 - likewise
        found: dict[str, Any] = json.loads(answer.read() or b"{}")
    return found
