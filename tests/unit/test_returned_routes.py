"""Returned routes: what a response's rows become, what is missed, and that nothing ever raises."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.rings import LAYERS, START_US, logged, rows_of, small_recorder

from moescope.core.batchlog import partition_names
from moescope.core.clock import ManualClock
from moescope.core.errors import SettingsError
from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.agent import Agent
from moescope.producers.returned_routes import ReturnedRoutes, ReturnedRoutesCounters

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.rings import ShippedRow

HIDDEN = 4


def npy(routes: np.ndarray[Any, Any]) -> str:
    """A `.npy` file as base64 text."""
    buffer = io.BytesIO()
    np.save(buffer, routes)
    return base64.b64encode(buffer.getvalue()).decode()


def raw(routes: np.ndarray[Any, Any]) -> str:
    """Numbers without a header as base64 text."""
    return base64.b64encode(routes.astype("<i4").tobytes()).decode()


def routes_of(rows: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Distinct ids from 1 at layers 1 and 3, zeros at the dense layers 0 and 2."""
    random = np.random.default_rng(seed)
    routes = np.zeros((rows, HIDDEN, 2), np.uint8)
    for layer in LAYERS:
        routes[:, layer] = np.argsort(random.random((rows, 7)), axis=1)[:, :2] + 1
    return routes


def vllm(routes: Any, prompt: int = 3, name: str = "a", **usage: Any) -> dict[str, Any]:
    """A response of vLLM with one choice; routes that are no array are sent as they are."""
    if isinstance(routes, np.ndarray):
        usage.setdefault("completion_tokens", len(routes) - prompt + 1)
        routes = npy(routes)
    return {
        "id": name,
        "usage": {"prompt_tokens": prompt, **usage},
        "choices": [{"routed_experts": routes}],
    }


class Bench:
    """A recorder of layers 1 and 3 of four, the adapter before it, and the log behind it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.root = folder / "log"
        self.clock = ManualClock(START_US)
        self.recorder = small_recorder(folder, clock=self.clock, **settings)
        self.folder = folder
        self.routes = ReturnedRoutes(self.recorder, hidden_layers=HIDDEN)

    def rows(self) -> list[ShippedRow]:
        """What an agent makes of it, context rows left out."""
        self.recorder.close()
        with Agent(self.folder, self.root, clock=self.clock) as agent:
            agent.drain()
        return [row for row in rows_of(logged(self.root)) if not row.is_context]

    def placed(self) -> list[tuple[str, int, int]]:
        """Request, position and phase of each row."""
        return [(row.request, row.position, row.phase) for row in self.rows()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A recorder and the adapter before it."""
    bench = Bench(tmp_path)
    yield bench
    bench.recorder.close()


def moe_sets(routes: np.ndarray[Any, Any]) -> list[tuple[tuple[int, ...], ...]]:
    """Ids of each row at the MoE layers, ascending."""
    return [tuple(tuple(sorted(row[layer].tolist())) for layer in LAYERS) for row in routes]


def test_rows_of_a_vllm_response_are_recorded(bench: Bench) -> None:
    """Positions, phases, task and scene; dense layers are cut out."""
    routes = routes_of(5)
    assert bench.routes.record_vllm(vllm(routes), task="t", scene="chat", last_of_task=True) == 5
    rows = bench.rows()
    assert [row.expert_ids for row in rows] == moe_sets(routes)
    assert [(row.position, row.phase) for row in rows] == [
        (0, Phase.PREFILL), (1, Phase.PREFILL), (2, Phase.PREFILL), (3, Phase.DECODE),
        (4, Phase.DECODE),
    ]  # fmt: skip
    assert {(row.request, row.task, row.scene) for row in rows} == {("a", "t", "chat")}
    assert rows[0].event_time_us == START_US
    ends = logged(bench.root)[-1].batch.tokens
    assert ends is not None
    assert ends.flags[-1] & RowFlag.LAST_OF_REQUEST
    assert ends.flags[-1] & RowFlag.LAST_OF_TASK


def test_the_first_vllm_form_and_several_choices(bench: Bench) -> None:
    """Prompt routes per response; the prompt is computed once, however many answers it has."""
    routes, other = routes_of(5), routes_of(5, 1)
    response = {
        "id": "b",
        "prompt_token_ids": [7, 8, 9],
        "prompt_routed_experts": npy(routes[:3].astype(np.int16)),
        "choices": [
            {"routed_experts": npy(routes[3:].astype(np.int16)), "token_ids": [1, 2, 3]},
            {"routed_experts": npy(other[3:].astype(np.int16)), "token_ids": [1, 2, 3]},
        ],
    }
    assert bench.routes.record_vllm(json.dumps(response)) == 7
    rows = bench.rows()
    assert [(row.request, row.position) for row in rows] == [
        *(("b-0", position) for position in range(5)), ("b-1", 3), ("b-1", 4),
    ]  # fmt: skip
    assert [row.expert_ids for row in rows] == moe_sets(np.concatenate([routes, other[3:]]))


def test_rows_of_sglang_responses_are_recorded(bench: Bench) -> None:
    """Raw numbers; the prompt's length may come from the caller; a list is a batch."""
    routes = routes_of(5)
    whole = {"id": "s", "prompt_tokens": 3, "completion_tokens": 3, "cached_tokens": 1}
    batch = [
        {"meta_info": {**whole, "routed_experts": raw(routes)}},
        {"meta_info": {"id": "u", "routed_experts": raw(routes)}},
    ]
    assert bench.routes.record_sglang(batch, prompt_tokens=4) == 9
    assert bench.routes.counters().cached_rows == 1
    assert bench.placed() == [
        *(("s", position, int(position >= 3)) for position in range(1, 5)),
        *(("u", position, int(position >= 4)) for position in range(5)),
    ]


def test_turns_of_a_conversation_are_recorded_once(bench: Bench) -> None:
    """Engines return the whole prefix with each turn; what was recorded is left out."""
    routes = routes_of(14)
    bench.routes.record_vllm(vllm(routes[:5], 3), conversation="c", task="c")
    again = vllm(routes[:9], 7, "b", prompt_tokens_details={"cached_tokens": 2})
    assert bench.routes.record_vllm(again, conversation="c", task="c") == 4
    choices = vllm(routes[:14], 12, "d")
    choices["choices"] *= 2
    assert bench.routes.record_vllm(choices, conversation="c", task="c") == 5 + 2
    assert bench.routes.record_vllm(vllm(routes, 14, "e"), conversation="c", task="c") == 2
    counters = bench.routes.counters()
    assert (counters.cached_rows, counters.repeated_rows) == (2, 3 + 9 + 12)
    positions = [position for request, position, _ in bench.placed() if request != "d-1"]
    assert positions == [*range(14), 12, 13]


def test_zeros_are_missed_and_never_counted(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Kernels that never fill the buffer return the right shape: coverage falls, with a reason."""
    zeros = np.zeros((5, HIDDEN, 2), np.uint8)
    mixed = routes_of(5)
    mixed[1] = 0
    mixed[2, 1] = 0
    with caplog.at_level(logging.WARNING):
        assert bench.routes.record_vllm(vllm(zeros)) == 0
        assert bench.routes.record_vllm(vllm(zeros, name="z")) == 0
        assert bench.routes.record_vllm(vllm(mixed, name="m")) == 4
    assert bench.routes.counters().missed_rows == 11
    assert bench.recorder.counters().unseen_rows == 11
    assert len([record for record in caplog.records if "all-zero" in record.message]) == 1
    assert [row.position for row in bench.rows()] == [0, 2, 3, 4]
    headers = [entry.batch.header for entry in logged(bench.root)]
    assert sum(header.drops.unseen_rows for header in headers) == 11
    assert {header.labels.get("unseen_reason") for header in headers} == {"all-zero routes"}


def test_unknown_ids_and_rows_of_last_tokens_are_left_out(bench: Bench) -> None:
    """−1 marks stale slots; the last token is never computed."""
    routes = routes_of(5).astype(np.int16)
    routes[3, 3, 1] = -1
    assert bench.routes.record_vllm(vllm(routes, completion_tokens=2)) == 3
    counters = bench.routes.counters()
    assert (counters.missed_rows, counters.surplus_rows) == (1, 1)
    assert [row.position for row in bench.rows()] == [0, 1, 2]


def test_with_one_expert_per_token_few_zeros_are_expert_zero(tmp_path: Path) -> None:
    """A route of expert 0 is a route; a whole response of it is an unfilled buffer."""
    bench = Bench(tmp_path, top_k=1)
    some = np.zeros((40, HIDDEN, 1), np.uint8)
    some[7, 1] = 3
    assert bench.routes.record_vllm(vllm(some)) == 40
    assert bench.routes.record_vllm(vllm(some[:7], name="b")) == 7
    assert bench.routes.record_vllm(vllm(some[8:], name="c")) == 0
    bench.recorder.close()


@pytest.mark.parametrize(
    ("response", "missed"),
    [
        (None, 0),
        (7, 0),
        ("{", 0),
        (b"[]", 0),
        ("\ud800", 0),
        ({}, 0),
        (vllm("!!"), 3),
        (vllm("!!", completion_tokens=4, prompt_tokens_details={"cached_tokens": 2}), 4),
        (vllm(None), 3),
        (vllm(routes_of(5), completion_tokens=9), 11),
        (vllm(routes_of(5)[:, :, :1]), 5),
        (vllm(routes_of(5)[:, :3]), 5),
        ({"choices": [3]}, 0),
        ({"usage": {"prompt_tokens": "x"}, "choices": [{"routed_experts": "x"}]}, 0),
    ],
)
def test_nothing_raises_and_what_is_known_to_be_missing_is_counted(
    response: Any,
    missed: int,
    bench: Bench,
) -> None:
    """The client serves people; a broken response is no reason to fail them."""
    assert bench.routes.record_vllm(response) == 0
    counters = bench.routes.counters()
    assert counters.refused_responses == 1
    assert counters.missed_rows == missed == bench.recorder.counters().unseen_rows
    assert counters.internal_errors == 0
    assert bench.routes.record_sglang(response) == 0


def test_errors_of_the_adapter_are_counted(bench: Bench) -> None:
    """Even a client's own object that breaks when it is asked."""

    class Broken:
        def model_dump(self) -> dict[str, Any]:
            raise RuntimeError

    class Whole:
        def model_dump(self) -> dict[str, Any]:
            return vllm(routes_of(5))

    assert bench.routes.record_vllm(Broken()) == 0
    assert bench.routes.record_vllm(Whole()) == 5
    assert bench.routes.counters() == ReturnedRoutesCounters(
        responses=1, handed_over_rows=5, internal_errors=1
    )


class Hostile(list[Any]):
    """A list that cannot be walked."""

    def __iter__(self) -> Any:
        """Fail."""
        raise RuntimeError(self)

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError


class UnspeakableError(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError


class Exploding:
    """A client library's object that fails."""

    def model_dump(self) -> object:
        """Fail."""
        raise UnspeakableError


def endless() -> list[Any]:
    """A list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "response",
    [
        json.loads("[" * 600 + "]" * 600), endless(), Hostile([1]), [Hostile([1])], Exploding(),
        [Exploding(), None], {"choices": [{"meta_info": {"routed_experts": endless()}}]},
        {"id": endless(), "choices": [{"routed_experts": "", "meta_info": {"routed_experts": ""}}]},
    ],
)  # fmt: skip
def test_no_shape_of_a_response_ever_raises(bench: Bench, response: object) -> None:
    """Depth, loops and objects that fail are refused or counted, for both engines."""
    for record in (bench.routes.record_sglang, bench.routes.record_vllm):
        before = bench.routes.counters()
        assert record(response) == 0
        after = bench.routes.counters()
        assert (after.refused_responses + after.internal_errors) > (
            before.refused_responses + before.internal_errors
        )


def test_a_list_of_sglang_responses_is_one_batch_of_them(bench: Bench) -> None:
    """A list within the list is no response, and takes no other one along."""
    one, other = (
        {"meta_info": {
            "id": name, "prompt_tokens": 3, "completion_tokens": 2,
            "routed_experts": raw(routes_of(4, seed)),
        }}
        for seed, name in enumerate("ab")
    )  # fmt: skip
    assert bench.routes.record_sglang([one, [other], other]) == 8
    assert bench.routes.counters().refused_responses == 1


def test_a_response_handed_over_twice_is_recorded_once(bench: Bench) -> None:
    """A client that retries, or two listeners of one client, double no token; new answers count."""
    response = vllm(routes_of(5))
    assert [bench.routes.record_vllm(response) for _ in range(3)] == [5, 0, 0]
    assert bench.routes.record_vllm(vllm(routes_of(5), name="b")) == 5
    assert bench.routes.record_vllm(vllm(routes_of(5, 1))) == 5
    zeros = vllm(np.zeros((5, HIDDEN, 2), np.uint8), name="z")
    bench.routes.record_vllm(zeros)
    bench.routes.record_vllm(zeros)
    counters = bench.routes.counters()
    assert (counters.handed_over_rows, counters.repeated_rows, counters.missed_rows) == (15, 15, 5)
    assert bench.recorder.counters().recorded_rows == 15


def test_a_wrong_conversation_costs_no_row(bench: Bench) -> None:
    """What is only for leaving rows out must not leave all of them out."""
    wrong: Any = [1]
    assert bench.routes.record_vllm(vllm(routes_of(5)), conversation=wrong) == 5
    assert bench.routes.counters().internal_errors == 0


def test_memory_of_responses_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten first."""
    monkeypatch.setattr("moescope.producers.returned_routes.routes.RESPONSES_REMEMBERED", 2)
    found = [bench.routes.record_vllm(vllm(routes_of(4), name=name)) for name in "abcca"]
    assert found == [4, 4, 4, 0, 4]


def test_ids_of_one_byte_cannot_name_five_hundred_experts(tmp_path: Path) -> None:
    """They have overflowed, and look like other experts' ids."""
    bench = Bench(tmp_path, experts=512)
    assert bench.routes.record_vllm(vllm(routes_of(5))) == 0
    assert bench.routes.record_vllm(vllm(routes_of(5).astype(np.uint16))) == 5
    assert bench.recorder.counters().unseen_rows == 5
    bench.recorder.close()


def test_engines_that_return_moe_layers_only(bench: Bench) -> None:
    """Some versions leave dense layers out."""
    adapter = ReturnedRoutes(bench.recorder)
    routes = routes_of(5)
    assert adapter.record_vllm(vllm(routes[:, list(LAYERS)])) == 5
    assert adapter.record_vllm(vllm(routes, name="b")) == 5
    assert adapter.record_sglang({"meta_info": {"routed_experts": raw(routes)}}) == 0
    assert [row.expert_ids for row in bench.rows()] == moe_sets(routes) * 2


@pytest.mark.parametrize("settings", [{"moe_layers": [1, 2]}, {"hidden_layers": 3}])
def test_a_wrong_shape_is_said_at_once(settings: dict[str, Any], bench: Bench) -> None:
    """Wrong settings show when the client starts, not later."""
    with pytest.raises(SettingsError):
        ReturnedRoutes(bench.recorder, **settings)


def test_the_how_to_page_works_as_written(tmp_path: Path, repository_root: Path) -> None:
    """Its program leaves the routing of 36 tokens."""
    page = (repository_root / "docs/how-to/record-returned-routes.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    data = tmp_path / "moescope-data"
    with Agent(data / "ring", data / "log") as agent:
        agent.drain()
    [node] = partition_names(data / "log")
    rows = [row for row in rows_of(logged(data / "log", node)) if not row.is_context]
    assert [row.position for row in rows] == list(range(36))
    assert {(row.task, row.scene) for row in rows} == {("conversation-9", "chat")}
