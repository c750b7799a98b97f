"""What became of the draft tokens that a pass verified (speculative decoding)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.producers.vllm_plugin.step import Step


def accepted_drafts(step: Step, outcome: Any) -> NDArray[np.int64] | None:  # noqa: ANN401
    """How many draft tokens of each request were accepted.

    Args:
        step: The pass.
        outcome: What the runner's `sample_tokens` returned: the output itself, or one that is
            filled in when the device is done.

    Returns:
        int64 [R]; None as long as it is not known.
    """
    if not step.drafts.any():
        return np.zeros(len(step.engine_ids), np.int64)
    output = _output(outcome)
    sampled = getattr(output, "sampled_token_ids", None)
    if not sampled:
        return None
    at = output.req_id_to_index
    tokens = [len(sampled[at[one]]) if one in at else 0 for one in step.engine_ids]
    # The pass yields a token of its own behind those that it accepts.
    return np.clip(np.array(tokens, np.int64) - 1, 0, step.drafts)


def _output(outcome: Any) -> Any:  # noqa: ANN401 - vLLM has no types here
    for name in ("_model_runner_output", "model_runner_output"):  # V1, V2
        inner = getattr(outcome, name, None)
        if inner is not None:
            return inner
    return outcome
