from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from engines.families.attached import Rows, assert_as_before, recorded, state_of
from engines.families.family_oracle import Wanted, assert_received, wanted_routing, watching
from engines.families.padded_batch import ENCODER_DECODER, MASK, REQUESTS, run, tower_of
from engines.families.tiny_families import FAMILIES, NOT_READ
from engines.families.tiny_models import (
    build,
    families_in_transformers,
    folder_of,
    version,
    version_of,
)

from moescope.core.errors import InputError
from moescope.core.vocabulary import Phase, RankOrder, ScoreKind
from moescope.producers.torch_probe import ProbeCounters
from moescope.producers.torch_probe.families import find_routers, router_shape
from moescope.producers.torch_probe.families.stacked import StackedPasses
from moescope.producers.torch_probe.steps import copied_parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PRESENT = families_in_transformers()


def probed(tower: Any, forward: Callable[[], Any]) -> tuple[Any, Any]:
    """What the families' hooks and arithmetic make of one forward, and its output."""
    routers = find_routers(tower)
    captured: dict[int, Any] = {}

    def hook(layer: int, family: Any) -> Any:
        def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            captured[layer] = family.capture(module, args, kwargs, output)

        return after

    handles = [
        r.module.register_forward_hook(hook(r.layer, r.family), with_kwargs=True) for r in routers
    ]
    output = forward()
    for handle in handles:
        handle.remove()
    interpret, modules = routers[0].family.interpret, [router.module for router in routers]
    tensors = [captured[router.layer] for router in routers]
    routing, alone = (
        interpret(modules, tensors),
        interpret(modules, tensors, scores=False, weights=False),
    )
    assert torch.equal(alone.expert_ids, routing.expert_ids)
    assert alone.weights is alone.entropy is alone.margin is None
    if routing.dropped is not None:
        assert torch.equal(alone.dropped, routing.dropped)
    for scores, weights, wanted in ((True, True, routing), (False, False, alone)):
        assert_read_together(
            routers[0].family, modules, tensors, wanted, scores=scores, weights=weights
        )
    return routing, output


def assert_read_together(
    family: Any, modules: list[Any], captured: list[Any], wanted: Any, *, scores: Any, weights: Any
) -> None:
    """Passes that are copied and read together are read as each alone."""
    asked = {"scores": scores, "weights": weights}
    parts = copied_parts(captured, family.parts_read(captured[0], **asked))
    twice = family.interpret(modules * 2, StackedPasses([parts, parts], len(modules)), **asked)
    for found, each in zip(twice, wanted, strict=True):
        assert (found is None) == (each is None)
        if each is not None:
            torch.testing.assert_close(found, torch.cat([each, each], 1), rtol=1e-6, atol=1e-6)


def assert_told_of_tokens(rows: Rows, counters: ProbeCounters) -> None:
    """Each token has a row of its own request and position, padding has none, nothing failed."""
    lengths = MASK.sum(-1).tolist()
    assert rows.request == [r for r, n in zip(REQUESTS, lengths, strict=True) for _ in range(n)]
    assert rows.position == [position for length in lengths for position in range(length)]
    assert set(rows.phase) == {Phase.PREFILL}
    assert counters == ProbeCounters(
        passed_rows=sum(lengths), padding_rows=MASK.numel() - sum(lengths)
    )


def assert_recorded(rows: Rows, row: int, wanted: Wanted, routing: Any, experts: int) -> None:
    """One layer's recorded rows are what its router had to decide.

    What the formulas do not tell (weights of some families, dropped assignments) is as `routing`
    has it, which the experts' inputs were compared with.
    """
    tokens = MASK.flatten().bool().numpy()
    ids = wanted.ids[tokens]
    order = ids.argsort(-1)
    np.testing.assert_array_equal(rows.ids[:, row], np.take_along_axis(ids, order, -1))
    np.testing.assert_array_equal(rows.top1[:, row], ids[:, 0])
    weights = wanted.weights
    if weights is None:
        weights = routing.weights[:, row].numpy()
    # Half precision.
    np.testing.assert_allclose(
        rows.weights[:, row], np.take_along_axis(weights[tokens], order, -1), rtol=1e-3, atol=1e-6
    )
    dropped = np.zeros_like(ids, bool)
    if routing.dropped is not None:
        dropped = np.take_along_axis(routing.dropped[:, row].numpy()[tokens], order, -1)
    np.testing.assert_array_equal(rows.dropped[:, row], dropped)
    # 8 bits: a linear scale up to the largest entropy, and a logarithmic one from 0.0006 on.
    np.testing.assert_allclose(
        rows.entropy[:, row], wanted.entropy[tokens], atol=np.log(experts) / 500
    )
    np.testing.assert_allclose(rows.margin[:, row], wanted.margin[tokens], rtol=0.02, atol=6e-4)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_family_is_read_as_its_experts_were_called(
    name: str, tmp_path: Path, verified: Any, not_verified: Any
) -> None:
    """By arithmetic and by `attach`: what the experts got, and what the formulas give."""
    if folder_of(name) not in PRESENT:
        pytest.skip(f"not in transformers {transformers.__version__}")
    family = FAMILIES[name]
    if family.broken and version_of(family.broken[0]) <= version() < version_of(family.broken[1]):
        why = f"transformers {transformers.__version__} itself fails on it"
        not_verified(subject=name, what="routing", why=why)
        return
    tower = tower_of(name, build(name))
    shape = router_shape(tower)
    assert (shape.layers, shape.experts, shape.top_k) == (
        family.layers, family.experts, family.top_k,
    )  # fmt: skip
    assert shape.score_kind is ScoreKind[family.spec.kind]
    assert shape.rank_order is RankOrder.SELECTION_SCORE
    alone = run(name, tower)
    before = state_of(tower)
    rows, counters, recorded_output = recorded(tower, lambda: run(name, tower), REQUESTS, tmp_path)
    assert_as_before(tower, before)
    assert torch.equal(alone, recorded_output)
    assert_told_of_tokens(rows, counters)
    with watching(tower, family) as seen:
        routing, output = probed(tower, lambda: run(name, tower))
    assert torch.equal(alone, output)
    assert torch.equal(alone, run(name, tower))
    assert_as_before(tower, before)
    for row, layer in enumerate(family.layers):
        ids, weights = routing.expert_ids[:, row], routing.weights[:, row]
        dropped = None if routing.dropped is None else routing.dropped[:, row]
        if family.executes_something_else and version() >= (5, 0):
            # NLLB hands the top-1 mask over where ids belong: experts 0 and 1 compute all.
            assert set(seen[layer].rows_of) == {0, 1}
            why = "the experts get a mask of zeros and ones as ids: they compute other rows"
            not_verified(subject=name, what="execution as routed", why=why)
        else:
            called = ids
            if family.last_is_none:
                none = family.experts - 1
                assert (routing.expert_ids == none).any()
                assert (weights[ids == none] == 0).all()
                called = ids.masked_fill(ids == none, 0)
            assert_received(seen[layer], called, weights, dropped, family.experts)
        wanted = wanted_routing(seen[layer], family)
        # Some models set padding rows to zero: then all experts tie.
        tokens = MASK.flatten().bool().numpy()
        np.testing.assert_array_equal(ids[tokens], wanted.ids[tokens])
        if wanted.weights is not None:
            np.testing.assert_allclose(
                weights[tokens], wanted.weights[tokens], rtol=2e-5, atol=1e-6
            )
        np.testing.assert_allclose(routing.entropy[:, row], wanted.entropy, atol=1e-5)
        np.testing.assert_allclose(routing.margin[:, row], wanted.margin, atol=1e-5)
        assert_recorded(rows, row, wanted, routing, family.experts)
    for what in ("ids", "weights", "entropy", "margin", "rank order", "detach"):
        verified(subject=name, what=what)
    if family.left_out is not None:
        what, why = family.left_out
        not_verified(subject=name, what=what, why=why)


def test_every_family_of_this_version_is_read_or_refused_with_a_reason(not_verified: Any) -> None:
    """Every MoE family is a fact: a scan of the sources finds none that nobody looked at."""
    assert set(PRESENT) - set(map(folder_of, FAMILIES)) - set(NOT_READ) == set()
    assert len(PRESENT) >= 28
    for name in sorted(set(PRESENT) & set(NOT_READ)):
        not_verified(subject=name, what="routing", why=NOT_READ[name])


@pytest.mark.parametrize("name", ENCODER_DECODER)
def test_an_encoder_and_a_decoder_need_probes_of_their_own(name: str) -> None:
    """Their passes have different rows: one recorder for both would mix them."""
    model = build(name)
    with pytest.raises(InputError, match=r"encoder"):
        find_routers(model)
    assert router_shape(model.get_decoder()).layers == FAMILIES[name].layers


def test_a_dense_model_is_refused() -> None:
    """Nothing is made up for a model without experts."""
    dense = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
        )
    )  # fmt: skip
    with pytest.raises(InputError, match="does not know the router"):
        find_routers(dense)
