"""Figures of vLLM blocks and soaks, from numbers that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.bench_vllm import figure_of
from benchmarks.paired import Interval
from benchmarks.vllm_load import Shape, block_of, block_prompts
from benchmarks.vllm_overhead import Compared
from benchmarks.vllm_soak import Slope, slope_of, verdict_of
from support.vllm_client import Prompt, Reply

MS = 1_000_000


def reply(sent_ms: int, arrived_ms: list[int]) -> Reply:
    """A stream whose tokens are 0, 1, 2 and so on."""
    return Reply(
        response_id="r",
        token_ids=list(range(len(arrived_ms))),
        sent_ns=sent_ms * MS,
        arrived_ns=[at * MS for at in arrived_ms],
    )


def test_a_block_is_timed_from_its_first_request_to_its_last_token() -> None:
    """Five tokens in half a second; the gap between streams is no gap between tokens."""
    prompts = [
        Prompt(request_id="a", token_ids=[1], tokens=3),
        Prompt(request_id="b", token_ids=[1], tokens=2),
    ]
    replies = [reply(0, [100, 110, 120]), reply(10, [300, 500])]
    block = block_of(prompts, replies, {"Worker": 10_000_000, "EngineCore": 5_000_000})
    assert block.tokens_per_s == pytest.approx(10.0)
    assert block.median_ms == pytest.approx(10.0)
    assert 10 < block.p99_ms <= 200
    assert (block.worker_cpu_us, block.engine_cpu_us) == (2000.0, 3000.0)


def test_a_request_that_failed_makes_no_figure() -> None:
    """A server that answers fewer tokens would look fast."""
    prompts = [Prompt(request_id="a", token_ids=[1], tokens=3)]
    with pytest.raises(AssertionError, match="a: 2 tokens"):
        block_of(prompts, [reply(0, [1, 2])], {})


def test_blocks_share_no_prompt() -> None:
    """A prompt that was there before would be found in the prefix cache, and not be computed."""
    shape = Shape(streams=4, prompt_tokens=16, tokens=1)
    prompts = [
        tuple(prompt.token_ids)
        for name in ("0-0", "0-1", "1-0")
        for prompt in block_prompts(name, shape)
    ]
    assert len(set(prompts)) == len(prompts) == 12
    assert block_prompts("0-0", shape) == block_prompts("0-0", shape)


def test_the_growth_of_a_line_is_its_slope() -> None:
    """6 MiB an hour, with a jump that a least-squares line would follow."""
    at = np.arange(0, 1200, 10.0)
    memory = 100 + at / 3600 * 6
    memory[50] += 500
    slope = slope_of(list(at), list(memory))
    assert slope.value == pytest.approx(6, abs=0.1)
    assert slope.low <= slope.value <= slope.high


def test_few_samples_have_no_growth() -> None:
    """An interval from next to nothing would be made up."""
    with pytest.raises(ValueError, match="too few"):
        slope_of([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("slope", "verdict"),
    [
        (Slope(-3, 1, 4), "flat"),
        (Slope(2, 5, 9), "flat"),
        (Slope(2, 15, 30), "grows"),
        (Slope(-20, 1, 25), "inconclusive"),
    ],
)
def test_growth_is_judged_by_its_whole_interval(slope: Slope, verdict: str) -> None:
    """Flat: below the limit for sure; grows: above zero for sure, and not surely below it."""
    assert verdict_of(slope) == verdict


@pytest.mark.parametrize(("verdict", "shown"), [("met", "yes"), ("inconclusive", "")])
def test_the_page_shows_no_target_where_nothing_can_be_said(verdict: str, shown: str) -> None:
    """A restless machine must not pass for a target that is met."""
    compared = Compared(
        name="tokens/s",
        better="higher",
        with_plugin=Interval(0.985, 0.99, 1.0),
        same=Interval(0.99, 1.0, 1.01),
        target=0.98,
        verdict=verdict,  # type: ignore[arg-type]  # one of the words
        by_episode=[0.985, 0.99, 0.995],
        same_by_episode=[1.0, 1.0, 1.0],
    )
    figure = figure_of("eager", compared)
    assert figure.verdict() == shown
    assert f": {verdict} (target 0.98)" in figure.note
