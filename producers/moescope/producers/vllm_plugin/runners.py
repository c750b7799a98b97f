"""How each generation of vLLM's model runner lays out the rows of a step.

Read from vLLM 0.32: `v1/worker/gpu_model_runner.py` (V1, and the CPU runner above it) and
`v1/worker/gpu/model_runner.py` (V2, the default where Triton is present).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from moescope.producers.vllm_plugin.step import (
    Step,
    UnknownLayoutError,
    no_drafts,
    single_rows,
)

_DUMMY_RUN_ARGUMENT: Final = 1
"""V2's `execute_model(scheduler_output, intermediate_tensors, dummy_run, …)`, without the first."""


class RunnerLayout(Protocol):
    """What a probe has to know about a runner.

    Attributes:
        generation: Name for the log.
    """

    generation: str

    def is_dummy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call of `execute_model`, its first argument left out, computes no request."""
        ...

    def step(self, scheduled: Any) -> Step:
        """The rows of the pass that has just been computed for a `SchedulerOutput`.

        Raises:
            UnknownLayoutError: They cannot be told apart.
        """
        ...


class LayoutV1:
    """Rows follow `input_batch`, requests in its order; padding is at the end."""

    generation = "V1"

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._latest: tuple[Any, ...] | None = None
        self._parallel = runner.vllm_config.parallel_config
        self._note_padding()

    def is_dummy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Never: dummy runs of V1 do not go through `execute_model`."""
        del args, kwargs
        return False

    def step(self, scheduled: Any) -> Step:
        """See `RunnerLayout`."""
        batch = self._runner.input_batch
        engine_ids = list(batch.req_ids)
        counts, rows = scheduled_counts(scheduled, engine_ids)
        first = np.array(batch.num_computed_tokens_cpu[: len(engine_ids)], np.int64)
        rows_passed, across = rows, ()
        latest, self._latest = self._latest, None
        if latest is not None:
            _mode, described, is_split, across_ranks, *_ = latest
            if is_split:
                raise UnknownLayoutError("dual-batch overlap")
            rows_passed = int(described.num_tokens)
            across = () if across_ranks is None else tuple(across_ranks.tolist())
        return Step(
            engine_ids, counts, first, scheduled_drafts(scheduled, engine_ids), rows_passed,
            across, int(self._parallel.data_parallel_rank), token_ids=self._runner.input_ids.gpu,
            rows=rows,
        )  # fmt: skip

    def _note_padding(self) -> None:
        """Keep what the runner decides about a pass's padding; it stores that nowhere."""
        decide = getattr(self._runner, "_determine_batch_execution_and_padding", None)
        if decide is None:
            return

        def decide_and_note(*args: Any, **kwargs: Any) -> Any:
            self._latest = decide(*args, **kwargs)
            return self._latest

        self._runner._determine_batch_execution_and_padding = decide_and_note  # noqa: SLF001 - nothing public tells


class LayoutV2:
    """Rows follow the input batch of `execute_model_state`, sorted with decoding ones first.

    Never seen at work: the runner needs Triton, and a GPU.
    """

    generation = "V2"

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def is_dummy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the runner warms up, profiles, or waits for other ranks."""
        given = args[_DUMMY_RUN_ARGUMENT] if len(args) > _DUMMY_RUN_ARGUMENT else False
        return bool(kwargs.get("dummy_run", given))

    def step(self, scheduled: Any) -> Step:
        """See `RunnerLayout`."""
        state = self._runner.execute_model_state
        if state is None:
            raise UnknownLayoutError("no state of the pass")
        batch = state.input_batch
        engine_ids = list(batch.req_ids)
        counts, rows = scheduled_counts(scheduled, engine_ids)
        if int(batch.num_tokens) != rows:
            raise UnknownLayoutError("draft tokens verified by choice")
        if getattr(self._runner, "pcp_manager", None) is not None:
            raise UnknownLayoutError("prefill context parallelism")
        across = getattr(state.dp_sync_state, "num_tokens_across_dp", None)
        drafts = scheduled_drafts(scheduled, engine_ids)
        return Step(
            engine_ids, counts, np.array(batch.num_computed_tokens_np, np.int64), drafts,
            int(batch.num_tokens_after_padding),
            () if across is None else tuple(across.tolist()),
            int(self._runner.dp_rank),
            batch.positions if self._runner.num_speculative_steps else None, batch.input_ids,
            rows,
        )  # fmt: skip


def layout_of(runner: Any) -> RunnerLayout | None:
    """The layout of a runner; None when its generation is not known."""
    if hasattr(runner, "req_states") and hasattr(runner, "execute_model_state"):
        return LayoutV2(runner)
    if hasattr(runner, "input_batch") and hasattr(runner, "requests"):
        return LayoutV1(runner)
    return None


def scheduled_counts(scheduled: Any, engine_ids: list[str]) -> tuple[Any, int]:
    """Rows of each request, int64 [R], and all together.

    Raises:
        UnknownLayoutError: The runner works on other requests than the scheduler asked for.
    """
    asked = scheduled.num_scheduled_tokens
    counts = [asked.get(one, 0) for one in engine_ids]
    if len(asked) != len(engine_ids) or 0 in counts:
        raise UnknownLayoutError("requests computed are not the requests scheduled")
    rows = sum(counts)
    return (single_rows(rows) if rows == len(counts) else np.array(counts, np.int64)), rows


def scheduled_drafts(scheduled: Any, engine_ids: list[str]) -> Any:
    """Draft tokens of each request, int64 [R]."""
    drafts = scheduled.scheduled_spec_decode_tokens
    if not drafts:
        return no_drafts(len(engine_ids))
    return np.array([len(drafts.get(one, ())) for one in engine_ids], np.int64)
