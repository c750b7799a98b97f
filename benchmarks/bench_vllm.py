"""What the plugin costs a real vLLM, as ratios to a server without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.figures import Baseline, Figure, Result
from benchmarks.harness import Scale, main
from benchmarks.vllm_load import what_is_missing
from benchmarks.vllm_overhead import measure

if TYPE_CHECKING:
    from benchmarks.vllm_overhead import Compared

TITLE = "The plugin in a real vLLM"

TEXT = """
vLLM's OpenAI-compatible server on the CPU (one compute thread) serves the trained small MoE to 8
streaming clients at once. Three servers live side by side, one with the plugin and an agent beside
it, two without; each round sends the same new requests to one after the other in random order, and
the servers are started anew in each episode. Values are *ratios to the first server without*, one
per episode (the median over its rounds); *A/A* is the second server without: what the machine does
to such a ratio by itself. In brackets: 95 % intervals of the median over all rounds, resampled by
episode and round. Where the A/A interval reaches as far as the target allows, or the own interval
holds the target, the verdict is *inconclusive*, and no target is shown.

The model is far smaller than any that is served in earnest (8 million parameters, a pass of some
milliseconds), so that the plugin's share of a pass is larger here than anywhere else.
"""


def run(scale: Scale) -> Result:
    """Measure the topic."""
    missing = what_is_missing()
    if missing:
        print(f"left out: {missing}")
        return _result(f"Left out where this was written: {missing}.", [])
    figures: list[Figure] = []
    different = 0
    for eager in (True, False):
        overhead = measure(scale.pick(5, 2), scale.pick(16, 3), eager=eager)
        figures += [figure_of(overhead.mode, each) for each in overhead.compared]
        different += overhead.different_outputs
    outputs = f"Rounds with other tokens than without the plugin: {different}."
    return _result(f"{TEXT}\n{outputs}", figures)


def figure_of(mode: str, compared: Compared) -> Figure:
    """A row of the table, with A/A below it."""
    is_clear = compared.verdict in {"met", "not met"}
    note = f"{compared.with_plugin}, A/A {compared.same}"
    if compared.verdict is not None:
        note += f": {compared.verdict} (target {compared.target})"
    return Figure(
        what=f"{compared.name}, {mode}",
        unit="ratio to without",
        values=compared.by_episode,
        better=compared.better,
        target=compared.target if is_clear else None,
        baselines=[Baseline(name="A/A", values=compared.same_by_episode)],
        note=note,
    )


def _result(text: str, figures: list[Figure]) -> Result:
    return Result(topic="vllm", title=TITLE, text=text, order=10, figures=figures)


if __name__ == "__main__":
    main("vllm", run)
