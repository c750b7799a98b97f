"""A served model that goes away amid requests: what was streamed until then is what it is without.

vLLM knows three ways: the server is told to end (test_chaos), it is put to sleep, and its worker is
asked to let go of the model. A GPU's sleep also takes the weights out of memory; a CPU's does not.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.plugin_rows import outwait_passes, recorded
from support.vllm_client import Prompt, complete_all
from support.vllm_server import ServerOptions, wait_until_ready
from support.vllm_unloading import ARGUMENTS, ENVIRONMENT, PATHS, post

from moescope.producers.ring.layout import RING_SUFFIX
from moescope.producers.ring.reader import RingReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from support.vllm_client import Reply
    from support.vllm_server import VllmNursery, VllmServer

pytest.importorskip("vllm", reason="`make engines` has vLLM")
pytestmark = pytest.mark.timeout(900)

SUBJECT = "vLLM plugin"
VOCABULARY = 2048
TOKENS = 400
LONGEST_S = 120.0
_numbers = count()


@dataclass
class Both:
    """A server with the plugin, and one without; both can be asked to let go of their model."""

    watched: VllmServer
    plain: VllmServer
    ring: Path

    def counted(self) -> tuple[int, int]:
        """Rows recorded, and rows that are not (rejected or unseen), as the ring's header says."""
        [file] = self.ring.glob(f"*{RING_SUFFIX}")
        reader = RingReader(file)
        counted = reader.total_rows, reader.rejected_rows + reader.unseen_rows
        reader.close()
        return counted


def start_both(nursery: VllmNursery, folder: Path) -> Both:
    """Start them, and wait until both answer."""
    ring = folder / "ring"
    options = ServerOptions(
        arguments=ARGUMENTS, paths=PATHS, environment={**ENVIRONMENT, "MOESCOPE_NODE": "unloaded"}
    )
    plain = nursery.launch(f"{folder.name}-plain", options)
    watched = nursery.launch(f"{folder.name}-watched", replace(options, ring=ring))
    for server in (plain, watched):
        wait_until_ready(server)
    return Both(watched, plain, ring)


@pytest.fixture(scope="module")
def both(nursery: VllmNursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Of all tests after which they serve on."""
    started = start_both(nursery, tmp_path_factory.mktemp("asleep"))
    yield started
    for server in (started.plain, started.watched):
        server.kill()


@pytest.fixture(scope="module")
def expected(both: Both, prompts: list[Prompt]) -> list[Reply]:
    """What the server without the plugin answers."""
    replies = complete_all(both.plain, named_anew(prompts))
    assert [len(reply.token_ids) for reply in replies] == [TOKENS] * len(prompts)
    return replies


def named_anew(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The same prompts, with request ids that were never there before."""
    return [replace(prompt, request_id=f"unloaded-{next(_numbers)}") for prompt in prompts]


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    """Long answers to four prompts."""
    random = np.random.default_rng(7)
    return [
        Prompt(request_id="", token_ids=random.integers(3, VOCABULARY, 40).tolist(), tokens=TOKENS)
        for _ in range(4)
    ]


def interrupted(
    both: Both, asked: list[Prompt], interrupt: Callable[[VllmServer], Any]
) -> tuple[list[Reply], Any]:
    """What clients got of a server that is interrupted amid their answers, and what that gave."""
    with ThreadPoolExecutor(1) as client:
        replies = client.submit(complete_all, both.watched, asked)
        ends = time.monotonic() + LONGEST_S
        enough = both.counted()[0] + 4 * 60
        while both.counted()[0] < enough and time.monotonic() < ends:
            time.sleep(0.02)
        result = interrupt(both.watched)
        return replies.result(LONGEST_S), result


def check_rows(both: Both, asked: list[Prompt], replies: list[Reply]) -> None:
    """Each row that the engine told of is shipped, once, and none is told as missing."""
    outwait_passes()
    rows, missing = both.counted()
    found = recorded(both.ring, both.ring.parent / "log")
    assert missing == 0
    assert sum(len(request.rows) for request in found.requests.values()) == rows
    assert all(header.drops.lost_rows == 0 for header in found.headers)
    for prompt, reply in zip(asked, replies, strict=True):
        request = found.requests[f"cmpl-{prompt.request_id}"]
        # Those that sleep has thrown out of the cache are computed again, and flagged.
        positions = [row.position for row in request.countable()]
        assert positions == list(range(len(positions)))
        # Each token that arrived is computed from rows before it; one more pass may be under way.
        computed = len(prompt.token_ids) + len(reply.token_ids)
        assert computed - 1 <= len(positions) <= computed + 1
        assert request.has_ended


def test_a_model_dropped_amid_requests(
    nursery: VllmNursery,
    tmp_path: Path,
    prompts: list[Prompt],
    expected: list[Reply],
    verified: Any,
) -> None:
    """The engine fails as without, nothing holds the weights, and all that it computed is there."""
    both = start_both(nursery, tmp_path)
    asked = named_anew(prompts)
    drop = {"method": "drop_model"}
    replies, dropped = interrupted(
        both, asked, lambda server: post(server, "/collective_rpc", drop)
    )
    assert dropped == post(both.plain, "/collective_rpc", drop)
    both.plain.kill()
    for reply, wanted in zip(replies, expected, strict=True):
        assert 0 < len(reply.token_ids) < TOKENS
        assert reply.token_ids == wanted.token_ids[: len(reply.token_ids)]
    ends = time.monotonic() + LONGEST_S
    while both.watched.is_running and time.monotonic() < ends:
        time.sleep(0.1)
    assert not both.watched.is_running
    check_rows(both, asked, replies)
    verified(subject=SUBJECT, what="same answers, and counted: model dropped amid requests")


@pytest.mark.parametrize("mode", ["abort", "keep"])
def test_a_server_put_to_sleep_amid_requests(
    both: Both,
    prompts: list[Prompt],
    expected: list[Reply],
    *,
    mode: str,
    verified: Any,
    not_verified: Any,
) -> None:
    """Requests that it gives up have ended, those that it keeps go on; then it serves as before."""
    asked = named_anew(prompts)

    def sleep_and_wake(server: VllmServer) -> None:
        post(server, f"/sleep?level=1&mode={mode}")
        outwait_passes()
        asleep = both.counted()
        time.sleep(0.5)
        assert both.counted() == asleep
        post(server, "/wake_up")

    replies, _ = interrupted(both, asked, sleep_and_wake)
    for reply, wanted in zip(replies, expected, strict=True):
        assert not reply.error
        assert reply.token_ids == wanted.token_ids[: len(reply.token_ids)]
        assert (len(reply.token_ids) == TOKENS) is (mode == "keep")
        assert reply.token_ids
    again = named_anew(prompts)
    after = complete_all(both.watched, again)
    assert [reply.token_ids for reply in after] == [reply.token_ids for reply in expected]
    # One more: the engine has told the plugin of all others' ends when it computes this one.
    complete_all(both.watched, named_anew([replace(prompts[0], tokens=2)]))
    check_rows(both, asked, replies)
    verified(subject=SUBJECT, what=f"same answers, and counted: asleep amid requests ({mode})")
    not_verified(
        subject=SUBJECT,
        what="weights that sleep takes out of memory",
        why="vLLM's sleep keeps a CPU's weights where they are",
    )
