"""Routers of transformers, from 4.57 to 5.24, one declaration for each kind of contract.

A name is a router's class, or (up to transformers 4, where a router is a bare linear map) the
block that owns it and its attribute there. Which form a router's output has changed over the
versions; an adapter names all of them.
"""

from __future__ import annotations

from typing import Final

from moescope.core.vocabulary import ScoreKind
from moescope.producers.torch_probe.families.adapter import RouterAdapter
from moescope.producers.torch_probe.families.forms import (
    BARE,
    IDS_WEIGHTS_INPUT,
    PROBABILITIES_TRIPLE,
    TRIPLE,
    Form,
    Linear,
)
from moescope.producers.torch_probe.families.scoring import Groups, Scoring
from moescope.producers.torch_probe.families.settings import SCALE
from moescope.producers.torch_probe.families.weighting import (
    ScoreWeights,
    SoftmaxOfSelected,
    SparseMixer,
)

_TWO_BEST: Final = Groups("two_best", zero_where=("get_topk_indices", "apply_group_scoring"))
"""In transformers 4, and of A.X-K2, ineligible experts get the selection score 0."""

_DEEPSEEK_WEIGHTS: Final = ScoreWeights(normalised="norm_topk_prob", plus=1e-20, scaled=SCALE)

_SOFTMAX: Final = (
    RouterAdapter(
        name="softmax before top-k, renormalised",
        sites=(
            "MixtralTopKRouter", "MixtralSparseMoeBlock.gate",
            "MiniMaxTopKRouter", "MiniMaxSparseMoeBlock.gate",
            "HunYuanMoEV1Gate",
            "Qwen3_5MoeTopKRouter",
            "Qwen3VLMoeTextTopKRouter", "Qwen3VLMoeTextSparseMoeBlock.gate",
        ),
        forms=TRIPLE | BARE,
    ),
    RouterAdapter(
        name="softmax before top-k, renormalised if norm_topk_prob",
        sites=(
            "OlmoeTopKRouter", "OlmoeSparseMoeBlock.gate",
            "FlexOlmoTopKRouter", "FlexOlmoSparseMoeBlock.gate",
            "Qwen2MoeTopKRouter", "Qwen2MoeSparseMoeBlock.gate",
            "Qwen3MoeTopKRouter", "Qwen3MoeSparseMoeBlock.gate",
            "Qwen3NextTopKRouter", "Qwen3NextSparseMoeBlock.gate",
            "Qwen3OmniMoeThinkerTextTopKRouter", "Qwen3OmniMoeThinkerTextSparseMoeBlock.gate",
            "Qwen3OmniMoeTalkerTextTopKRouter", "Qwen3OmniMoeTalkerTextSparseMoeBlock.gate",
            "Qwen4ExpTextTopKRouter", "MellumTopKRouter", "LaraMiniTopKRouter",
        ),
        forms=TRIPLE | BARE,
        weighting=ScoreWeights(normalised="norm_topk_prob"),
    ),
    RouterAdapter(
        name="softmax before top-k, not renormalised",
        sites=("JambaTopKRouter", "JambaSparseMoeBlock.router"),
        forms=TRIPLE | BARE,
        weighting=ScoreWeights(),
    ),
    RouterAdapter(
        name="softmax before top-k, divided by a norm",
        sites=("DbrxRouter",),
        forms=PROBABILITIES_TRIPLE | BARE,
        weighting=ScoreWeights(norm="moe_normalize_expert_weights"),
        experts=("moe_num_experts", "ffn_config.moe_num_experts"),
        top_k=("moe_top_k", "top_k", "ffn_config.moe_top_k"),
    ),
    RouterAdapter(
        name="softmax before top-k, with a scale for each expert",
        sites=("Gemma4TextRouter", "DiffusionGemmaTextRouter"),
        forms=PROBABILITIES_TRIPLE,
    ),
    RouterAdapter(
        name="softmax with a bias for the selection",
        sites=(
            "Ernie4_5_MoeTopKRouter", "Ernie4_5_MoeSparseMoeBlock.gate",
        ),
        forms=TRIPLE | BARE | {"eif": Form(logits=0, ids=1, weights=2)},
        scoring=Scoring("softmax", has_bias=True),
        weighting=ScoreWeights(normalised=True, floor="moe_norm_min"),
    ),
    RouterAdapter(
        name="softmax with a bias for the selection, and experts that compute nothing",
        sites=("LongcatFlashTopkRouter",),
        forms=TRIPLE | IDS_WEIGHTS_INPUT | {"fif": Form(weights=0, ids=1, input=2)},
        scoring=Scoring("softmax", has_bias=True),
        linear=Linear("classifier.weight"),
        keeps_input=frozenset({2}),
        is_sorted=False,
    ),
    RouterAdapter(
        name="softmax with a bias for the selection, and a place for no expert",
        sites=("ZayaRouter",),
        # The returned ids say 0 for "no expert": those of the selection say E.
        forms={"efif": Form(logits=0, weights=1)},
        scoring=Scoring("softmax", has_bias=True),
        extra_experts=1,
    ),
)  # fmt: skip

_GROUPED: Final = (
    RouterAdapter(
        name="sigmoid with a bias for the selection, in groups",
        sites=(
            "AXK1TopkRouter", "AXK2TopkRouter", "BailingHybridTopkRouter", "BeamTopKRouter",
            "DeepseekV3TopkRouter", "DeepseekV32TopkRouter", "Dots1TopkRouter",
            "Dots3NoteTextTopkRouter", "ExaoneMoeTopkRouter", "Glm4MoeTopkRouter",
            "Glm4MoeLiteTopkRouter", "Glm4vMoeTextTopkRouter", "Glm5NextTextTopkRouter",
            "GlmMoeDsaTopkRouter", "HYV4TopkRouter", "HYV4VLTopkRouter", "KimiLinearTopkRouter",
            "MiMoV2FlashTopkRouter", "NemotronHTopkRouter", "SolarOpenTopkRouter",
        ),
        forms=TRIPLE | BARE | IDS_WEIGHTS_INPUT,
        scoring=Scoring("sigmoid", has_bias=True, groups=_TWO_BEST),
        weighting=_DEEPSEEK_WEIGHTS,
        keeps_input=frozenset({2}),
        is_sorted=False,
    ),
    RouterAdapter(
        name="softmax, in groups by their best expert",
        sites=(
            "DeepseekV2TopkRouter", "DeepseekV2MoEGate",
            "DeepseekOcr2TextTopkRouter", "UnlimitedOcrTextTopkRouter",
        ),
        forms=TRIPLE | IDS_WEIGHTS_INPUT,
        scoring=Scoring("softmax", groups=Groups("best", ("topk_method", "group_limited_greedy"))),
        keeps_input=frozenset({2}),
        is_sorted=False,
    ),
    RouterAdapter(
        name="softmax, in groups by their best expert, in a block that multiplies itself",
        # The block multiplies with its gate's weight and never calls it: the experts are hooked.
        sites=("DeepseekV2Moe.experts", "DeepseekOcr2TextMoe.experts"),
        only_where=("gate", "Linear"),
        forms={"fif": Form(input=0, ids=1, weights=2)},
        scoring=Scoring("softmax", groups=Groups("best", ("topk_method", "group_limited_greedy"))),
        linear=Linear("gate.weight"),
        captures="arguments",
        is_sorted=False,
    ),
    RouterAdapter(
        name="softmax, in groups by their two best experts",
        sites=("Mistral4TopkRouter", "MistralLarge4TextTopkRouter"),
        forms=TRIPLE | BARE,
        scoring=Scoring("softmax", groups=Groups("two_best")),
        weighting=_DEEPSEEK_WEIGHTS,
        is_sorted=False,
    ),
)  # fmt: skip

_SIGMOID: Final = (
    RouterAdapter(
        name="sigmoid with a bias for the selection",
        sites=(
            "AfmoeTokenChoiceRouter",
            "HYV3TopKRouter",
            "LagunaTopKRouter",
            "MiniMaxM2TopKRouter",
            "MiniMaxM3VLTopKRouter",
            "MuseSparkTopkRouter",
            "Step3p7TopKRouter",
            "Lfm2MoeTopKRouter",
            "Lfm2MoeSparseMoeBlock.gate",
        ),
        forms=TRIPLE | BARE,
        scoring=Scoring("sigmoid", has_bias=True),
        weighting=ScoreWeights(normalised="norm_topk_prob", plus=1e-6, scaled=SCALE),
        is_sorted=False,
    ),
    RouterAdapter(
        name="a score by setting, with a bias for the selection",
        # Not DeepseekV4HashRouter: its layers choose by token id, not by what a token means.
        sites=("DeepseekV4TopKRouter", "Inkling2TopKRouter"),
        scoring=Scoring("sigmoid", score_setting="scoring_func", has_bias=True),
        is_sorted=False,
    ),
    RouterAdapter(
        name="sigmoid with a bias for the selection, shared experts in the weights' sum",
        sites=("InklingTopkRouter",),
        forms={"efif": Form(logits=0, weights=1, ids=2)},
        scoring=Scoring("sigmoid", has_bias=True),
        is_sorted=False,
    ),
    RouterAdapter(
        name="sigmoid",
        sites=("FlintTopKRouter",),
        scoring=Scoring("sigmoid"),
    ),
    RouterAdapter(
        name="top-k of biased logits, then sigmoid",
        sites=("Kolibri1TopKRouter",),
        scoring=Scoring("sigmoid", selects="logit", has_bias=True),
    ),
    RouterAdapter(
        name="top-k of logits, then sigmoid",
        sites=("Llama4Router",),
        forms={"ee": Form(gates=0, logits=1)},
        scoring=Scoring("sigmoid", selects="logit"),
    ),
)

_TOPK_SOFTMAX: Final = (
    RouterAdapter(
        name="top-k of logits, then softmax",
        sites=(
            "AriaTextTopKRouter", "AriaTextMoELayer.router",
            "GraniteMoeTopKRouter", "GraniteMoeHybridTopKRouter", "GraniteMoeSharedTopKRouter",
            "GraniteMoeSWATopKRouter",
            "GraniteMoeTopKGating", "GraniteMoeHybridTopKGating", "GraniteMoeSharedTopKGating",
            # Not JetMoeMoA.router: experts of its attention are none of its feed-forward layers.
            "JetMoeMoE.router",
            "OpenAIPrivacyFilterTopKRouter",
        ),
        forms=TRIPLE | BARE | {"iife": Form(logits=3)},
        scoring=Scoring("softmax", selects="logit"),
        weighting=SoftmaxOfSelected(),
    ),
    RouterAdapter(
        name="top-k of logits, then softmax, scattered",
        sites=("GptOssTopKRouter",),
        forms=TRIPLE | {"eif": Form(gates=0, ids=1, input=2)},
        scoring=Scoring("softmax", selects="logit"),
        linear=Linear("weight", "bias", in_float32=False),
        keeps_input=frozenset({2}),
    ),
    RouterAdapter(
        name="top-k of logits, then a score by setting",
        sites=("Cohere2MoeTopKRouter",),
        scoring=Scoring("sigmoid", score_setting="expert_selection_fn", selects="logit"),
    ),
    RouterAdapter(
        name="sparsemixer",
        sites=("PhimoeTopKRouter", "PhimoeSparseMoeBlock.gate"),
        forms=TRIPLE | BARE,
        scoring=Scoring("softmax", selects="logit", kind=ScoreKind.SPARSEMIXER),
        weighting=SparseMixer(),
    ),
)  # fmt: skip

_WITH_CAPACITY: Final = (
    RouterAdapter(
        name="top-1 of softmax, with a capacity",
        sites=("SwitchTransformersTop1Router",),
        # In transformers 5.0 to 5.17 (weights, mask, weights), where the mask never drops.
        forms={
            "ifef": Form(kept=0, weights=1, logits=2),
            "fiff": Form(weights=0, kept=1, input=3),
        },
        linear=Linear("classifier.weight"),
        keeps_input=frozenset({3}),
        top_k=1,
    ),
    RouterAdapter(
        name="top-2 of softmax, with a capacity",
        sites=("NllbMoeTop2Router",),
        forms={"iee": Form(gates=1, logits=2), "ief": Form(gates=1, input=2)},
        linear=Linear("classifier.weight"),
        keeps_input=frozenset({2}),
        requires=(("second_expert_policy", ("all", "random")),),
        top_k=2,
        gates_tell_drops=True,
    ),
)

ADAPTERS: Final = (*_SOFTMAX, *_GROUPED, *_SIGMOID, *_TOPK_SOFTMAX, *_WITH_CAPACITY)

REFUSED: Final = {
    "DogeCDMoE": "Doge looks experts up by product keys: two halves of a key are routed, "
    "and no expert has a score of its own.",
    "Ernie4_5_VLMoeMoeTopKRouter": "Each layer has a router for text and one for images, which "
    "see different rows of one pass.",
    "Inkling2LoopTopKRouter": "Some layers run several times in one pass, so a layer has several "
    "routings for each row.",
    "VitPoseNaiveMoe": "VitPose chooses an expert by the data set's number, not by a router.",
    "Dots3NoteVisionTopKRouter": "Only the text tower's routers are read.",
}
"""Classes of routers that are known and not read, and why."""
