"""SGLang responses with routed experts, taken apart into sequences of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.json_values import as_integer, as_name, shown
from moescope.producers.importers.npy_routes import MAX_TOKENS, check_width, decode_base64
from moescope.producers.importers.sequences import (
    LARGEST_TOKENS,
    Sequence,
    counted_tokens,
    without_surplus,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_DTYPES: dict[str, np.dtype[Any]] = {
    "int32": np.dtype("<i4"),
    "uint16": np.dtype("<u2"),
    "uint8": np.dtype("u1"),
}
_LARGEST_ID = 65_535


def sequences_of(
    response: dict[str, Any],
    fallback_name: str,
    *,
    hidden_layers: int,
    top_k: int,
    experts: int | None = None,
    prompt_tokens: int | None = None,
) -> Iterator[Sequence]:
    """Take a response apart.

    Understood are `meta_info.routed_experts` of the native API, the same per choice of an
    OpenAI-style response with `meta_info`, and `sglext.routed_experts` of one.

    Args:
        response: The response, as parsed.
        fallback_name: Request of a response that has no id.
        hidden_layers: All decoder layers: the bytes have no header that would tell.
        top_k: k.
        experts: E, if known.
        prompt_tokens: For responses that do not say.

    Raises:
        RejectedLineError: The response has no routes, or contradicts itself.
    """
    request = response.get("id")
    choices = response.get("choices")
    parts = choices if isinstance(choices, list) and choices else [response]
    if not all(isinstance(part, dict) for part in parts):
        raise RejectedLineError("a choice that is no object")
    usage = _object(response, "usage")
    model = response.get("model") or ""
    found = False
    for number, part in enumerate(parts):
        meta = _object(part, "meta_info")
        said = {**usage, **_object(usage, "prompt_tokens_details"), **meta}
        if len(parts) > 1 and "completion_tokens" not in meta:
            said.pop("completion_tokens", None)
        if prompt_tokens is not None:
            said.setdefault("prompt_tokens", prompt_tokens)
        value = meta.get("routed_experts")
        if value is None and len(parts) == 1:
            value = _object(response, "sglext").get("routed_experts")
        if value is None:
            continue
        found = True
        name = as_name(meta.get("id") or request or fallback_name, "id")
        yield _sequence(
            name if len(parts) == 1 or meta.get("id") else f"{name}-{number}",
            as_name(model, "model") if model else "",
            said,
            decode_raw(
                value, said.get("routed_experts_dtype"), hidden_layers, top_k, experts=experts
            ),
            is_first=number == 0,
        )
    if not found:
        raise _no_routes()


def check_has_routes(response: dict[str, Any]) -> None:
    """See whether a response has routes at all; their shape need not be known.

    Raises:
        RejectedLineError: It has none.
    """
    choices = response.get("choices")
    parts = [response, *(choices if isinstance(choices, list) else [])]
    if not any(
        isinstance(part, dict) and _object(part, name).get("routed_experts") is not None
        for part in parts
        for name in ("meta_info", "sglext")
    ):
        raise _no_routes()


def _no_routes() -> RejectedLineError:
    return RejectedLineError("no routed experts", "was the engine asked to return them?")


def decode_raw(
    value: Any,
    dtype_name: Any,
    hidden_layers: int,
    top_k: int,
    *,
    experts: int | None = None,
) -> NDArray[np.int64]:
    """Expert ids from base64 of raw numbers without a header.

    Args:
        value: Text.
        dtype_name: `int32`, `uint16` or `uint8`; None stands for `int32`.
        hidden_layers: L.
        top_k: k.
        experts: E, if known.

    Returns:
        int64 [T, L, k]; an id may be −1.

    Raises:
        RejectedLineError: The value is none, or its length or ids are impossible.
    """
    if not isinstance(value, str):
        raise RejectedLineError("routed_experts is no text", type(value).__name__)
    name = "int32" if dtype_name is None else dtype_name
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise RejectedLineError("routed_experts has an unexpected type", shown(name))
    check_width(dtype, experts, "routed_experts")
    raw = decode_base64(value, "routed_experts")
    row = hidden_layers * top_k * dtype.itemsize
    if len(raw) % row:
        raise RejectedLineError(
            "routed_experts is no whole number of rows",
            f"{len(raw)} bytes, {hidden_layers} layers × {top_k} ids of {dtype.itemsize} bytes",
        )
    if len(raw) // row > MAX_TOKENS:
        raise RejectedLineError("routed_experts has too many tokens", str(len(raw) // row))
    numbers: NDArray[np.int64] = np.frombuffer(raw, dtype).astype(np.int64)
    routes = numbers.reshape(-1, hidden_layers, top_k)
    if routes.size and (int(routes.min()) < -1 or int(routes.max()) > _LARGEST_ID):
        raise RejectedLineError(
            f"routed_experts has an id that is not 0 to {_LARGEST_ID}",
            "are hidden_layers, top_k and the type right?",
        )
    return routes


def _sequence(
    request: str, model: str, said: dict[str, Any], routes: NDArray[np.int64], *, is_first: bool
) -> Sequence:
    """A sequence of routes from `start` up to the last token but one."""
    prompt = counted_tokens(said, "prompt_tokens")
    generated = counted_tokens(said, "completion_tokens")
    start = as_integer(said.get("routed_experts_start_len") or 0, "start", LARGEST_TOKENS)
    tokens = prompt + generated - start if prompt >= 0 and generated >= 0 else -1
    routes, surplus = without_surplus(routes, tokens, "routed_experts")
    cached = counted_tokens(said, "cached_tokens")
    left_out = 0 if is_first else max(prompt - start, 0)
    return Sequence(
        request=request,
        model=model,
        first_position=start + left_out,
        prompt_tokens=prompt,
        cached_tokens=max(cached, 0),
        says_cached=cached >= 0,
        routes=routes[left_out:],
        surplus_rows=surplus,
    )


def _object(parent: dict[str, Any], name: str) -> dict[str, Any]:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}
