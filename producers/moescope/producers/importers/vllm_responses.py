"""OpenAI-style responses with routed experts, taken apart into sequences of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.json_values import as_integer, as_name
from moescope.producers.importers.npy_routes import decode_routes
from moescope.producers.importers.sequences import (
    LARGEST_TOKENS,
    Sequence,
    counted_tokens,
    without_surplus,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


def sequences_of(
    response: dict[str, Any], fallback_name: str, *, experts: int | None = None
) -> Iterator[Sequence]:
    """Take a response apart.

    Both known forms are understood: `routed_experts` per choice over prompt and generated
    tokens, and `prompt_routed_experts` per response with `routed_experts` for the generated
    ones. Several choices share one prompt: its routes are taken from the first of them.

    Args:
        response: The response, as parsed.
        fallback_name: Request of a response without `id`.
        experts: E, if known.

    Raises:
        RejectedLineError: The response has no routes, or contradicts itself.
    """
    request = as_name(response.get("id") or fallback_name, "id")
    model = response.get("model") or ""
    usage = response.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    choices = response.get("choices")
    parts = choices if isinstance(choices, list) and choices else [response]
    if not all(isinstance(part, dict) for part in parts):
        raise RejectedLineError("a choice that is no object")
    prompt = response.get("prompt_routed_experts")
    prompt_routes = (
        None if prompt is None else decode_routes(prompt, "prompt_routed_experts", experts=experts)
    )
    prompt_tokens = _prompt_tokens(response, usage, prompt_routes)
    details = usage.get("prompt_tokens_details")
    cached = counted_tokens(details if isinstance(details, dict) else {}, "cached_tokens")
    generated = counted_tokens(usage, "completion_tokens") if len(parts) == 1 else -1
    found = False
    for number, part in enumerate(parts):
        if part.get("routed_experts") is None and (prompt_routes is None or number):
            continue
        routes, first, surplus = _routes_of(
            part, prompt_routes, prompt_tokens, _generated(part, generated),
            is_first=number == 0, experts=experts,
        )  # fmt: skip
        found = True
        yield Sequence(
            request=request if len(parts) == 1 else f"{request}-{number}",
            model=as_name(model, "model") if model else "",
            first_position=first,
            prompt_tokens=prompt_tokens,
            cached_tokens=max(cached, 0),
            says_cached=cached >= 0,
            routes=routes,
            surplus_rows=surplus,
        )
    if not found:
        raise RejectedLineError("no routed experts", "was the engine asked to return them?")


def _generated(part: dict[str, Any], generated: int) -> int:
    """Generated tokens of a choice: as it lists them, else as the response counts them."""
    ids = part.get("token_ids")
    return len(ids) if isinstance(ids, list) else generated


def _routes_of(
    part: dict[str, Any],
    prompt_routes: NDArray[np.int64] | None,
    prompt_tokens: int,
    generated: int,
    *,
    is_first: bool,
    experts: int | None,
) -> tuple[NDArray[np.int64], int, int]:
    """Routes of a choice, the position of their first row, and how many rows were left out."""
    own = part.get("routed_experts")
    if own is None:
        assert prompt_routes is not None  # noqa: S101 (the caller has looked)
        return prompt_routes, 0, 0
    routes = decode_routes(own, "routed_experts", experts=experts)
    if prompt_routes is None:
        known = prompt_tokens >= 0 and generated >= 0
        tokens = prompt_tokens + generated if known else -1
        routes, surplus = without_surplus(routes, tokens, "routed_experts")
        if is_first or prompt_tokens < 0:
            return routes, 0, surplus
        return routes[prompt_tokens:], prompt_tokens, surplus
    if routes.shape[1:] != prompt_routes.shape[1:]:
        raise RejectedLineError(
            "prompt and generated routes of different shapes",
            f"{prompt_routes.shape} and {routes.shape}",
        )
    routes, surplus = without_surplus(routes, generated, "routed_experts")
    if is_first:
        return np.concatenate([prompt_routes, routes]), 0, surplus
    return routes, len(prompt_routes), surplus


def _prompt_tokens(
    response: dict[str, Any], usage: dict[str, Any], prompt_routes: NDArray[np.int64] | None
) -> int:
    said = usage.get("prompt_tokens")
    ids = response.get("prompt_token_ids")
    if said is None and isinstance(ids, list):
        said = len(ids)
    if said is None:
        return -1 if prompt_routes is None else len(prompt_routes)
    tokens = as_integer(said, "prompt_tokens", LARGEST_TOKENS)
    if prompt_routes is not None and len(prompt_routes) != tokens:
        raise RejectedLineError(
            "as many prompt routes as prompt tokens are needed", f"{len(prompt_routes)}, {tokens}"
        )
    return tokens
