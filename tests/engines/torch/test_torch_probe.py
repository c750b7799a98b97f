from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import (
    EXPERTS,
    TOP_K,
    Recording,
    assert_routed_as,
    expected_routing,
    make_model,
)

from moescope.core.errors import InputError
from moescope.core.vocabulary import Phase
from moescope.producers import Recorder, attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["olmoe", "mixtral"])
def model(request: pytest.FixtureRequest) -> Any:
    """Both families."""
    return make_model(request.param)


SEQUENCES = [[5, 9, 11, 2, 40, 17, 33], [7, 7, 21], [12, 30, 8, 44, 3]]
FACTS = [RequestFacts(id=f"request-{n}", scene="code", task=f"task-{n}") for n in range(3)]


def padded(side: str) -> tuple[Any, Any]:
    """The sequences as one batch, and its mask."""
    width = max(map(len, SEQUENCES))
    ids, mask = [], []
    for sequence in SEQUENCES:
        fill = [0] * (width - len(sequence))
        ids.append(fill + sequence if side == "left" else sequence + fill)
        ones = [1] * len(sequence)
        mask.append(fill + ones if side == "left" else ones + fill)
    return torch.tensor(ids), torch.tensor(mask)


def test_ids_entropy_margin_and_weights_are_the_routers(model: Any, tmp_path: Path) -> None:
    """The probe's numbers are those of the formulas, computed from hidden states alone."""
    recording = Recording(model, tmp_path)
    with attach(model, recording.recorder, weights=True) as probe, torch.no_grad():
        with probe.request("one", scene="prose"):
            model(torch.tensor([SEQUENCES[0]]))
        assert probe.counters.passed_rows == len(SEQUENCES[0])
    rows = recording.rows()
    expected = expected_routing(model, SEQUENCES[0])
    assert_routed_as(rows, expected, range(len(SEQUENCES[0])))
    for row in rows:
        for layer, weights in enumerate(row.weights):
            wanted = expected[row.position]
            assert weights == pytest.approx(
                dict(zip(wanted.order[layer].tolist(), wanted.weights[layer], strict=True)),
                rel=2e-3,
            )


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_left_out(model: Any, tmp_path: Path, side: str, verified: Any) -> None:
    """Each request of a padded batch is recorded as if it had been computed alone."""
    recording = Recording(model, tmp_path)
    ids, mask = padded(side)
    with attach(model, recording.recorder) as probe, torch.no_grad():
        with probe.batch(FACTS):
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            model(input_ids=ids, attention_mask=mask, position_ids=positions)
        assert probe.counters.padding_rows == int((mask == 0).sum())
    rows = recording.rows()
    for facts, sequence in zip(FACTS, SEQUENCES, strict=True):
        mine = [row for row in rows if row.request == facts.id]
        assert_routed_as(mine, expected_routing(model, sequence), range(len(sequence)))
        assert {row.phase for row in mine} == {Phase.PREFILL}
    verified(subject="torch probe", what=f"padding on the {side}")


def test_generate_with_cache_is_prefill_then_decode(
    model: Any, tmp_path: Path, verified: Any
) -> None:
    """Decode steps on a key-value cache continue each request where its own prompt ended."""
    recording = Recording(model, tmp_path)
    ids, mask = padded("left")
    with attach(model, recording.recorder) as probe, probe.batch(FACTS):
        generated = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=6, min_new_tokens=6
        )
    rows = recording.rows()
    for number, (facts, prompt) in enumerate(zip(FACTS, SEQUENCES, strict=True)):
        whole = prompt + generated[number, ids.shape[1] :].tolist()
        mine = [row for row in rows if row.request == facts.id]
        assert_routed_as(mine, expected_routing(model, whole), range(len(whole) - 1))
        decoded = [row.position for row in mine if row.phase is Phase.DECODE]
        assert decoded == list(range(len(prompt), len(whole) - 1))
    verified(subject="torch probe", what="generate on a cache")


def test_rows_behind_the_end_token_are_left_out(model: Any, tmp_path: Path, verified: Any) -> None:
    """`generate` goes on feeding finished rows under a mask of ones: they are no tokens."""
    prompts = torch.tensor([[5, 9, 11], [7, 7, 21]])
    free = model.generate(prompts, do_sample=False, max_new_tokens=8)
    end = int(free[0, 4])
    until = [row[3:].tolist().index(end) if end in row[3:] else 8 for row in free]
    model.generation_config.eos_token_id = end
    recording = Recording(model, tmp_path)
    with attach(model, recording.recorder) as probe, probe.batch(FACTS[:2]):
        model.generate(prompts, do_sample=False, max_new_tokens=8)
    rows = recording.rows()
    for facts, length in zip(FACTS, until, strict=False):
        mine = [row for row in rows if row.request == facts.id]
        # The last generated token is never fed; an end token is fed, but an engine would not.
        assert len(mine) == 3 + min(length, 7)
    verified(subject="torch probe", what="rows behind the end token")


def test_a_copied_prefix_cache_is_not_recorded(model: Any, tmp_path: Path, verified: Any) -> None:
    """With a prefix's key-value cache only what follows is computed, and recorded so."""
    from transformers import DynamicCache

    recording = Recording(model, tmp_path)
    whole = SEQUENCES[0]
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.tensor([whole[:4]]), cache=cache, use_cache=True)
        with attach(model, recording.recorder) as probe, probe.request("late"):
            model(torch.tensor([whole[4:]]), cache=cache, use_cache=True)
    assert_routed_as(recording.rows(), expected_routing(model, whole), range(4, len(whole)))
    verified(subject="torch probe", what="cached prefix")


def test_gradient_checkpointing_records_each_row_once(model: Any, tmp_path: Path) -> None:
    """A layer that is computed again for the gradient is not a second token."""
    recording = Recording(model, tmp_path)
    model.train()
    model.activation_checkpointing_enable()
    with attach(model, recording.recorder) as probe:
        with probe.batch(FACTS[:1], phase=Phase.TRAIN, step=4):
            ids = torch.tensor([SEQUENCES[0]])
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        assert probe.counters.passed_rows == len(SEQUENCES[0])
        assert probe.counters.errors == 0
    assert {row.phase for row in recording.rows()} == {Phase.TRAIN}


def test_detach_restores_the_model(model: Any, tmp_path: Path, verified: Any) -> None:
    """After a probe the model has no hook left, and gives the same output."""
    recording = Recording(model, tmp_path)
    ids = torch.tensor([SEQUENCES[0]])
    hooks = [(m._forward_hooks.copy(), m._forward_pre_hooks.copy()) for m in model.modules()]
    with torch.no_grad():
        before = model(ids).logits
        with attach(model, recording.recorder) as probe, probe.request("one"):
            during = model(ids).logits
        after = model(ids).logits
    assert torch.equal(before, during)
    assert torch.equal(before, after)
    assert [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()] == hooks
    assert len(recording.rows()) == len(SEQUENCES[0])
    verified(subject="torch probe", what="detach")


def test_errors_never_reach_the_model(
    model: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A batch of the wrong size and a pass that nobody announced: counted, said once."""
    recording = Recording(model, tmp_path)
    ids = torch.tensor([SEQUENCES[0]])
    with attach(model, recording.recorder) as probe, torch.no_grad():
        model(ids)
        with probe.batch(FACTS):
            model(ids)
            model(ids)
        assert probe.counters.unattributed_rows == len(SEQUENCES[0])
        assert probe.counters.refused_passes == 2
        assert probe.counters.errors == 0
    assert len([r for r in caplog.records if "1 for 3" in r.message]) == 1
    assert recording.rows() == []


def test_attach_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    """A wrong description of the model shows at the start, not as wrong counts later."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    with pytest.raises(InputError, match="does not know the router"):
        attach(torch.nn.Linear(2, 2), recording.recorder)
    with pytest.raises(InputError, match="does not describe this model"):
        attach(
            model,
            Recorder(
                model="m", revision="r", layers=[0], experts=EXPERTS, top_k=TOP_K,
                directory=tmp_path / "other", ring_bytes=1 << 20, rank_order="selection_score",
            ),
        )  # fmt: skip
    recording.recorder.close()
