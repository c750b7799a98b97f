"""Routers of OLMo-core 3: (weights, ids, counts[, loss]) of [B, S, …]."""

from __future__ import annotations

from typing import Final

from moescope.producers.torch_probe.families.adapter import RouterAdapter
from moescope.producers.torch_probe.families.forms import Form, Linear
from moescope.producers.torch_probe.families.scoring import Scoring

ADAPTERS: Final = (
    RouterAdapter(
        name="OLMo-core",
        sites=("MoELinearRouter",),
        forms={
            "fiif": Form(weights=0, ids=1, input=3),
            "fiiff": Form(weights=0, ids=1, input=4),
        },
        scoring=Scoring("softmax", score_setting="gating_function", has_bias=True),
        linear=Linear("weight", in_float32=False),
        keeps_input=frozenset({4}),
        flattens=True,
        requires=(
            ("uniform_expert_assignment", (False, None)),
            ("random_expert_assignment", (False, None)),
        ),
    ),
)
"""Jitter in training is drawn inside of the router: entropy and margin are those without it."""
