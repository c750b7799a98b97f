"""The known faults of routing telemetry, what moescope does with each, and the tests that show it.

Declared here once. The page about them is written by
`PYTHONPATH=tests python -m support.known_faults`, and held to this list by a test.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "known-faults.md"


class Verdict(StrEnum):
    """What moescope does with a fault."""

    PREVENTED = "prevented"
    FLAGGED = "flagged"
    NOT_VISIBLE = "not visible"


class KnownFault(NamedTuple):
    """One fault that was reported of an engine or a library.

    Attributes:
        number: Its place in the list.
        happened: What happened elsewhere.
        reports: Project and number of the reports.
        effect: What it does to routing telemetry that believes it.
        verdict: What moescope does, in a word.
        answer: What moescope does, in a sentence.
        tests: Where that is shown, as `file::function`.
    """

    number: int
    happened: str
    reports: tuple[str, ...]
    effect: str
    verdict: Verdict
    answer: str
    tests: tuple[str, ...]


_BUFFERS = "tests/integration/test_known_faults_buffers.py"
_COUNTING = "tests/integration/test_known_faults_counting.py"
_ROUTING = "tests/integration/test_known_faults_routing.py"
_STEP = "tests/unit/test_vllm_step.py"
_RETURNED = "tests/unit/test_returned_routes.py"
_ROUTES = "tests/unit/test_importer_vllm_routes.py"
_META = "tests/unit/test_importer_sglang_meta.py"
_RECORDS = "tests/unit/test_importer_sglang_records.py"
_TRACE = "tests/unit/test_importer_megatron_trace.py"
_COUNTS = "tests/unit/test_importer_megatron_counts.py"
_GATES = "tests/unit/test_ingest_gates.py"
_SERVER = "tests/engines/vllm/test_plugin_server.py"
_PASSES = "tests/engines/vllm/test_plugin_passes.py"
_PROBE = "tests/engines/torch/test_torch_probe.py"
_FAMILIES = "tests/engines/families/test_router_families.py"

KNOWN_FAULTS = (
    KnownFault(
        1,
        "A fused kernel routes by itself and bypasses the hook: right shape, all zeros.",
        ("vLLM #44116", "vLLM #54730"),
        "All load seems to be on expert 0.",
        Verdict.FLAGGED,
        "Fewer than k distinct ids are suspicious and count nowhere; the plugin refuses such "
        "kernels by name, and their rows lower coverage.",
        (
            f"{_BUFFERS}::test_zeros_of_the_right_shape_count_nowhere",
            f"{_BUFFERS}::test_rows_that_a_probe_refuses_lower_coverage",
            f"{_STEP}::test_layers_that_say_nothing_are_told_from_layers_that_do",
            f"{_PASSES}::test_a_refused_model_is_counted_pass_by_pass",
        ),
    ),
    KnownFault(
        2,
        "Returned routes are zeros, without an error.",
        ("vllm-ascend #16314",),
        "As above, in responses and in files.",
        Verdict.FLAGGED,
        "Responses of zeros are missed with a reason, imports of zeros are refused; layers that "
        "are named all the same are suspicious, and count nowhere.",
        (
            f"{_RETURNED}::test_zeros_are_missed_and_never_counted",
            f"{_ROUTES}::test_all_zero_routes_are_an_error_unless_layers_are_named",
            (
                "tests/integration/test_vllm_zero_routes.py"
                "::test_zero_routes_of_named_layers_are_flagged_and_count_nowhere"
            ),
            f"{_META}::test_zeros_and_stuck_rows_are_suspicious",
        ),
    ),
    KnownFault(
        3,
        "Asking a dense model for routes crashes the engine after it has loaded.",
        ("vLLM #42593",),
        "Watching costs the service.",
        Verdict.PREVENTED,
        "Without MoE layers there is no recorder: the plugin does nothing, and a recorder or a "
        "probe of one's own is an error at the start.",
        (
            f"{_ROUTING}::test_a_dense_model_is_refused_before_anything_is_served",
            f"{_SERVER}::test_a_dense_model_is_served_as_if_the_plugin_were_not_there",
            f"{_FAMILIES}::test_a_dense_model_is_refused",
        ),
    ),
    KnownFault(
        4,
        "Under pipeline parallelism the early stages' routes are lost; the last rank overwrites "
        "them with zeros.",
        ("vLLM #35623",),
        "Early layers seem to use expert 0 only.",
        Verdict.PREVENTED,
        "Each stage records its own layers: those of a lost stage are absent; zeros that come all "
        "the same are suspicious.",
        (
            f"{_BUFFERS}::test_pipeline_stages_record_their_own_layers_only",
            f"{_BUFFERS}::test_zeros_of_lost_pipeline_stages_are_flagged",
            f"{_TRACE}::test_incomplete_micro_batches_are_rejected",
        ),
    ),
    KnownFault(
        5,
        "The routes of a draft model overwrite layer 0 of the target.",
        ("vLLM #48622", "SGLang #26980"),
        "Layer 0 shows another model's routing, with ids that are sound.",
        Verdict.NOT_VISIBLE,
        "Drafts that are told as drafts never count, and the plugin hooks routers, not a shared "
        "buffer; an engine's overwritten layer is not marked, but comparing it with what was "
        "executed names the layer.",
        (
            f"{_BUFFERS}::test_a_sound_layer_written_by_the_draft_model_is_not_visible",
            f"{_ROUTING}::test_an_overwritten_layer_shows_beside_what_was_executed",
            f"{_BUFFERS}::test_drafts_that_are_told_as_drafts_count_nowhere",
            f"{_SERVER}::test_rejected_drafts_are_labelled_and_accepted_ones_count",
            f"{_TRACE}::test_prediction_heads_are_drafts_beside_the_decoder",
        ),
    ),
    KnownFault(
        6,
        "Rows that fill up a CUDA graph or a data-parallel batch are counted.",
        ("vLLM #38128",),
        "The load of experts that padding happens to choose.",
        Verdict.PREVENTED,
        "The plugin cuts a pass to its scheduled rows and asserts their number; rows flagged as "
        "padding are accounted for, and in no window.",
        (
            f"{_COUNTING}::test_padding_counts_nowhere_on_either_side",
            f"{_STEP}::test_rows_must_be_those_that_were_scheduled",
            f"{_RECORDS}::test_padding_drafts_and_idle_passes",
        ),
    ),
    KnownFault(
        7,
        "Naive data parallelism routes every rank's rows everywhere, and counts them as often.",
        ("vLLM #22167",),
        "Volumes are multiplied by the number of ranks.",
        Verdict.FLAGGED,
        "The plugin cuts a rank's rows to its own; where two producers record one request all "
        "the same, its token windows stay single, and what repeats is counted as duplicates. "
        "Time windows over all nodes then hold both: shares stay, volumes do not.",
        (
            f"{_STEP}::test_rows_of_all_data_parallel_ranks_are_cut_to_the_own_ones",
            f"{_COUNTING}::test_a_request_recorded_by_two_ranks_is_told",
            f"{_COUNTING}::test_ranks_of_different_requests_add_up",
            f"{_RECORDS}::test_a_rank_that_repeats_another_is_left_out",
        ),
    ),
    KnownFault(
        8,
        "A rank counts the experts that it owns, and nothing of the others.",
        ("vLLM #21883",),
        "Other ranks' experts seem to be dead.",
        Verdict.FLAGGED,
        "Counts that are not tokens × k are suspicious and count nowhere; imports ask for all "
        "ranks of a group.",
        (
            f"{_COUNTING}::test_counts_that_are_not_tokens_times_k_count_nowhere",
            f"{_GATES}::test_counts_that_do_not_add_up_are_kept_out",
            f"{_COUNTS}::test_experts_of_absent_ranks_are_never_taken_for_dead_ones",
            f"{_RECORDS}::test_counts_of_ranks_are_added_up_by_pass",
        ),
    ),
    KnownFault(
        9,
        "Balance is computed along the wrong axis.",
        ("vLLM #39178",),
        "Uneven layers that differ look even together.",
        Verdict.PREVENTED,
        "Every metric is of one layer, over its experts or its ranks; tests compute it by hand.",
        (
            f"{_COUNTING}::test_balance_is_of_one_layer_over_its_experts_and_ranks",
            (
                "tests/integration/test_store_placements.py"
                "::test_windows_take_the_placement_in_force_at_their_end"
            ),
        ),
    ),
    KnownFault(
        10,
        "The capture buffer is smaller than a pass.",
        ("vLLM #40692", "vLLM #35744"),
        "Rows are missing, or the engine fails.",
        Verdict.FLAGGED,
        "A pass that was not seen as it was is refused whole and its rows are unseen: coverage "
        "falls in the second in which they were computed, with the reason.",
        (
            f"{_BUFFERS}::test_rows_beyond_a_buffer_are_unseen_not_zero",
            f"{_PASSES}::test_passes_that_were_not_seen_as_they_were_are_refused",
        ),
    ),
    KnownFault(
        11,
        "Under load balancing ids name physical replicas.",
        ("vLLM #33013",),
        "Replicas are taken for experts, and numbers change their meaning.",
        Verdict.FLAGGED,
        "The header says which ids a batch holds; physical ones are accounted for and form no "
        "window. Imports map them where the placement is known.",
        (
            f"{_COUNTING}::test_physical_experts_are_never_taken_for_logical_ones",
            f"{_GATES}::test_physical_ids_are_not_counted_as_experts",
            f"{_RECORDS}::test_physical_ids_are_mapped_or_left_and_named",
        ),
    ),
    KnownFault(
        12,
        "The number of experts has another name in a model's configuration.",
        ("vLLM #41401",),
        "A wrong E: experts seem to be missing, or the engine fails.",
        Verdict.PREVENTED,
        "Shapes are read from the routers themselves, not from a configuration; ids beyond a "
        "recorder's E are rejected and counted.",
        (
            f"{_FAMILIES}::test_every_family_of_this_version_is_read_or_refused_with_a_reason",
            f"{_PASSES}::test_a_models_routing_is_read_from_its_layers",
            f"{_ROUTING}::test_experts_under_another_name_are_noticed",
        ),
    ),
    KnownFault(
        13,
        "The whole prefix's routes are returned again with each turn.",
        ("vLLM #56402",),
        "Early tokens count many times, and each response costs more.",
        Verdict.PREVENTED,
        "A pass records its own rows only; positions that come again are flagged as recomputed, "
        "and returned prefixes are left out.",
        (
            f"{_COUNTING}::test_a_prefix_that_is_returned_again_counts_once",
            f"{_RETURNED}::test_turns_of_a_conversation_are_recorded_once",
            f"{_SERVER}::test_every_computed_token_is_recorded_once",
        ),
    ),
    KnownFault(
        14,
        "A slot of the buffer holds the row of an earlier token.",
        ("vLLM #39568",),
        "Routes of tokens that were not computed.",
        Verdict.NOT_VISIBLE,
        "Slots marked as unknown are left out and counted, and a slot that is never written again "
        "is flagged from the 33rd row on; a single stale row is a sound route, and not visible.",
        (
            f"{_BUFFERS}::test_the_routes_of_another_token_look_like_any_others",
            f"{_BUFFERS}::test_slots_marked_as_unknown_are_left_out_and_counted",
            f"{_BUFFERS}::test_a_slot_that_is_never_written_again_is_flagged",
            f"{_RETURNED}::test_unknown_ids_and_rows_of_last_tokens_are_left_out",
        ),
    ),
    KnownFault(
        15,
        "Batches of more than 32 tokens are not recorded by some kernels.",
        ("SGLang #12823",),
        "The busiest passes are missing, silently.",
        Verdict.FLAGGED,
        "Rows that a probe misses lower coverage, and holes in positions make token windows "
        "partial: both are insufficient, not healthy.",
        (
            f"{_BUFFERS}::test_positions_that_nobody_recorded_make_windows_partial",
            f"{_BUFFERS}::test_rows_that_a_probe_refuses_lower_coverage",
            f"{_RECORDS}::test_rows_without_all_ids_are_left_out_and_counted",
        ),
    ),
    KnownFault(
        16,
        "Routes per token are kept in a list until memory is full.",
        ("SGLang #18587",),
        "Watching costs the service.",
        Verdict.PREVENTED,
        "The ring is allocated at the start and never grows; rows that nobody fetched in time "
        "are overwritten and counted one by one.",
        (
            f"{_BUFFERS}::test_memory_stays_bounded_and_what_it_costs_is_counted",
            (
                "tests/unit/test_recorder_calls.py"
                "::test_requests_that_never_end_are_forgotten_oldest_first"
            ),
        ),
    ),
    KnownFault(
        17,
        "Metrics together with speculative decoding crash the engine again and again.",
        ("SGLang #32105",),
        "Watching costs the service.",
        Verdict.PREVENTED,
        "No call of a recorder or a probe raises into the engine; after eight errors of its own "
        "it is off, with one line in the log.",
        (
            f"{_ROUTING}::test_metrics_with_drafts_never_reach_the_engine",
            "tests/unit/test_recorder_calls.py::test_repeated_internal_errors_switch_recording_off",
            f"{_PASSES}::test_repeated_errors_switch_the_probe_off_and_nothing_else",
        ),
    ),
    KnownFault(
        18,
        "A prefill of 8,192 tokens in one pass does not fit the capture's cache, and the "
        "scheduler crashes.",
        ("SGLang #26860",),
        "Long prompts are missing, and so is the engine.",
        Verdict.PREVENTED,
        "A pass of any length is cut into frames and arrives whole.",
        (
            f"{_COUNTING}::test_a_long_prompt_arrives_whole",
            "tests/unit/test_recorder_calls.py::test_long_calls_are_cut_into_short_frames",
        ),
    ),
    KnownFault(
        19,
        "A response of N tokens has N or N − 1 rows.",
        ("SGLang #20964",),
        "A row too many shifts positions, or a hole seems to be there.",
        Verdict.PREVENTED,
        "The last token is never computed: it has no row, is not missed, and a row for it is left "
        "out and counted.",
        (
            f"{_COUNTING}::test_the_last_token_is_never_computed_and_never_missed",
            f"{_META}::test_a_row_for_the_last_token_is_left_out_and_counted",
            f"{_ROUTES}::test_a_row_for_the_last_token_is_left_out",
        ),
    ),
    KnownFault(
        20,
        "Recording is restarted in the middle of a window.",
        ("SGLang #30712",),
        "A window is lost or counted twice.",
        Verdict.PREVENTED,
        "Batches are numbered by incarnation, and what is open is rebuilt: each row is in its "
        "window once; windows that an engine left open are partial.",
        (
            f"{_COUNTING}::test_restarts_within_a_window_neither_lose_nor_double",
            f"{_COUNTING}::test_a_processor_restarted_within_a_window_counts_the_same",
            f"{_COUNTS}::test_damaged_lines_are_rejected_alone",
        ),
    ),
    KnownFault(
        21,
        "Every layer's counts land in layer 0, the others stay zero.",
        ("kvcache-ai/SGLang #45",),
        "Layer 0 is a mixture, the others seem to be dead.",
        Verdict.FLAGGED,
        "Counts that are not tokens × k, and layers of zeros, are suspicious and count nowhere; of "
        "ids per token the first layer alone looks sound.",
        (
            f"{_BUFFERS}::test_everything_in_the_first_layer_is_flagged_elsewhere",
            f"{_COUNTING}::test_counts_that_are_not_tokens_times_k_count_nowhere",
        ),
    ),
    KnownFault(
        22,
        "Tokens that are computed again get new routes beside the old text.",
        ("miles #3277",),
        "One token has two routes.",
        Verdict.PREVENTED,
        "The first attempt wins: what is computed again is flagged and never counts.",
        (
            f"{_COUNTING}::test_what_is_computed_again_with_other_routes_does_not_count",
            f"{_SERVER}::test_preempted_requests_keep_their_first_attempt",
            (
                "tests/unit/test_comparison_report.py"
                "::test_pairs_by_request_with_other_tokens_are_left_out"
            ),
        ),
    ),
    KnownFault(
        23,
        "Ids of 512 experts overflow a byte.",
        ("prime-rl #3051",),
        "Half of the experts seem to be dead, and the other half twice as busy.",
        Verdict.PREVENTED,
        "Ids have 16 bits from the ring to the store; returned routes and imports of one byte "
        "are refused where experts do not fit. A recorder rejects ids of a type that cannot name "
        "every expert, and counts their rows.",
        (
            f"{_BUFFERS}::test_ids_beyond_a_byte_arrive_whole",
            f"{_BUFFERS}::test_ids_of_a_byte_are_rejected_where_experts_do_not_fit",
            f"{_RETURNED}::test_ids_of_one_byte_cannot_name_five_hundred_experts",
            f"{_ROUTES}::test_ids_of_one_byte_cannot_name_five_hundred_experts",
            f"{_META}::test_ids_of_one_byte_cannot_name_five_hundred_experts",
        ),
    ),
    KnownFault(
        24,
        "There are more or fewer routes than tokens.",
        ("ms-swift #9799",),
        "Routes belong to other tokens than they seem to.",
        Verdict.PREVENTED,
        "A call, a response or a line whose lengths differ is rejected whole and counted; the "
        "rows beside it are not shifted.",
        (
            f"{_ROUTING}::test_calls_that_do_not_fit_are_counted_and_cost_nothing_else",
            f"{_ROUTES}::test_contradictions_are_rejected",
            f"{_META}::test_damaged_responses_are_rejected_alone",
            f"{_RECORDS}::test_impossible_passes_are_rejected_alone",
        ),
    ),
    KnownFault(
        25,
        "Idle ranks report NaN, and idle spells a flat line.",
        ("vllm-ascend #12154", "vllm-ascend #12157"),
        "No traffic looks like perfect health, or like a fault.",
        Verdict.PREVENTED,
        "A second without a row has no window; no stored value is NaN, and what has no value is "
        "null and insufficient.",
        (
            f"{_ROUTING}::test_an_idle_engine_is_no_data",
            f"{_ROUTING}::test_an_engine_that_never_served_has_no_window",
            "tests/unit/test_metric_arithmetic.py::test_a_window_without_assignments_is_null",
        ),
    ),
    KnownFault(
        26,
        "Rows of warm-up passes are counted.",
        ("vLLM #56716", "vLLM #57151"),
        "Thousands of equal rows make healthy routing look uneven.",
        Verdict.PREVENTED,
        "Warm-up passes are not recorded, and rows of the phase `warmup` are in no window; those "
        "that nobody labelled are flagged from the 33rd equal row on.",
        (
            f"{_COUNTING}::test_warm_up_that_is_told_counts_nowhere",
            f"{_COUNTING}::test_warm_up_that_is_not_told_is_flagged",
            f"{_PASSES}::test_passes_of_warm_up_are_not_seen",
            f"{_SERVER}::test_headers_say_what_was_served",
        ),
    ),
    KnownFault(
        27,
        "A kernel mis-routes tokens whose logits are all negative.",
        ("flashinfer #2822", "vLLM #37605"),
        "Routing changes silently: sound ids, the same revision.",
        Verdict.NOT_VISIBLE,
        "No row tells it, and none is marked; but a layer that leaves its own past has a larger "
        "distance from it, which calibrated thresholds judge.",
        (f"{_ROUTING}::test_a_silent_change_of_routing_moves_its_distance",),
    ),
    KnownFault(
        28,
        "Padding tokens of a batch are in the statistics.",
        ("Megatron-LM #1984", "transformers #28505"),
        "The experts that padding prefers seem to be hot.",
        Verdict.PREVENTED,
        "The probe leaves out padding on either side and rows behind the end token; imported "
        "counts that padding changed are suspicious where the tokens are known.",
        (
            f"{_COUNTING}::test_padding_counts_nowhere_on_either_side",
            f"{_PROBE}::test_padding_is_left_out",
            f"{_PROBE}::test_rows_behind_the_end_token_are_left_out",
            f"{_COUNTS}::test_counts_that_do_not_add_up_are_rejected_or_suspicious",
        ),
    ),
    KnownFault(
        29,
        "With heads for multi-token prediction there are more layers than the log expects.",
        ("Megatron-LM #3401",),
        "Sizes do not match: logging fails, or heads are taken for layers.",
        Verdict.PREVENTED,
        "Heads are drafts beside the decoder; rows of another number of layers are rejected and "
        "counted.",
        (
            f"{_TRACE}::test_prediction_heads_are_drafts_beside_the_decoder",
            f"{_COUNTS}::test_prediction_heads_are_drafts",
            f"{_ROUTING}::test_calls_that_do_not_fit_are_counted_and_cost_nothing_else",
        ),
    ),
    KnownFault(
        30,
        "`generate()` does not return router logits.",
        ("transformers #31722",),
        "Only training and single passes can be watched.",
        Verdict.PREVENTED,
        "The probe hooks the routers: it sees every pass of `generate()`, prefill and decode.",
        (f"{_PROBE}::test_generate_with_cache_is_prefill_then_decode",),
    ),
)


_INTRODUCTION = (
    "Thirty faults that were reported of engines and libraries, and what moescope does with each. "
    "Every row names the tests that show it; those under `tests/engines/` run in the engines' own "
    "environments (`make engines`). What the marks in `batches.reasons` mean: "
    "[windows](../explanation/windows.md#lanes-partitions-rows)."
)


def page() -> str:
    """The page about the known faults."""
    verdicts = {
        Verdict.PREVENTED: "it cannot happen here, or what it leaves is rejected and counted",
        Verdict.FLAGGED: "what it leaves is kept out of health, with the reason in `batches`, "
        "coverage or a counter",
        Verdict.NOT_VISIBLE: "rows do not tell it: nothing is marked, and nothing is claimed; "
        "the sentence says what shows it all the same",
    }
    lines = [
        "# Known faults of routing telemetry",
        "",
        _INTRODUCTION,
        "",
        *(f"- **{verdict}**: {meaning}." for verdict, meaning in verdicts.items()),
        "",
        (
            "| # | what happened elsewhere | what it would do to telemetry | verdict "
            "| what moescope does | shown by |"
        ),
        "|---|---|---|---|---|---|",
        *(
            f"| {fault.number} | {fault.happened} ({', '.join(fault.reports)}) | {fault.effect} "
            f"| {fault.verdict} | {fault.answer} "
            f"| {'<br>'.join(f'`{test}`' for test in fault.tests)} |"
            for fault in KNOWN_FAULTS
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
