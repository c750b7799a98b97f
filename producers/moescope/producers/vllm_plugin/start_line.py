"""What an engine says once its probe is attached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescope.core.vocabulary import Fidelity

if TYPE_CHECKING:
    from moescope.producers.recorder import Recorder


def start_line(recorder: Recorder, directory: str, refusal: str, *, has_keys: bool) -> str:
    """What is in force, and why nothing is recorded where that is so.

    Args:
        recorder: The engine's.
        directory: Of its ring.
        refusal: Why nothing can be recorded, or empty.
        has_keys: Whether content keys are recorded.
    """
    profile = recorder.profile
    fidelity = profile.fidelity.name.lower()
    if profile.fidelity is Fidelity.SAMPLED:
        fidelity += f" ({profile.sampling_ratio:g} of the requests)"
    why = refusal or recorder.counters().disabled
    return (
        f"moescope: routing of model {profile.model}, revision {profile.revision} "
        f"({len(profile.layers)} layers, {profile.experts} experts, top {profile.top_k}) "
        f"{f'is not recorded: {why};' if why else 'is recorded'} as node {recorder.node} "
        f"in {directory}; fidelity {fidelity}, token ids {profile.token_id_kind.name.lower()}, "
        f"content keys {'yes' if has_keys else 'no'}."
    )
