"""OpenAI-style responses with routed experts, taken apart into sequences of routes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.json_values import as_integer, as_name
from moescope.producers.importers.npy_routes import decode_routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_LARGEST = 2**31 - 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Routes of one choice of one response.

    Attributes:
        request: Of the response; with the choice's number if there are several.
        first_position: Of the first row.
        prompt_tokens: −1 when the response does not say.
        cached_tokens: Leading prompt tokens that came from a prefix cache.
        routes: int64 [T, L, k], all hidden layers.
    """

    request: str
    model: str
    first_position: int
    prompt_tokens: int
    cached_tokens: int
    routes: NDArray[np.int64]


def sequences_of(response: dict[str, Any], fallback_name: str) -> Iterator[Sequence]:
    """Take a response apart.

    Both known forms are understood: `routed_experts` per choice over prompt and generated
    tokens, and `prompt_routed_experts` per response with `routed_experts` for the generated
    ones. Several choices share one prompt: its routes are taken from the first of them.

    Args:
        response: The response, as parsed.
        fallback_name: Request of a response without `id`.

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
    prompt_routes = None if prompt is None else decode_routes(prompt, "prompt_routed_experts")
    prompt_tokens = _prompt_tokens(response, usage, prompt_routes)
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    found = False
    for number, part in enumerate(parts):
        routes, first = _routes_of(part, prompt_routes, prompt_tokens, is_first=number == 0)
        if routes is None:
            continue
        found = True
        yield Sequence(
            request=request if len(parts) == 1 else f"{request}-{number}",
            model=as_name(model, "model") if model else "",
            first_position=first,
            prompt_tokens=prompt_tokens,
            cached_tokens=0 if cached is None else as_integer(cached, "cached_tokens", _LARGEST),
            routes=routes,
        )
    if not found:
        raise RejectedLineError("no routed experts", "was the engine asked to return them?")


def _routes_of(
    part: dict[str, Any],
    prompt_routes: NDArray[np.int64] | None,
    prompt_tokens: int,
    *,
    is_first: bool,
) -> tuple[NDArray[np.int64] | None, int]:
    """Routes of a choice, and the position of their first row."""
    own = part.get("routed_experts")
    routes = None if own is None else decode_routes(own, "routed_experts")
    if prompt_routes is not None:
        if routes is None:
            return (prompt_routes, 0) if is_first else (None, 0)
        if routes.shape[1:] != prompt_routes.shape[1:]:
            raise RejectedLineError(
                "prompt and generated routes of different shapes",
                f"{prompt_routes.shape} and {routes.shape}",
            )
        if is_first:
            return np.concatenate([prompt_routes, routes]), 0
        return routes, len(prompt_routes)
    if routes is None or is_first or prompt_tokens < 0:
        return routes, 0
    return routes[prompt_tokens:], prompt_tokens


def _prompt_tokens(
    response: dict[str, Any], usage: dict[str, Any], prompt_routes: NDArray[np.int64] | None
) -> int:
    said = usage.get("prompt_tokens")
    ids = response.get("prompt_token_ids")
    if said is None and isinstance(ids, list):
        said = len(ids)
    if said is None:
        return -1 if prompt_routes is None else len(prompt_routes)
    tokens = as_integer(said, "prompt_tokens", _LARGEST)
    if prompt_routes is not None and len(prompt_routes) != tokens:
        raise RejectedLineError(
            "as many prompt routes as prompt tokens are needed", f"{len(prompt_routes)}, {tokens}"
        )
    return tokens
