from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")
pytest.importorskip("accelerate", reason="`make engines` has accelerate")

from engines.torch.training_oracle import (
    LENGTH,
    SEQUENCES,
    OracleTrainer,
    make_model,
    make_recorder,
    make_trainer,
    recorded,
)

from moescope.core.vocabulary import Phase
from moescope.producers.training import RoutingCallback

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINTING: dict[str, dict[str, Any]] = {
    "plain": {},
    "reentrant": {"activation_checkpointing": True,
                  "activation_checkpointing_kwargs": {"use_reentrant": True}},
    "without reentrance": {"activation_checkpointing": True,
                           "activation_checkpointing_kwargs": {"use_reentrant": False}},
    "bfloat16": {"bf16": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", CHECKPOINTING)
def test_labels_are_those_of_the_trainers_own_steps(tmp_path: Path, kind: str) -> None:
    """Over an epoch's end, with a shorter last step and evaluation amid training, each is right."""
    recorder = make_recorder(tmp_path)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        trainer = make_trainer(
            tmp_path, callback, model=make_model(), eval_strategy="steps", eval_steps=2,
            **CHECKPOINTING[kind],
        )  # fmt: skip
        trainer.train()
    assert {labels.phase for labels in trainer.computed} == {Phase.TRAIN, Phase.EVAL}
    assert recorder.counters().unseen_rows == 0
    assert recorded(recorder, tmp_path) == trainer.computed


class Looking(OracleTrainer):
    """Computes each micro-batch once more without a gradient, as for log-probabilities."""

    def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any, **known: Any) -> Any:
        """A look at the batch, in training mode, then the step."""
        model.train()
        self.note(inputs, Phase.EVAL)
        with torch.no_grad():
            model(**inputs)
        return super().training_step(model, inputs, *rest, **known)


def test_what_is_computed_without_a_gradient_is_no_training(tmp_path: Path) -> None:
    """A look at a batch amid a step changes no weight: its rows are not counted as trained on."""
    recorder = make_recorder(tmp_path)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        trainer = make_trainer(tmp_path, callback, model=make_model(), kind=Looking, max_steps=3)
        trainer.train()
    assert recorded(recorder, tmp_path) == trainer.computed


def test_training_goes_on_behind_a_step_that_failed(tmp_path: Path) -> None:
    """A pass that breaks off leaves no label open: what follows is labelled as what it is."""
    recorder = make_recorder(tmp_path)
    model = make_model()
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        trainer = make_trainer(tmp_path, callback, model=model, max_steps=3)
        fails = model.model.layers[1].register_forward_pre_hook(_fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            trainer.train()
        fails.remove()
        trainer.computed.clear()  # no pass was whole
        trainer.evaluate()
        trainer.train()
    assert recorded(recorder, tmp_path) == trainer.computed


def _fail(*_args: Any) -> None:
    raise RuntimeError("out of memory")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_model_is_not_compiled_for_each_micro_batch(tmp_path: Path) -> None:
    """Labels differ from pass to pass: a compiler that took them for constants would never end."""
    recorder = make_recorder(tmp_path)
    torch.compiler.reset()
    with (
        torch._dynamo.config.patch(fail_on_recompile_limit_hit=True),
        RoutingCallback(recorder, run="run", source_column="source") as callback,
    ):
        trainer = make_trainer(
            tmp_path, callback, model=make_model(), torch_compile=True,
            torch_compile_backend="eager",
        )  # fmt: skip
        trainer.train()
    torch.compiler.reset()
    assert recorded(recorder, tmp_path) == trainer.computed


def test_a_watched_model_can_be_copied_and_saved(tmp_path: Path) -> None:
    """Averages of weights and reference models are copies: they work, and are not recorded."""
    recorder = make_recorder(tmp_path)
    model, tokens = make_model(), torch.ones(2, LENGTH, dtype=torch.long)
    with RoutingCallback(recorder, run="run") as callback:
        callback.on_init_end(None, None, None, model=model)
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        for twin in (copy.deepcopy(model), torch.load(saved, weights_only=False)):
            assert torch.equal(twin(tokens).logits, model(tokens).logits)
    assert sum(recorded(recorder, tmp_path).values()) == 2 * tokens.numel()


def test_packed_sequences_without_positions_are_counted_not_mixed(tmp_path: Path) -> None:
    """A collator may tell where texts begin in another way: they are not taken for one text."""
    collator = transformers.DataCollatorWithFlattening(
        return_tensors="pt", return_position_ids=False, return_flash_attn_kwargs=True
    )
    batch = collator([{"input_ids": [5, 9, 11]}, {"input_ids": [7, 7, 21, 3]}])
    recorder = make_recorder(tmp_path)
    model = make_model().train()
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        callback.on_init_end(None, None, None, model=model)
        model(**batch, source=["code", "prose"])
    assert recorder.counters().unseen_rows == 7
    assert not recorded(recorder, tmp_path)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["code", None, "json"], ["code", "unknown", "json"]),
        (torch.tensor([4, 0, 4]), ["4", "0", "4"]),
        ("abc", ["unknown"] * 3),
        (["x" * 600, "", "code"], ["unknown", "", "code"]),
    ],
    ids=["one is missing", "numbers", "one text", "too long"],
)
def test_sources_are_told_as_well_as_they_are_known(
    tmp_path: Path, given: Any, wanted: list[str]
) -> None:
    """Sources of any kind cost no row, and none is made up."""
    recorder = make_recorder(tmp_path)
    model = make_model().train()
    tokens = torch.arange(1, SEQUENCES + 1)[:, None].expand(-1, LENGTH)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        callback.on_init_end(None, None, None, model=model)
        model(tokens, source=given)
    rows = recorded(recorder, tmp_path)
    assert {labels.text: labels.source for labels in rows} == dict(enumerate(wanted, 1))
    assert sum(rows.values()) == tokens.numel()
