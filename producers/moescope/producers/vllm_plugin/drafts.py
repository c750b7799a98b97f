"""What became of the draft tokens that a pass verified (speculative decoding)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.producers.vllm_plugin.step import no_drafts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moescope.producers.vllm_plugin.requests import EngineRequest
    from moescope.producers.vllm_plugin.step import Step


def accepted_drafts(
    step: Step,
    requests: Sequence[EngineRequest],
    outcome: Any,
) -> NDArray[np.int64] | None:
    """How many draft tokens of each request became its own.

    Those that the sampler accepts behind the request's end do not.

    Args:
        step: The pass.
        requests: Those of the step, R.
        outcome: What the runner's `sample_tokens` returned: the output itself, or one that is
            filled in when the device is done.

    Returns:
        int64 [R]; None as long as it is not known.
    """
    if not step.has_drafts:
        return no_drafts(len(requests))
    output = _output(outcome)
    sampled = getattr(output, "sampled_token_ids", None)
    if not sampled:
        return None
    at = output.req_id_to_index
    accepted = np.zeros(len(requests), np.int64)
    for index in np.flatnonzero(step.drafts).tolist():
        row = at.get(step.engine_ids[index])
        if row is not None:
            # The pass yields a token of its own behind those that it accepts.
            own = min(len(sampled[row]) - 1, int(step.drafts[index]))
            accepted[index] = _before_end(
                requests[index], int(step.first[index]), sampled[row], own
            )
    return accepted


def _before_end(request: EngineRequest, first: int, tokens: Sequence[int], accepted: int) -> int:
    """How many of a pass's accepted tokens, the first at `first` + 1, the request keeps."""
    left = request.prompt_tokens + request.most_tokens - 1 - first
    for index, token in enumerate(tokens[:accepted]):
        if token in request.stop_tokens:
            left = min(left, index + 1)
    return max(min(accepted, left), 0)


def _output(outcome: Any) -> Any:
    for name in ("_model_runner_output", "model_runner_output"):  # V1, V2
        inner = getattr(outcome, name, None)
        if inner is not None:
            return inner
    return outcome
