"""Every MoE family of transformers, and how each of them routes, in words.

The words (`Spec`) are read off the families' own sources; `family_oracle` computes with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Final

EXPERTS: Final = 8
TOP_K: Final = 3
SCALE: Final = 1.5

TINY: Final[dict[str, Any]] = {
    "vocab_size": 60, "hidden_size": 32, "d_model": 32, "head_dim": 16,
    "intermediate_size": 24, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "num_hidden_layers": 3, "n_layers": 3, "num_layers": 3,
    "num_attention_heads": 2, "n_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "max_seq_len": 64,
    "num_experts": EXPERTS, "num_local_experts": EXPERTS, "n_routed_experts": EXPERTS,
    "moe_num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K, "moe_topk": TOP_K, "moe_k": TOP_K, "moe_top_k": TOP_K,
    "top_k_experts": TOP_K,
    "n_group": 4, "topk_group": 2,
    "n_shared_experts": 1, "num_shared_experts": 1, "moe_num_shared_experts": 1,
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "qk_head_dim": 16,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2,
    "chunk_size": 16, "vocab_size_per_layer_input": 60, "hidden_size_per_layer_input": 8,
    "linear_head_dim": 16, "linear_num_heads": 2, "linear_num_key_heads": 2,
    "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "first_k_dense_replace": 1, "routed_scaling_factor": SCALE, "norm_topk_prob": True,
    "pad_token_id": 0, "eos_token_id": None, "bos_token_id": 1,
}  # fmt: skip
"""Set where a family's configuration has such an attribute."""


@dataclass(frozen=True)
class Spec:
    """How a family routes.

    Attributes:
        score: softmax, sigmoid or sqrtsoftplus.
        on_logits: Top-k looks at logits, not at scores.
        biased: Names of the tensor that is added for the selection; empty if there is none.
        groups: best, two_best, or empty.
        fill: Selection score of experts outside of the chosen groups; in transformers 4 it is 0.
        weights: normalised, plain, selected_softmax, sparsemixer or as_received.
        scale: What weights are multiplied with.
        kind: Name of the score kind.
        multiplier: What logits are multiplied with before.
        softcap: Logits are squeezed into ± this by tanh before.
    """

    kind: str
    score: str = "softmax"
    on_logits: bool = False
    biased: str = ""
    groups: str = ""
    fill: float = -math.inf
    weights: str = "normalised"
    scale: float = 1.0
    multiplier: float = 1.0
    softcap: float = 0.0


@dataclass(frozen=True)
class Family:
    """One MoE family.

    Attributes:
        model_class: Name in its modeling module.
        spec: How it routes.
        layers: Decoder layers with experts.
        config: Settings besides `TINY`.
        config_before_5: More of them, for transformers 4.
        logits_from: Submodule of the router whose output are the logits; empty if they are the
            product of the router's input and its weight.
        top_k: k.
        experts: E.
        broken: From which version of transformers on to which its own forward fails.
        last_is_none: The last expert id says that no expert computes the row; the experts are
            called with expert 0 then, and weight 0.
        executes_something_else: In transformers 5 the experts compute other rows than the router
            chose: a fault of the family's code, not of its routing.
        left_out: What of the family is not recorded, and why.
        takes_embeddings: It takes embeddings, no token ids.
        forgets_experts: It leaves its experts' weights as memory has them.
    """

    model_class: str
    spec: Spec
    layers: tuple[int, ...] = (0, 1, 2)
    config: dict[str, Any] = field(default_factory=dict)
    config_before_5: dict[str, Any] = field(default_factory=dict)
    logits_from: str = ""
    top_k: int = TOP_K
    experts: int = EXPERTS
    broken: tuple[str, str] | None = None
    last_is_none: bool = False
    executes_something_else: bool = False
    left_out: tuple[str, str] | None = None
    takes_embeddings: bool = False
    forgets_experts: bool = False


SOFTMAX: Final = Spec("SOFTMAX")
PLAIN_SOFTMAX: Final = Spec("SOFTMAX", weights="plain")
TOPK_SOFTMAX: Final = Spec("TOPK_SOFTMAX", on_logits=True, weights="selected_softmax")
BIAS: Final = "e_score_correction_bias"
GROUPED: Final = Spec("GROUPED", "sigmoid", biased=BIAS, groups="two_best", scale=SCALE)
SIGMOID: Final = Spec("SIGMOID", "sigmoid", biased=BIAS)
BEHIND_DENSE: Final = (1, 2)
LAYER_TYPES: Final = ["dense", "sparse", "sparse"]

DBRX_EXPERTS: Final = {
    "moe_num_experts": EXPERTS, "moe_top_k": TOP_K, "ffn_hidden_size": 32,
    "moe_normalize_expert_weights": 1.0,
}  # fmt: skip
DBRX_ATTENTION: Final = {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}

FAMILIES: Final[dict[str, Family]] = {
    # By model folder; behind a comma, another setting of the same.
    "afmoe": Family(
        "AfmoeForCausalLM",
        Spec("SIGMOID", "sigmoid", biased="expert_bias", scale=SCALE),
        BEHIND_DENSE,
        {"num_dense_layers": 1, "route_scale": SCALE},
    ),
    "aria": Family("AriaTextForCausalLM", TOPK_SOFTMAX),
    "axk1": Family("AXK1ForCausalLM", GROUPED, BEHIND_DENSE),
    "axk2": Family("AXK2ForCausalLM", replace(GROUPED, fill=0.0), BEHIND_DENSE),
    "bailing_hybrid": Family("BailingHybridForCausalLM", GROUPED, BEHIND_DENSE),
    "beam": Family(
        "BeamForCausalLM",
        Spec("GROUPED", "sigmoid", biased=BIAS, groups="two_best"),
        BEHIND_DENSE,
        {"mlp_layer_types": LAYER_TYPES},
    ),
    "cohere2_moe": Family(
        "Cohere2MoeForCausalLM",
        Spec("SIGMOID", "sigmoid", on_logits=True),
        config={"expert_selection_fn": "sigmoid"},
    ),
    "cohere2_moe, softmax": Family(
        "Cohere2MoeForCausalLM", TOPK_SOFTMAX, config={"expert_selection_fn": "softmax"}
    ),
    "dbrx": Family(
        "DbrxForCausalLM",
        SOFTMAX,
        config={
            "ffn_config": DBRX_EXPERTS | {"hidden_size": 32},
            "attn_config": DBRX_ATTENTION,
        },
        config_before_5={"ffn_config": DBRX_EXPERTS},
    ),
    "deepseek_ocr2": Family(
        "DeepseekOcr2TextModel",
        Spec("SOFTMAX", weights="plain", scale=SCALE),
        BEHIND_DENSE,
        {"mlp_layer_types": LAYER_TYPES},
    ),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM",
        Spec("SOFTMAX", weights="plain", scale=SCALE),
        BEHIND_DENSE,
        {"topk_method": "greedy"},
    ),
    "deepseek_v2, group-limited": Family(
        "DeepseekV2ForCausalLM",
        Spec("GROUPED", groups="best", weights="plain", scale=SCALE),
        BEHIND_DENSE,
        {"topk_method": "group_limited_greedy"},
        # Its block asks itself for a number of experts that it does not have.
        broken=("5.0", "5.18"),
    ),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", GROUPED, BEHIND_DENSE),
    "deepseek_v3, one group": Family(
        "DeepseekV3ForCausalLM",
        Spec("SIGMOID", "sigmoid", biased=BIAS, weights="plain", scale=SCALE),
        BEHIND_DENSE,
        {"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    ),
    "deepseek_v32": Family("DeepseekV32ForCausalLM", GROUPED, BEHIND_DENSE),
    "deepseek_v4": Family(
        "DeepseekV4ForCausalLM",
        Spec("SIGMOID", "sqrtsoftplus", biased=BIAS, scale=SCALE),
        BEHIND_DENSE,
        {"mlp_layer_types": ["hash_moe", "moe", "moe"]},
        left_out=(
            "layers that choose by token id",
            "left out: the choice says nothing of what a token means",
        ),
    ),
    "diffusion_gemma": Family(
        "DiffusionGemmaEncoderTextModel",
        Spec("SOFTMAX", weights="as_received"),
        config={"num_global_key_value_heads": 2},
        logits_from="proj",
    ),
    "dots1": Family("Dots1ForCausalLM", GROUPED, BEHIND_DENSE),
    "dots3_note": Family(
        "Dots3NoteTextModel",
        GROUPED,
        BEHIND_DENSE,
        left_out=("its vision tower", "left out: only the text tower's routers are read"),
    ),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        Spec("SOFTMAX", biased=BIAS),
        BEHIND_DENSE,
        {"moe_layer_start_index": 1, "moe_layer_end_index": 2, "moe_layer_interval": 1},
    ),
    "exaone_moe": Family("ExaoneMoeForCausalLM", GROUPED, BEHIND_DENSE),
    "flex_olmo": Family("FlexOlmoForCausalLM", PLAIN_SOFTMAX, config={"norm_topk_prob": False}),
    "flint": Family("FlintForCausalLM", Spec("SIGMOID", "sigmoid"), (2,)),
    "gemma4": Family(
        "Gemma4ForCausalLM",
        Spec("SOFTMAX", weights="as_received"),
        config={"enable_moe_block": True},
        logits_from="proj",
    ),
    "glm4_moe": Family("Glm4MoeForCausalLM", GROUPED, BEHIND_DENSE),
    "glm4_moe_lite": Family("Glm4MoeLiteForCausalLM", GROUPED, BEHIND_DENSE),
    "glm4v_moe": Family(
        "Glm4vMoeTextModel",
        GROUPED,
        BEHIND_DENSE,
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            }
        },
        {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}},
    ),
    "glm5_next": Family(
        "Glm5NextTextModel",
        GROUPED,
        BEHIND_DENSE,
        {"mlp_layer_types": LAYER_TYPES, "qk_rope_head_dim": 0},
    ),
    "glm_moe_dsa": Family(
        "GlmMoeDsaForCausalLM", GROUPED, BEHIND_DENSE, {"mlp_layer_types": LAYER_TYPES}
    ),
    "gpt_oss": Family("GptOssForCausalLM", TOPK_SOFTMAX),
    "granitemoe": Family("GraniteMoeForCausalLM", TOPK_SOFTMAX),
    "granitemoe_swa": Family("GraniteMoeSWAForCausalLM", TOPK_SOFTMAX),
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        TOPK_SOFTMAX,
        config={
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 8,
            "layer_types": ["mamba", "attention", "mamba"],
        },
    ),
    "granitemoeshared": Family("GraniteMoeSharedForCausalLM", TOPK_SOFTMAX),
    "hunyuan_v1_moe": Family("HunYuanMoEV1ForCausalLM", SOFTMAX),
    "hy_v3": Family(
        "HYV3ForCausalLM",
        Spec("SIGMOID", "sigmoid", biased=BIAS, scale=SCALE),
        BEHIND_DENSE,
        {"router_scaling_factor": SCALE},
    ),
    "hy_v4": Family("HYV4ForCausalLM", GROUPED, BEHIND_DENSE),
    "hy_v4_vl": Family(
        "HYV4VLTextModel",
        GROUPED,
        BEHIND_DENSE,
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [2, 1, 1],
            }
        },
    ),
    "inkling": Family(
        "InklingForCausalLM", Spec("SIGMOID", "sigmoid", biased=BIAS, weights="as_received")
    ),
    "inkling2": Family("Inkling2ForCausalLM", Spec("SIGMOID", "sigmoid", biased=BIAS, scale=SCALE)),
    "jamba": Family(
        "JambaForCausalLM", PLAIN_SOFTMAX, (1,), config_before_5={"use_mamba_kernels": False}
    ),
    "jetmoe": Family(
        "JetMoeForCausalLM",
        TOPK_SOFTMAX,
        config_before_5={"num_attention_heads": 6, "kv_channels": 16},
        left_out=("experts of its attention", "left out: they are of no feed-forward layer"),
    ),
    "kimi_linear": Family("KimiLinearForCausalLM", GROUPED, BEHIND_DENSE),
    "kolibri1": Family(
        "Kolibri1ForCausalLM", Spec("SIGMOID", "sigmoid", on_logits=True, biased=BIAS)
    ),
    "laguna": Family(
        "LagunaForCausalLM",
        replace(SIGMOID, softcap=2.0),
        BEHIND_DENSE,
        {"moe_router_logit_softcapping": 2.0},
    ),
    "lara_mini": Family("LaraMiniForCausalLM", SOFTMAX),
    "lfm2_moe": Family(
        "Lfm2MoeForCausalLM",
        Spec("SIGMOID", "sigmoid", biased="expert_bias", scale=SCALE),
        BEHIND_DENSE,
        {
            "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention", "conv"],
            "use_expert_bias": True,
        },
    ),
    "llama4": Family(
        "Llama4ForCausalLM",
        Spec("SIGMOID", "sigmoid", on_logits=True, weights="plain"),
        (1,),
        {"interleave_moe_layer_step": 2, "moe_layers": [1], "intermediate_size_mlp": 24},
    ),
    "longcat_flash": Family(
        "LongcatFlashForCausalLM",
        Spec("SOFTMAX", biased=BIAS, weights="plain", scale=SCALE),
        config={
            "num_hidden_layers": 6,
            "zero_expert_num": 2,
            "expert_ffn_hidden_size": 16,
            "ffn_hidden_size": 24,
        },
        experts=EXPERTS + 2,
    ),
    "mellum": Family("MellumForCausalLM", SOFTMAX),
    "mimo_v2_flash": Family(
        "MiMoV2FlashForCausalLM",
        GROUPED,
        BEHIND_DENSE,
        {"head_dim": 24, "num_key_value_heads": 1},
    ),
    "minimax": Family("MiniMaxForCausalLM", SOFTMAX),
    "minimax_m2": Family("MiniMaxM2ForCausalLM", SIGMOID),
    "minimax_m3_vl": Family("MiniMaxM3VLForCausalLM", SIGMOID),
    "mistral4": Family(
        "Mistral4ForCausalLM",
        Spec("GROUPED", groups="two_best", scale=SCALE),
        BEHIND_DENSE,
        {"head_dim": 16},
    ),
    "mistral_large4": Family(
        "MistralLarge4TextModel", Spec("GROUPED", groups="two_best", scale=SCALE), BEHIND_DENSE
    ),
    "mixtral": Family("MixtralForCausalLM", SOFTMAX),
    "muse_spark": Family(
        "MuseSparkTextModel",
        Spec("SIGMOID", "sigmoid", biased=BIAS, scale=SCALE, multiplier=0.5),
        config={"output_multiplier": 0.5},
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        GROUPED,
        (1,),
    ),
    "nllb_moe": Family(
        "NllbMoeModel",
        SOFTMAX,
        (1,),
        {
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_sparse_step": 2,
            "decoder_sparse_step": 2,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "expert_capacity": 4,
        },
        executes_something_else=True,
        top_k=2,
    ),
    "olmoe": Family("OlmoeForCausalLM", PLAIN_SOFTMAX, config={"norm_topk_prob": False}),
    "openai_privacy_filter": Family(
        "OpenAIPrivacyFilterModel",
        Spec("TOPK_SOFTMAX", on_logits=True, weights="selected_softmax", scale=1 / TOP_K),
    ),
    "phimoe": Family(
        "PhimoeForCausalLM",
        Spec("SPARSEMIXER", on_logits=True, weights="sparsemixer"),
        config={"num_experts_per_tok": 2, "router_jitter_noise": 0.1},
        top_k=2,
    ),
    "qwen2_moe": Family("Qwen2MoeForCausalLM", PLAIN_SOFTMAX, config={"norm_topk_prob": False}),
    "qwen3_5_moe": Family("Qwen3_5MoeForCausalLM", SOFTMAX),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", SOFTMAX),
    "qwen3_moe, not renormalised": Family(
        "Qwen3MoeForCausalLM", PLAIN_SOFTMAX, config={"norm_topk_prob": False}
    ),
    "qwen3_next": Family("Qwen3NextForCausalLM", SOFTMAX),
    "qwen3_omni_moe": Family(
        "Qwen3OmniMoeThinkerTextModel",
        SOFTMAX,
        config_before_5={"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
    ),
    "qwen3_omni_moe, talker": Family(
        "Qwen3OmniMoeTalkerModel",
        SOFTMAX,
        config={"shared_expert_intermediate_size": 16},
        config_before_5={"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
        takes_embeddings=True,
        forgets_experts=True,
    ),
    "qwen3_vl_moe": Family(
        "Qwen3VLMoeTextModel",
        SOFTMAX,
        config_before_5={"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
    ),
    "qwen4_exp": Family("Qwen4ExpForCausalLM", SOFTMAX),
    "solar_open": Family("SolarOpenForCausalLM", GROUPED),
    "step3p7": Family(
        "Step3p7TextModel",
        SIGMOID,
        BEHIND_DENSE,
        {"mlp_layer_types": LAYER_TYPES, "sliding_window": 8},
    ),
    "switch_transformers": Family(
        "SwitchTransformersModel",
        Spec("SOFTMAX", weights="plain"),
        (1,),
        {
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "d_kv": 16,
            "d_ff": 24,
            "num_heads": 2,
            "expert_capacity": 2,
        },
        top_k=1,
    ),
    "unlimited_ocr": Family(
        "UnlimitedOcrTextModel", Spec("SOFTMAX", weights="plain", scale=SCALE), BEHIND_DENSE
    ),
    "zaya": Family(
        "ZayaForCausalLM",
        Spec("SOFTMAX", biased="balancing_biases", weights="plain"),
        config={"num_experts_per_tok": 1},
        logits_from="router_mlp",
        top_k=1,
        last_is_none=True,
        experts=EXPERTS + 1,
    ),
}

NOT_READ: Final = {
    "doge": "experts are looked up by product keys: no expert has a score of its own",
    "ernie4_5_vl_moe": "each layer has a router for text and one for images, each for some rows",
    "inkling2_loop": "layers run several times in a pass: several routings for each row",
    "vitpose_backbone": "an expert is chosen by the data set's number, not by a router",
}
"""Families that the probe refuses, and why."""
