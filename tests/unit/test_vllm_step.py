from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from moescope.core.vocabulary import Phase
from moescope.producers.vllm_plugin.drafts import accepted_drafts
from moescope.producers.vllm_plugin.requests import EngineRequest
from moescope.producers.vllm_plugin.step import (
    Step,
    UnknownLayoutError,
    is_blank,
    put_heaviest_first,
    rows_of_numbers,
)


def step(
    counts: list[int], first: list[int], drafts: list[int] | None = None, padded: int | None = None
) -> Step:
    """A pass over the requests a, b and so on."""
    return Step(
        [*"abcdefgh"[: len(counts)]], np.array(counts), np.array(first),
        np.array(drafts or [0] * len(counts)), sum(counts) if padded is None else padded,
    )  # fmt: skip


def request(prompt: int, most: int = 100, stops: tuple[int, ...] = ()) -> EngineRequest:
    """A running request."""
    return EngineRequest(
        name="n", task="t", cached_tokens=0, scene="s", is_own_task=True, prompt_tokens=prompt,
        most_tokens=most, stop_tokens=frozenset(stops),
    )  # fmt: skip


def test_positions_follow_what_was_computed_before() -> None:
    """Each request's rows go on where its computed tokens end."""
    assert step([3, 1, 2], [10, 7, 0]).row_positions().tolist() == [10, 11, 12, 7, 0, 1]


def test_phases_change_at_the_prompts_end_and_at_refused_drafts() -> None:
    """A chunk that ends a prompt, a decoding request, and drafts of which one was accepted."""
    computed = step([2, 1, 4], [4, 9, 20], [0, 0, 3])
    phases = computed.row_phases(computed.row_positions(), np.array([5, 5, 5]), np.array([0, 0, 1]))
    prefill, decode, draft = Phase.PREFILL, Phase.DECODE, Phase.DRAFT
    assert phases.tolist() == [prefill, decode, decode, decode, decode, draft, draft]


def test_rows_must_be_those_that_were_scheduled() -> None:
    """As many as scheduled, or as many as were padded to; else the pass is refused."""
    assert step([3, 2], [0, 0]).first_row(5) == 0
    assert step([3, 2], [0, 0], padded=8).first_row(8) == 0
    for rows in (4, 6, 10):
        with pytest.raises(UnknownLayoutError):
            step([3, 2], [0, 0]).first_row(rows)
    with pytest.raises(UnknownLayoutError):
        step([3, 2], [0, 0], padded=8).first_row(5)
    with pytest.raises(UnknownLayoutError):
        step([3, 2], [0, 0], padded=4).first_row(4)


def test_rows_of_all_data_parallel_ranks_are_cut_to_the_own_ones() -> None:
    """Naive dispatch routes every rank's rows everywhere: counted once, by their own rank."""
    computed = step([3, 2], [0, 0], padded=6)
    computed.rows_across, computed.rank = (4, 6, 1), 1
    assert computed.first_row(11) == 4
    assert computed.first_row(6) == 0
    with pytest.raises(UnknownLayoutError):
        computed.first_row(7)


def test_layers_that_say_nothing_are_told_from_layers_that_do() -> None:
    """Zeros of a kernel that passes the router by are no routing; a lone duplicate row is."""
    ids = np.arange(2 * 3 * 4).reshape(2, 3, 4) % 8
    assert not is_blank(ids)
    assert is_blank(np.zeros_like(ids))
    one_layer = ids.copy()
    one_layer[:, 1] = 0
    assert is_blank(one_layer)
    beside_a_duplicate = one_layer.copy()
    beside_a_duplicate[0, 0, :2] = 3
    assert is_blank(beside_a_duplicate)
    one_row = ids.copy()
    one_row[0, 1] = 5
    assert not is_blank(one_row)
    assert not is_blank(np.zeros((5, 3, 1), int))
    assert not is_blank(ids[:0])


def test_the_heaviest_id_comes_first() -> None:
    """Column 0 is top-1 afterwards, weights stay with their ids, and NaN breaks nothing."""
    ids = np.array([[[5, 2, 9]], [[1, 2, 3]]])
    weights = np.array([[[0.2, 0.5, 0.3]], [[0.4, 0.4, 0.2]]], np.float32)
    pairs = [{*zip(*row, strict=True)} for row in zip(ids[:, 0], weights[:, 0], strict=True)]
    put_heaviest_first(ids, weights)
    assert ids[:, 0, 0].tolist() == [2, 1]
    assert [
        {*zip(*row, strict=True)} for row in zip(ids[:, 0], weights[:, 0], strict=True)
    ] == pairs
    before = ids.copy()
    put_heaviest_first(ids, np.full_like(weights, np.nan))
    assert np.sort(ids).tolist() == np.sort(before).tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_without_numbers_are_told_from_the_others(value: float) -> None:
    """One weight of one layer is enough, and two infinities do not cancel out."""
    weights = np.full((4, 2, 3), 0.3, np.float32)
    assert rows_of_numbers(weights) is None
    weights[1, 0, 2] = value
    weights[3, 1, 0] = -value
    kept = rows_of_numbers(weights)
    assert kept is not None
    assert kept.tolist() == [True, False, True, False]
    assert rows_of_numbers(weights[:0]) is None


def test_rows_that_are_left_out_leave_the_counts_of_their_requests() -> None:
    """The others keep theirs, and a request without a row has none."""
    kept = np.array([True, False, False, True, True, False])
    assert step([3, 1, 2], [0, 0, 0]).counts_of(~kept).tolist() == [2, 0, 1]
    assert step([2, 1, 3], [0, 0, 0]).counts_of(kept).tolist() == [1, 0, 2]
    assert step([1, 2], [0, 0]).counts_of(np.zeros(3, bool)).tolist() == [0, 0]


def sampled(**tokens: list[int]) -> SimpleNamespace:
    """What a runner tells about sampling: the shape of vLLM's `ModelRunnerOutput`."""
    return SimpleNamespace(
        req_id_to_index={name: index for index, name in enumerate(tokens)},
        sampled_token_ids=[*tokens.values()],
    )


def test_accepted_drafts_are_what_was_sampled_beyond_the_passes_own_token() -> None:
    """Three sampled tokens are two accepted drafts; an inner output is looked into."""
    verified = step([4, 1, 4], [9, 3, 30], [3, 0, 3])
    requests = [request(5), request(2), request(5)]
    told = sampled(c=[4], a=[7, 8, 9], b=[1])
    for outcome in (told, SimpleNamespace(_model_runner_output=told)):
        accepted = accepted_drafts(verified, requests, outcome)
        assert accepted is not None
        assert accepted.tolist() == [2, 0, 0]


def test_nothing_is_said_of_drafts_that_are_not_decided() -> None:
    """An output that the device has not filled in yet, and none at all."""
    verified = step([4], [9], [3])
    for outcome in (None, SimpleNamespace(model_runner_output=SimpleNamespace())):
        assert accepted_drafts(verified, [request(5)], outcome) is None
    none = accepted_drafts(step([4], [9]), [request(5)], None)
    assert none is not None
    assert none.tolist() == [0]


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (request(5), 3),
        (request(5, most=7), 2),  # positions 10 and 11 are its last ones
        (request(5, stops=(8,)), 2),
        (request(5, stops=(9,)), 3),
    ],
)
def test_drafts_behind_a_requests_end_are_not_its_own(one: EngineRequest, kept: int) -> None:
    """The sampler accepts what the scheduler then cuts off: lengths and stop tokens end it."""
    accepted = accepted_drafts(step([4], [9], [3]), [one], sampled(a=[7, 8, 9, 10]))
    assert accepted is not None
    assert accepted.tolist() == [kept]
