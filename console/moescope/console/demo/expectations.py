"""What each incident of the demo should look like.

These are claims, and the demo tries them. What was changed after a first run, and why, is in
docs/decisions/0014-what-the-demo-expects.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What should come out of one incident.

    Attributes:
        pattern: Pattern to be named; empty: none that may page.
        token: Whether token windows of 128 should show it.
        time: Whether time windows of 5 s should show it.
        pages: Whether it should page; None: it may.
        paired: The pattern is found by comparing this recording with its twin.
        experimental: Nothing is promised.
        coverage: It is a matter of coverage, not of routing.
        companions: Patterns that come with the expected one.
        unjudged: Why nothing can be expected, although it is there.
    """

    pattern: str = ""
    token: bool = False
    time: bool = False
    pages: bool | None = False
    paired: bool = False
    experimental: bool = False
    coverage: bool = False
    companions: frozenset[str] = frozenset()
    unjudged: str = ""


COMPUTED_TOGETHER = frozenset({"concurrency_collision"})
"""Requests that share a prefix while they run side by side compute it together."""

NOT_PRESENT = Expectation()
"""Healthy: nothing to be named, nothing pages."""

RECORDED: Mapping[str, Expectation] = MappingProxyType(
    {
        "fixed_system_prompt_aligned": Expectation(
            pattern="fixed_prefix", time=True, pages=True, companions=COMPUTED_TOGETHER
        ),
        "fixed_system_prompt_unaligned": Expectation(
            pattern="fixed_prefix", time=True, pages=True, companions=COMPUTED_TOGETHER
        ),
        "fixed_system_prompt_cached": NOT_PRESENT,
        "common_prefix_concurrency": Expectation(
            pattern="concurrency_collision",
            time=True,
            pages=True,
            companions=frozenset({"fixed_prefix"}),
        ),
        "common_prefix_concurrency_cached": NOT_PRESENT,
        "single_domain": Expectation(pattern="mix_shift", time=True),
        "long_greedy": Expectation(pattern="late_convergence", token=True, pages=None),
        "long_sampled": NOT_PRESENT,
        "few_shot_with": Expectation(pattern="few_shot_pull", paired=True, pages=None),
        "few_shot_without": NOT_PRESENT,
        "json_pulse": Expectation(pattern="periodic_pulse", experimental=True, pages=None),
        "json_ordinary": NOT_PRESENT,
    }
)
"""By recording of the small model; a recording that is not listed is healthy."""

SIMULATED: Mapping[str, Expectation] = MappingProxyType(
    {
        "fixed_system_prompt": Expectation(
            pages=None, unjudged="eight healthy minutes are too few for lines of the whole fleet"
        ),
        "hot_expert": Expectation(pages=True),
        "silent_routing_change": Expectation(token=True, pages=True),
        "long_greedy": Expectation(pattern="late_convergence", token=True, pages=None),
        "dropped_rows": Expectation(coverage=True),
        "silent_node": Expectation(coverage=True),
        "engine_fault": Expectation(pattern="engine_fault", pages=None),
        "expert_collapse": Expectation(pages=True),
    }
)
"""By incident of the simulated fleet. A fault of one layer cannot turn half of the layers red."""
