"""A node's prefix cache: which leading tokens need not be computed again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moescope.producers.simulator.requests import RequestPlan


class PrefixCache:
    """Longest computed beginning per content, oldest use evicted first.

    Args:
        block_tokens: Only whole blocks of this many tokens are reused.
        capacity_tokens: Most tokens remembered.
    """

    def __init__(self, block_tokens: int, capacity_tokens: int) -> None:
        self._block = block_tokens
        self._capacity = capacity_tokens
        self._lengths: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._held = 0

    def match(self, plan: RequestPlan) -> int:
        """Leading tokens of a prompt that are cached; the last token is always computed."""
        whole = self._lengths.get(_content_key(plan), 0)
        prefix = min(self._lengths.get((plan.prefix_seed, 0), 0), plan.prefix_tokens)
        reusable = min(max(whole, prefix), plan.prompt_tokens - 1)
        return reusable // self._block * self._block

    def store(self, plan: RequestPlan, computed_tokens: int) -> None:
        """Remember that the first tokens of a request have been computed."""
        self._keep(_content_key(plan), computed_tokens)
        if plan.prefix_tokens:
            self._keep((plan.prefix_seed, 0), min(computed_tokens, plan.prefix_tokens))
        while self._held > self._capacity and self._lengths:
            _, dropped = self._lengths.popitem(last=False)
            self._held -= dropped

    def _keep(self, key: tuple[int, int], tokens: int) -> None:
        before = self._lengths.pop(key, 0)
        self._lengths[key] = max(before, tokens)
        self._held += self._lengths[key] - before


def _content_key(plan: RequestPlan) -> tuple[int, int]:
    return plan.content_seed, plan.prefix_seed if plan.prefix_tokens else 0
