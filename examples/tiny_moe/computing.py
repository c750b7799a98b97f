"""Run the model under the probe, in whatever batches are fast."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from transformers import DynamicCache

from examples.tiny_moe.capture import Capture, Routed
from examples.tiny_moe.pools import END_TOKEN
from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

ROWS_PER_PASS: Final = 8_192
GENERATED: Final = 384
TOP_P: Final = 0.95


@dataclass(frozen=True, slots=True)
class Planned:
    """A request that is to be computed.

    Attributes:
        tokens: The whole prompt.
        prefix_tokens: So many tokens at its beginning come from a prefix cache.
    """

    id: str
    scene: str
    tokens: NDArray[np.int64]
    prefix_tokens: int = 0
    task: str | None = None

    @property
    def facts(self) -> RequestFacts:
        """As the probe is told."""
        return RequestFacts(
            id=self.id,
            task=self.task,
            scene=self.scene,
            prompt_tokens=len(self.tokens),
            cached_tokens=self.prefix_tokens,
        )


def prefill(model: Any, planned: Iterable[Planned], *, scores: bool = False) -> dict[str, Routed]:
    """The routing of prompts, by request id.

    Requests with the same cached prefix are computed on a copy of one key-value cache: the rows of
    the prefix are truly not computed for them.
    """
    capture = Capture()
    groups: dict[tuple[int, bytes], list[Planned]] = defaultdict(list)
    for request in planned:
        prefix = request.tokens[: request.prefix_tokens].tobytes()
        groups[len(request.tokens), prefix].append(request)
    with torch.inference_mode():
        for (length, prefix), group in groups.items():
            cached = len(prefix) // 8
            rows = max(1, ROWS_PER_PASS // (length - cached))
            for first in range(0, len(group), rows):
                _one_pass(model, capture, group[first : first + rows], cached, scores=scores)
    return capture.requests


def _one_pass(
    model: Any, capture: Capture, group: list[Planned], cached: int, *, scores: bool
) -> None:
    tokens = torch.from_numpy(np.stack([request.tokens for request in group]))
    cache = None
    if cached:
        cache = DynamicCache(config=model.config)
        model(tokens[:1, :cached], cache=cache, use_cache=True)
        cache.batch_repeat_interleave(len(group))
    with (
        attach(model, capture, scores=scores) as probe,
        probe.batch([request.facts for request in group]),
    ):
        model(tokens[:, cached:], cache=cache, use_cache=cache is not None)
    _check(probe.counters.errors, probe.counters.incomplete_passes)


def generate(
    model: Any, planned: list[Planned], *, sampled: bool, seed: int, at_once: int = 128
) -> dict[str, Routed]:
    """The routing of prompts and of 384 tokens generated after each, with entropy and margin.

    The last token is computed, too, so that there are 384 decoded rows.
    """
    capture = Capture()
    torch.manual_seed(seed)
    choice: dict[str, Any] = (
        {"do_sample": True, "temperature": 1.0, "top_p": TOP_P, "top_k": 0}
        if sampled
        else {"do_sample": False}
    )
    for first in range(0, len(planned), at_once):
        group = planned[first : first + at_once]
        width = max(len(request.tokens) for request in group)
        ids = np.full((len(group), width), END_TOKEN, np.int64)
        mask = np.zeros((len(group), width), np.int64)
        for row, request in enumerate(group):
            ids[row, width - len(request.tokens) :] = request.tokens
            mask[row, width - len(request.tokens) :] = 1
        with (
            torch.inference_mode(),
            attach(model, capture) as probe,
            probe.batch([request.facts for request in group]),
        ):
            model.generate(
                torch.from_numpy(ids),
                attention_mask=torch.from_numpy(mask),
                max_new_tokens=GENERATED + 1,
                suppress_tokens=[END_TOKEN],
                **choice,
            )
        _check(probe.counters.errors, probe.counters.incomplete_passes)
    return capture.requests


def _check(errors: int, incomplete: int) -> None:
    if errors or incomplete:
        raise RuntimeError(f"the probe reports {errors} errors, {incomplete} incomplete passes")
