"""Decode steps that are recorded together: the same rows as one by one, and none is lost."""

from __future__ import annotations

import contextvars
import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

import numpy as np
from support.torch_models import (
    EXPERTS,
    VOCABULARY,
    Recording,
    assert_routed_as,
    expected_routing,
    make_model,
)

from moescope.core.batchlog import BatchLogReader
from moescope.core.quantise import entropies_of, margins_of, weights_of
from moescope.core.vocabulary import Phase, RowFlag
from moescope.core.wire import decode_batch
from moescope.producers import Recorder, attach
from moescope.producers.agent import Agent
from moescope.producers.torch_probe import RequestFacts, router_shape
from moescope.producers.torch_probe import steps as held_steps
from moescope.producers.waiting import LateReader

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines
ENDS: Final = int(RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK)
FAR: Final = 10.0
"""Seconds between steps that do not wait for each other."""


@pytest.fixture
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def all_rows(recording: Recording) -> list[tuple[Any, ...]]:
    """Everything about each counted row, by request and position."""
    recording.recorder.close()
    with Agent(recording.folder / "rings", recording.folder / "log") as agent:
        agent.drain()
    with BatchLogReader(recording.folder / "log", "node") as reader:
        batches = [decode_batch(record.payload) for record in reader.read(0).records]
    found = []
    for batch in batches:
        tokens: Any = batch.tokens
        routes: Any = batch.routes
        if tokens is None:
            continue
        weights = weights_of(routes.weights)
        entropy, margin = entropies_of(routes.entropy, EXPERTS), margins_of(routes.margin)
        found += [
            (
                batch.requests.ids[tokens.request[row]], int(tokens.position[row]),
                int(tokens.phase[row]), int(tokens.pass_id[row]),
                # Which row carries a request's end depends on where the agent cuts batches.
                int(tokens.flags[row]) & ~ENDS,
                routes.expert_ids[row].tolist(), weights[:, :, row].tolist(),
                entropy[:, row].tolist(), margin[:, row].tolist(),
            )
            for row in np.flatnonzero(~(tokens.flags & 1).astype(bool))
        ]  # fmt: skip
    return sorted(found)


def generated(model: Any, recording: Recording, held: int, **settings: Any) -> tuple[Any, ...]:
    """Rows and counters of a batch that is generated with steps that wait for each other."""
    prompts = torch.tensor([[0, 0, 5, 9], [0, 7, 30, 2], [11, 41, 8, 3]])
    facts = [RequestFacts(id=name) for name in "abc"]
    with attach(model, recording.recorder, weights=True, held_steps=held) as probe:
        with probe.batch(facts):
            output = model.generate(prompts, attention_mask=(prompts != 0).long(), **settings)
        counters = probe.counters
    return all_rows(recording), counters, output


@pytest.mark.parametrize("seed", range(6))
def test_the_rows_are_those_of_steps_one_by_one(seed: int, tmp_path: Path, verified: Any) -> None:
    """Positions, phases, passes, ids and scores of a batch whose rows end at different steps."""
    model = make_model("olmoe")
    torch.manual_seed(seed)
    ends = torch.randperm(VOCABULARY - 1)[:9].add(1).tolist()  # a sixth of all tokens
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = 0
    settings = {"max_new_tokens": 21, "do_sample": True}
    found = []
    for held in (1, 3, 8):
        torch.manual_seed(seed)
        found.append(generated(model, Recording(model, tmp_path / str(held)), held, **settings))
    rows, counters, output = found[0]
    assert len(rows) > 12
    assert counters.errors == counters.refused_passes == 0
    for other_rows, other_counters, other_output in found[1:]:
        assert torch.equal(output, other_output)
        assert other_counters == counters
        assert other_rows == rows
    verified(subject="torch probe", what="decode steps recorded together")


def test_what_the_caller_writes_over_was_copied(model: Any, recording: Recording) -> None:
    """A program that keeps one tensor for its next tokens, one for its mask, and edits outputs."""
    model.generation_config.eos_token_id = 49
    tokens = torch.tensor([[5, 9, 41], [7, 30, 2]])
    next_ids = torch.zeros(2, 1, dtype=torch.long)
    columns = torch.ones(2, 64, dtype=torch.long)
    cache = transformers.DynamicCache(config=model.config)
    facts = [RequestFacts(id="a"), RequestFacts(id="b")]
    said = [list(row) for row in tokens.tolist()]
    chosen: list[Any] = []
    for layer in model.model.layers:
        layer.mlp.experts.register_forward_pre_hook(lambda _m, given: chosen.append(given[1]))
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.batch(facts):
            model(tokens, attention_mask=columns[:, :3], cache=cache)
            chosen.clear()
            for step in range(7):
                next_ids[0], next_ids[1] = 10 + step, 20 + step if step != 4 else 49
                columns[:, : 4 + step] = 1
                model(next_ids, attention_mask=columns[:, : 4 + step], cache=cache)
                for row, token in zip(said, next_ids[:, 0].tolist(), strict=True):
                    row.append(token)
                for ids in chosen:
                    ids.fill_(0)
                chosen.clear()
                next_ids.fill_(49)
                columns[:, 3 + step] = 0
    counters = probe.counters
    # The second request ends with its fifth token; what it is fed from then on is doubtful.
    assert counters.passed_rows == 6 + 7 + 4
    rows = recording.rows()
    for name, length, row in (("a", 10, said[0]), ("b", 7, said[1])):
        mine = [each for each in rows if each.request == name]
        assert_routed_as(mine, expected_routing(model, row), range(length))
        assert [each.phase for each in mine[3:]] == [Phase.DECODE] * (length - 3)


def decode(model: Any, steps: int, cache: Any, columns: int) -> None:
    """Some steps of one request."""
    for step in range(steps):
        mask = torch.ones(1, columns + step + 1, dtype=torch.long)
        model(torch.tensor([[9 + step]]), attention_mask=mask, cache=cache)


def begun(model: Any) -> Any:
    """The cache behind a prompt of three tokens."""
    cache = transformers.DynamicCache(config=model.config)
    model(
        torch.tensor([[5, 9, 41]]), attention_mask=torch.ones(1, 3, dtype=torch.long), cache=cache
    )
    return cache


def test_steps_wait_until_there_are_enough(model: Any, recording: Recording) -> None:
    """Eight are recorded together; the rest when the block ends."""
    with attach(model, recording.recorder, held_steps=8) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            cache = begun(model)
            # The first one follows nothing that could tell how far steps are apart.
            assert probe.counters.passed_rows == 3
            decode(model, 1, cache, 3)
            assert probe.counters.passed_rows == 4
            decode(model, 7, cache, 4)
            assert probe.counters.passed_rows == 4
            decode(model, 1, cache, 11)
            assert probe.counters.passed_rows == 12
            decode(model, 2, cache, 12)
            assert probe.counters.passed_rows == 12
        assert probe.counters.passed_rows == 14


def test_steps_far_apart_do_not_wait(model: Any, recording: Recording) -> None:
    """A slow model's steps are recorded at once: the time of an event is when it is recorded."""
    now = [0.0]

    def clock() -> float:
        now[0] += FAR
        return now[0]

    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        probe._clock = clock
        cache = begun(model)
        for step in range(5):
            decode(model, 1, cache, 3 + step)
            assert probe.counters.passed_rows == 4 + step


def test_a_step_waits_no_longer_than_it_may(
    model: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that follow closely wait for a quarter of a second together."""
    monkeypatch.setattr(LateReader, "expect", lambda _self: None)  # it has the same clock
    now = [0.0]
    with attach(model, recording.recorder, held_steps=100) as probe, torch.no_grad():
        probe._clock = lambda: now[0]
        with probe.request("one"):
            cache = begun(model)
            found = []
            for step in range(7):
                now[0] += 0.06
                decode(model, 1, cache, 3 + step)
                found.append(probe.counters.passed_rows - 3)
    # The first one is read at once; of the others the first waits for 0.3 s.
    assert found == [1, 1, 1, 1, 1, 1, 7]


def test_much_to_read_does_not_wait(
    model: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of many rows are recorded at once: memory stays bounded, and nothing is gained."""
    monkeypatch.setattr(held_steps, "HELD_BYTES", 200)  # two layers of (8 + 3) x 4 + 3 x 8
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        probe._clock = lambda: 0.0
        cache = begun(model)
        decode(model, 1, cache, 3)
        for step in range(3):
            decode(model, 1, cache, 4 + step)
            assert probe.counters.passed_rows == 5 + step


def test_what_comes_between_waits_for_the_steps_before(model: Any, recording: Recording) -> None:
    """A turn of several tokens amid steps is recorded behind those that waited."""
    said = [5, 9, 41, 9, 10, 11, 20, 21, 22, 9, 10]
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one", prompt_tokens=9):
            cache = begun(model)
            decode(model, 3, cache, 3)
            mask = torch.ones(1, 9, dtype=torch.long)
            model(torch.tensor([[20, 21, 22]]), attention_mask=mask, cache=cache)
            decode(model, 2, cache, 9)
        assert probe.counters.refused_passes == probe.counters.errors == 0
    rows = recording.rows()
    assert_routed_as(rows, expected_routing(model, said), range(len(said)))
    assert [row.phase for row in rows] == [Phase.PREFILL] * 9 + [Phase.DECODE] * 2


def test_steps_without_a_mask_wait_too(model: Any, recording: Recording) -> None:
    """A loop that gives only tokens and cache."""
    said = [5, 9, 41, *range(10, 16)]
    cache = transformers.DynamicCache(config=model.config)
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            model(torch.tensor([said[:3]]), cache=cache)
            for token in said[3:]:
                model(torch.tensor([[token]]), cache=cache)
            assert probe.counters.passed_rows == 4
    assert_routed_as(recording.rows(), expected_routing(model, said), range(len(said)))


def test_steps_that_cannot_be_read_are_all_counted(
    model: Any, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error costs the steps that waited: each row of them is told as unseen."""
    with attach(model, recording.recorder, held_steps=8) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            cache = begun(model)
            decode(model, 4, cache, 3)

            def fail(*_arguments: object, **_named: object) -> None:
                raise RuntimeError("no such luck")

            with monkeypatch.context() as patched:
                patched.setattr(type(probe._hook(0).family), "interpret", fail)
                decode(model, 5, cache, 7)
            decode(model, 2, cache, 12)
        assert probe.counters.errors == 1
        assert probe.counters.passed_rows == 4 + 2
    assert recording.recorder.counters().unseen_rows == 8
    assert [row.position for row in recording.rows()] == [0, 1, 2, 3, 12, 13]


def test_detach_and_a_closed_block_record_what_waits(model: Any, recording: Recording) -> None:
    """Whoever detaches in the middle of a block loses no step."""
    probe = attach(model, recording.recorder)
    probe._clock = lambda: 0.0
    with probe.request("one"), torch.no_grad():
        cache = begun(model)
        decode(model, 4, cache, 3)
        probe.detach()
        decode(model, 2, cache, 7)
    assert probe.counters.passed_rows == 7
    assert [row.position for row in recording.rows()] == list(range(7))


def test_steps_that_wait_keep_no_cache(model: Any, recording: Recording) -> None:
    """What waits are the routers' tensors alone."""
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            cache = begun(model)
            decode(model, 4, cache, 3)
            keys = weakref.ref(cache.layers[0].keys)
            del cache
            gc.collect()
            assert keys() is None
            assert probe.counters.passed_rows == 4


def test_what_waits_is_read_before_anything_changes(model: Any, recording: Recording) -> None:
    """Rows that were computed under one placement are not shipped under the next one."""
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            cache = begun(model)
            recording.recorder.set_placement([0, 1] * (EXPERTS // 2), 1)
            decode(model, 4, cache, 3)
            recording.recorder.set_placement([1, 0] * (EXPERTS // 2), 2)
            decode(model, 2, cache, 7)
    recording.recorder.close()
    with Agent(recording.folder / "rings", recording.folder / "log") as agent:
        agent.drain()
    with BatchLogReader(recording.folder / "log", "node") as reader:
        batches: list[Any] = [decode_batch(record.payload) for record in reader.read(0).records]
    versions = {
        int(position): batch.header.expert_map_version
        for batch in batches
        if batch.tokens is not None
        for position, flags in zip(batch.tokens.position, batch.tokens.flags, strict=True)
        if not flags & RowFlag.CONTEXT
    }
    assert versions == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1, 6: 1, 7: 2, 8: 2}


def test_a_recorder_that_is_closed_has_what_waited(model: Any, recording: Recording) -> None:
    """Closing the recorder inside of a block loses none of the steps before."""
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            decode(model, 6, begun(model), 3)
            recording.recorder.close()
            assert probe.counters.passed_rows == recording.recorder.counters().recorded_rows == 9


def test_a_pause_does_not_keep_steps(model: Any, recording: Recording) -> None:
    """A generation whose reader is slow: the steps before are recorded meanwhile."""
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        decode(model, 6, begun(model), 3)
        ends = time.monotonic() + 60
        while probe.counters.passed_rows < 9 and time.monotonic() < ends:
            time.sleep(0.01)
        assert probe.counters.passed_rows == 9
        assert probe.counters.errors == 0


def test_steps_behind_the_end_of_their_block_are_recorded(model: Any, recording: Recording) -> None:
    """A client that hangs up: its generation goes on in a thread, and every token is told."""
    has_begun, may_go_on = threading.Event(), threading.Event()
    gate = model.model.layers[0].mlp.gate

    def wait(_module: Any, _given: Any) -> None:
        if has_begun.is_set():
            may_go_on.wait(60)

    def compute() -> None:
        with torch.no_grad():
            cache = begun(model)
            decode(model, 3, cache, 3)
            has_begun.set()
            decode(model, 1, cache, 6)

    with attach(model, recording.recorder) as probe:
        probe._clock = lambda: 0.0
        gate.register_forward_pre_hook(wait)
        with probe.request("one"):
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=(compute,))
            thread.start()
            assert has_begun.wait(60)
            time.sleep(0.05)
        may_go_on.set()
        thread.join(60)
        assert probe.counters.errors == 0
        told = probe.counters.passed_rows + probe.counters.unattributed_rows
        assert told + recording.recorder.counters().unseen_rows == 7
        assert probe.counters.passed_rows >= 6


def test_many_clients_that_hang_up_cost_nothing(model: Any, recording: Recording) -> None:
    """Blocks are left while their passes are read in other threads: no error, nothing twice."""
    ids = torch.tensor([[5, 9, 41]])
    computed = 0
    threads = []
    with attach(model, recording.recorder) as probe:
        for number in range(40):
            with probe.request(f"r{number}"):
                context = contextvars.copy_context()
                thread = threading.Thread(
                    target=context.run,
                    args=(lambda: model.generate(ids, max_new_tokens=9, min_new_tokens=9),),
                )
                thread.start()
                threads.append(thread)
                computed += 3 + 8
                time.sleep(0.004)
        for thread in threads:
            thread.join(60)
        counters = probe.counters
        assert counters.errors == 0
        # Those of no block are told as unseen, too, while another one is open.
        assert counters.passed_rows + counters.unattributed_rows == computed
    assert recording.recorder.counters().recorded_rows == counters.passed_rows


def test_one_strange_step_costs_itself_alone(model: Any, recording: Recording) -> None:
    """A step of which a router saw fewer rows is refused; those that wait are read."""
    gates = [layer.mlp.gate for layer in model.model.layers]
    tokens = torch.tensor([[5, 9], [7, 30]])
    facts = [RequestFacts(id="a"), RequestFacts(id="b")]
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        cache = transformers.DynamicCache(config=model.config)

        def see_less(_module: Any, _given: Any) -> None:
            current: Any = probe.of_thread.current
            current.outputs[0] = tuple(part[:1] for part in current.outputs[0])

        with probe.batch(facts):
            model(tokens, attention_mask=torch.ones(2, 2, dtype=torch.long), cache=cache)
            for step in range(9):
                mask = torch.ones(2, 3 + step, dtype=torch.long)
                handle = gates[1].register_forward_pre_hook(see_less) if step == 5 else None
                model(torch.tensor([[9], [8]]), attention_mask=mask, cache=cache)
                if handle is not None:
                    handle.remove()
        assert (probe.counters.errors, probe.counters.refused_passes) == (0, 1)
    assert recording.recorder.counters().unseen_rows == 2
    positions = [row.position for row in recording.rows() if row.request == "a"]
    assert positions == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]


def test_a_step_with_a_gradient_does_not_wait(model: Any, recording: Recording) -> None:
    """What its routers returned would keep the whole graph; and it comes behind those that wait."""
    said = [5, 9, 41, *[9] * 7]
    with attach(model, recording.recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            cache = begun(model)
            for step in range(7):
                with torch.set_grad_enabled(step == 4):
                    decode(model, 1, cache, 3 + step)
                if step == 4:
                    assert probe.counters.passed_rows == 8
    rows = recording.rows()
    assert [row.position for row in rows] == list(range(10))
    assert_routed_as(rows, expected_routing(model, said), range(10))


def test_a_pass_that_fails_keeps_no_cache(model: Any, recording: Recording) -> None:
    """Who runs out of memory and drops its cache gets that memory back at once."""
    last = model.model.layers[1].mlp

    def fail(_module: Any, _given: Any) -> None:
        raise RuntimeError("out of memory")

    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        cache = begun(model)
        decode(model, 2, cache, 3)
        handle = last.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            decode(model, 1, cache, 5)
        handle.remove()
        keys = weakref.ref(cache.layers[0].keys)
        del cache
        gc.collect()
        assert keys() is None


def add_in_place(bias: Any, change: Any) -> None:
    """As a training loop without a gradient does."""
    bias.add_(change)


def write_to_data(bias: Any, change: Any) -> None:
    """As loaders of weights do: torch does not count it."""
    bias.data.copy_(bias + change)


def write_to_memory(bias: Any, change: Any) -> None:
    """As whoever shares the memory does: torch does not see it."""
    bias.detach().numpy()[:] += change.numpy()


@pytest.mark.parametrize("write", [add_in_place, write_to_data, write_to_memory])
def test_weights_that_change_amid_steps_move_no_row(write: Any, tmp_path: Path) -> None:
    """Steps that were computed with the old bias are refused; what follows is where it belongs."""
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, moe_intermediate_size=8,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=EXPERTS,
        num_experts_per_tok=3, n_group=1, topk_group=1, first_k_dense_replace=0, q_lora_rank=None,
        kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, pad_token_id=0,
        eos_token_id=None, n_shared_experts=1,
    )  # fmt: skip
    model = transformers.DeepseekV3ForCausalLM(config).eval()
    shape = router_shape(model)
    recorder = Recorder(
        model="tiny", revision="r1", layers=shape.layers, experts=shape.experts, top_k=shape.top_k,
        directory=tmp_path / "other", node="node", ring_bytes=1 << 20, rank_order=shape.rank_order,
        score_kind=shape.score_kind,
    )  # fmt: skip
    with attach(model, recorder) as probe, torch.no_grad():
        probe._clock = lambda: 0.0
        with probe.request("one"):
            cache = begun(model)
            decode(model, 5, cache, 3)
            for layer in model.model.layers:
                write(layer.mlp.gate.e_score_correction_bias, torch.linspace(-3, 3, EXPERTS))
            decode(model, 3, cache, 8)
        assert (probe.counters.errors, probe.counters.refused_passes) == (0, 5)
    assert recorder.counters().unseen_rows == 5
    recorder.close()
    with Agent(tmp_path / "other", tmp_path / "log") as agent:
        agent.drain()
    with BatchLogReader(tmp_path / "log", "node") as reader:
        batches: list[Any] = [decode_batch(record.payload) for record in reader.read(0).records]
    positions = sorted(
        int(position)
        for batch in batches
        if batch.tokens is not None
        for position, flags in zip(batch.tokens.position, batch.tokens.flags, strict=True)
        if not flags & RowFlag.CONTEXT
    )
    assert positions == [0, 1, 2, 3, 9, 10]
