"""An engine of vLLM's first generation as far as the plugin reads it: nothing of vLLM runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.producers import Recorder
from moescope.producers.vllm_plugin.capture import RoutingCapture
from moescope.producers.vllm_plugin.host import host_copies
from moescope.producers.vllm_plugin.probe import EngineProbe
from moescope.producers.vllm_plugin.requests import EngineRequests
from moescope.producers.vllm_plugin.runners import layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

LAYERS, EXPERTS, TOP_K = 3, 8, 3
MOST_ROWS = 64


class Runner:
    """Holds what the plugin reads of a runner."""

    def __init__(self, torch: Any) -> None:
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_rank=0), speculative_config=None
        )
        self.requests: dict[str, Any] = {}
        self.input_ids = SimpleNamespace(gpu=torch.zeros(MOST_ROWS, dtype=torch.int32))
        self.input_batch = SimpleNamespace(req_ids=[], num_computed_tokens_cpu=np.zeros(0, int))


class PluginEngine:
    """A probe, and passes whose routing the test gives.

    Args:
        torch: The module.
        folder: For ring and log.
        options: Of the recorder.
        probe: Further arguments of `EngineProbe`.
    """

    def __init__(
        self,
        torch: Any,
        folder: Path,
        options: Mapping[str, Any] | None = None,
        **probe: Any,
    ) -> None:
        self.torch, self.folder = torch, folder
        has_tokens = "token_id_kind" in (options or {})
        self.recorder = Recorder(
            **{
                "model": "m", "revision": "r", "layers": range(LAYERS), "experts": EXPERTS,
                "top_k": TOP_K, "directory": folder / "ring", "ring_bytes": 1 << 20,
                "rank_order": "selection_score", **(options or {}),
            }
        )  # fmt: skip
        self.runner = Runner(torch)
        self.capture = RoutingCapture(
            LAYERS, MOST_ROWS, TOP_K, torch.device("cpu"), is_replayed=False
        )
        self.probe = EngineProbe(
            self.recorder, EngineRequests(self.recorder, "unknown"), layout_of(self.runner),
            self.capture, host_copies(self.capture, with_token_ids=has_tokens),
            **probe,
        )  # fmt: skip

    def compute(
        self,
        computed: Mapping[str, tuple[int, int]],
        ids: Any,
        weights: Any,
        *,
        new: Mapping[str, int] | None = None,
        finished: Sequence[str] = (),
        tokens: Any = None,
        drafts: Mapping[str, int] | None = None,
        amid: Callable[[], object] = lambda: None,
        fails: bool = False,
    ) -> None:
        """One step of the engine.

        Args:
            computed: First position and rows of each request, in the order of the batch.
            ids: int32 [L, T, k].
            weights: float32 [L, T, k].
            new: Prompt lengths of requests that begin.
            finished: Requests that are over.
            tokens: int32 [T].
            drafts: How many of each request's rows are drafts.
            amid: Called in the middle of the forward pass.
            fails: Whether the forward pass raises.
        """
        step = SimpleNamespace(
            total_num_scheduled_tokens=sum(rows for _, rows in computed.values()),
            num_scheduled_tokens={name: rows for name, (_, rows) in computed.items()},
            scheduled_spec_decode_tokens={
                name: [-1] * many for name, many in (drafts or {}).items()
            },
            finished_req_ids={*finished},
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=name, prompt_token_ids=[1] * prompt, prompt_embeds=None,
                    num_computed_tokens=0, sampling_params=None,
                )
                for name, prompt in (new or {}).items()
            ],
        )  # fmt: skip
        if not self.probe.before_pass(step, (), {}):
            return
        batch = self.runner.input_batch
        batch.req_ids = [*computed]
        batch.num_computed_tokens_cpu = np.array([first for first, _ in computed.values()])
        if tokens is not None:
            self.runner.input_ids.gpu[: len(tokens)] = self.torch.from_numpy(tokens)
        for layer in range(LAYERS):
            self.capture.observe(
                layer, self.torch.from_numpy(ids[layer]), self.torch.from_numpy(weights[layer])
            )
        amid()
        self.probe.after_pass(step, is_complete=not fails)
