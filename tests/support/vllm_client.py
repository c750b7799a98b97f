"""Concurrent streaming clients of a vLLM server: which tokens came, and when."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from support.vllm_server import MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from support.vllm_server import VllmServer

LONGEST_WAIT_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One greedy request.

    Attributes:
        request_id: Sent as `X-Request-Id`; the server answers with `cmpl-` before it.
        token_ids: The prompt.
        tokens: How many to generate: the end token is ignored.
        abort_after: Close the connection after so many tokens.
    """

    request_id: str
    token_ids: Sequence[int]
    tokens: int
    abort_after: int | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came back.

    Attributes:
        response_id: The `id` of the API's response; empty if nothing came.
        token_ids: Generated tokens, as far as they came.
        sent_ns, arrived_ns: Monotonic times of the request, and of each token.
        status: HTTP status.
        error: Body of an answer that is no stream, or what broke.
    """

    response_id: str
    token_ids: list[int]
    sent_ns: int
    arrived_ns: list[int]
    status: int = 200
    error: str = ""


@dataclass
class _Lines:
    """Raw lines with their times: decoding waits until the stream has ended."""

    lines: list[bytes] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)


def complete_all(
    server: VllmServer, prompts: Sequence[Prompt], concurrency: int | None = None
) -> list[Reply]:
    """Replies in the order of the prompts; by default all at once."""
    with ThreadPoolExecutor(concurrency or max(len(prompts), 1)) as threads:
        return list(threads.map(lambda prompt: complete(server, prompt), prompts))


def complete(server: VllmServer, prompt: Prompt) -> Reply:
    """One streamed completion."""
    body = {
        "model": MODEL_NAME,
        "prompt": list(prompt.token_ids),
        "max_tokens": prompt.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    headers = {"Content-Type": "application/json", "X-Request-Id": prompt.request_id}
    seen = _Lines()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_WAIT_S)
    status, error = 0, ""
    sent = time.perf_counter_ns()
    with closing(connection):
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            status = answer.status
            if status == http.client.OK:
                _read_stream(answer, seen, prompt.abort_after)
            else:
                error = answer.read().decode(errors="replace")
            answer.close()
        except (OSError, http.client.HTTPException) as broken:
            error = repr(broken)
    return _decode(seen, sent, status, error)


def complete_whole(
    server: VllmServer, prompt: Prompt, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole response of a completion that is no stream.

    Args:
        server: A server.
        prompt: The request.
        options: More of its body.
    """
    body = {
        "model": MODEL_NAME,
        "prompt": list(prompt.token_ids),
        "max_tokens": prompt.tokens,
        "ignore_eos": True,
        "return_token_ids": True,
        **options,
    }
    headers = {"Content-Type": "application/json", "X-Request-Id": prompt.request_id}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_WAIT_S)
    with closing(connection):
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    assert answer.status == http.client.OK, text
    response: dict[str, Any] = json.loads(text)
    return response


def _read_stream(answer: http.client.HTTPResponse, seen: _Lines, most: int | None) -> None:
    while line := answer.readline():
        if line.startswith(b"data: {"):
            seen.times_ns.append(time.perf_counter_ns())
            seen.lines.append(line)
            if most is not None and len(seen.lines) >= most:
                return


def _decode(seen: _Lines, sent: int, status: int, error: str) -> Reply:
    tokens: list[int] = []
    times: list[int] = []
    response_id = ""
    for line, at in zip(seen.lines, seen.times_ns, strict=True):
        event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            error = json.dumps(event["error"])
            continue
        response_id = event["id"]
        for choice in event["choices"]:
            arrived = choice.get("token_ids") or []
            tokens += arrived
            times += [at] * len(arrived)
    return Reply(
        response_id=response_id,
        token_ids=tokens,
        sent_ns=sent,
        arrived_ns=times,
        status=status,
        error=error,
    )
