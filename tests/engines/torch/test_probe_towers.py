"""Encoder-decoder models: a probe for each tower, and a capacity that drops rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording

from moescope.core.errors import InputError
from moescope.core.vocabulary import Phase
from moescope.producers import attach
from moescope.producers.torch_probe import RequestFacts

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS, LAYERS = 8, 2
SOURCES = [[5, 9, 11, 2, 40, 17, 33], [7, 7, 21, 30]]
WIDTH = max(map(len, SOURCES))
IDS = torch.tensor([source + [0] * (WIDTH - len(source)) for source in SOURCES])
MASK = torch.tensor([[1] * len(s) + [0] * (WIDTH - len(s)) for s in SOURCES])
FACTS = [RequestFacts(id="long"), RequestFacts(id="short")]
NEW_TOKENS = 5


@pytest.fixture
def model() -> Any:
    """A tiny Switch Transformer whose layers all have experts."""
    torch.manual_seed(3)
    config = transformers.SwitchTransformersConfig(
        vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_heads=2, num_layers=LAYERS,
        num_decoder_layers=LAYERS, num_sparse_encoder_layers=LAYERS,
        num_sparse_decoder_layers=LAYERS, num_experts=EXPERTS, expert_capacity=64,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    whole = transformers.SwitchTransformersForConditionalGeneration(config).eval()
    for name, weight in whole.named_parameters():
        if "router.classifier" in name:
            torch.nn.init.normal_(weight, std=0.7)
    return whole


class Chosen:
    """What each router of a tower chose, by its own account: the largest logit of each row."""

    def __init__(self, tower: Any) -> None:
        self.by_layer: list[list[int]] = []
        classifiers = [m for n, m in tower.named_modules() if n.endswith("router.classifier")]
        for place, classifier in enumerate(classifiers):
            self.by_layer.append([])
            classifier.register_forward_hook(self._remember(place))

    def _remember(self, place: int) -> Any:
        def remember(_module: Any, _args: Any, logits: Any) -> None:
            self.by_layer[place].extend(logits.flatten(0, -2).argmax(-1).tolist())

        return remember

    def of_row(self, row: int) -> list[set[int]]:
        """By layer."""
        return [{chosen[row]} for chosen in self.by_layer]


def generated(model: Any) -> None:
    """A few tokens for each source."""
    model.generate(
        IDS, attention_mask=MASK, do_sample=False, min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
    )  # fmt: skip


def test_an_encoder_is_recorded_as_prefill(model: Any, tmp_path: Path, verified: Any) -> None:
    """Its pass inside of a generation has the sources' tokens, without their padding."""
    encoder = model.get_encoder()
    recording = Recording(encoder, tmp_path)
    chosen = Chosen(encoder)
    with attach(encoder, recording.recorder) as probe:
        with probe.batch(FACTS):
            generated(model)
        assert probe.counters.errors == probe.counters.refused_passes == 0
        assert probe.counters.padding_rows == WIDTH - len(SOURCES[1])
    rows = recording.rows()
    for number, (facts, source) in enumerate(zip(FACTS, SOURCES, strict=True)):
        mine = [row for row in rows if row.request == facts.id]
        assert [row.position for row in mine] == list(range(len(source)))
        assert {row.phase for row in mine} == {Phase.PREFILL}
        for row in mine:
            assert row.experts == chosen.of_row(number * WIDTH + row.position)
    verified(subject="torch probe", what="encoder of an encoder-decoder model")


def test_a_decoder_is_recorded_step_by_step(model: Any, tmp_path: Path, verified: Any) -> None:
    """Its first token is the prompt, each further one a decode step; sources are not its rows."""
    decoder = model.get_decoder()
    recording = Recording(decoder, tmp_path)
    chosen = Chosen(decoder)
    with attach(decoder, recording.recorder) as probe:
        with probe.batch(FACTS):
            generated(model)
        assert probe.counters.errors == probe.counters.refused_passes == 0
    rows = recording.rows()
    for number, facts in enumerate(FACTS):
        mine = [row for row in rows if row.request == facts.id]
        assert [row.position for row in mine] == list(range(NEW_TOKENS))
        assert [row.phase for row in mine] == [Phase.PREFILL] + [Phase.DECODE] * (NEW_TOKENS - 1)
        for row in mine:
            assert row.experts == chosen.of_row(row.position * len(FACTS) + number)
    verified(subject="torch probe", what="decoder of an encoder-decoder model")


def test_both_at_once_are_refused(model: Any, tmp_path: Path) -> None:
    """The whole model has passes of two kinds, which one recorder cannot tell apart."""
    recording = Recording(model.get_encoder(), tmp_path)
    with pytest.raises(InputError, match="encoder and decoder"):
        attach(model, recording.recorder)
