from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")
pytest.importorskip("accelerate", reason="`make engines` has accelerate")

from engines.torch.training_oracle import (
    EVALUATED,
    LENGTH,
    Labels,
    make_dense_model,
    make_model,
    make_recorder,
    make_trainer,
    recorded,
)

from moescope.core.errors import InputError
from moescope.core.vocabulary import Phase
from moescope.producers.training import RoutingCallback

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path


Module: Any = torch.nn.Module


def trained(computed: Counter[Labels]) -> int:
    """How many rows were trained on."""
    return sum(rows for labels, rows in computed.items() if labels.phase is Phase.TRAIN)


def has_hooks(model: Any) -> bool:
    """Whether anything is hooked onto a model."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


@pytest.mark.parametrize("trainings", [1, 3])
def test_the_model_that_a_trainer_makes_is_the_one_that_is_recorded(
    tmp_path: Path, trainings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """`model_init` makes another model for each `train()`; steps done anew keep names apart."""
    made: list[weakref.ref[Any]] = []

    def make() -> Any:
        model = make_model()
        made.append(weakref.ref(model))
        return model

    recorder = make_recorder(tmp_path)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        trainer = make_trainer(
            tmp_path, callback, model_init=make, max_steps=3, eval_strategy="steps", eval_steps=2
        )
        for _ in range(trainings):
            trainer.train()
        assert len(made) == 1 + trainings
        gc.collect()
        assert [model() is not None for model in made] == [False] * trainings + [True]
        model = trainer.model
    assert not has_hooks(model)
    assert recorder.counters().unseen_rows == 0
    assert recorded(recorder, tmp_path) == trainer.computed
    said = [record for record in caplog.records if "is trained behind step" in record.message]
    assert len(said) == (trainings > 1)


def test_a_callback_goes_on_to_another_trainer(tmp_path: Path) -> None:
    """What trains is recorded; what does not any more still runs, and its rows are counted."""
    recorder = make_recorder(tmp_path)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        first = make_trainer(tmp_path, callback, model=make_model(), max_steps=2)
        first.train()
        second = make_trainer(tmp_path, callback, model=make_model(), max_steps=3)
        second.evaluate()
        second.train()
        first_only = first.computed.copy()
        first.evaluate()
        assert recorder.counters().unseen_rows == EVALUATED * LENGTH
        first.computed = first_only
        first.train()
    assert not has_hooks(first.model)
    assert not has_hooks(second.model)
    assert recorded(recorder, tmp_path) == first.computed + second.computed


def test_a_run_is_resumed(tmp_path: Path) -> None:
    """From a checkpoint steps go on where they were, on the model that is made anew."""
    recorder = make_recorder(tmp_path)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
        first = make_trainer(
            tmp_path, callback, model_init=lambda: make_model(8), max_steps=4, **settings
        )
        first.train()
        second = make_trainer(
            tmp_path, callback, model_init=lambda: make_model(8), max_steps=7, **settings
        )
        second.train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    assert {labels.step for labels in second.computed} == {2, 3, 4, 5, 6}
    assert recorded(recorder, tmp_path) == first.computed + second.computed


def test_a_trial_with_other_routers_trains_and_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A search may try another number of experts: training goes on, its rows are unseen."""
    sizes = iter([8, 8, 4, 8])
    recorder = make_recorder(tmp_path)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        trainer = make_trainer(
            tmp_path, callback, model_init=lambda: make_model(next(sizes)), max_steps=2
        )
        trainer.train()
        seen = trainer.computed.copy()
        trainer.train()
        unseen = trained(trainer.computed - seen)
        assert unseen > 0
        assert callback.probe is None
        assert recorder.counters().unseen_rows == unseen
        trainer.computed = seen
        trainer.train()
        assert callback.probe is not None
    assert "The recorder does not describe this model" in caplog.text
    assert recorder.counters().unseen_rows == unseen
    assert recorded(recorder, tmp_path) == trainer.computed


def test_a_model_without_experts_is_refused_at_once(tmp_path: Path) -> None:
    """Who sets up a dense model is told so before anything trains; the model stays as it was."""
    recorder = make_recorder(tmp_path)
    dense = make_dense_model()
    with pytest.raises(InputError, match="does not know the router"):
        make_trainer(tmp_path, RoutingCallback(recorder, run="run"), model=dense)
    assert not has_hooks(dense)
    recorder.close()


def test_a_model_without_experts_trains_once_training_has_begun(tmp_path: Path) -> None:
    """A callback that comes when nothing may raise any more counts what it cannot record."""
    recorder = make_recorder(tmp_path)
    dense = make_dense_model()
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        trainer = make_trainer(tmp_path, model=dense, max_steps=2)
        trainer.add_callback(callback)
        trainer.train()
        assert recorder.counters().unseen_rows == trained(trainer.computed) > 0
    assert not has_hooks(dense)
    assert not recorded(recorder, tmp_path)


def test_a_model_that_is_wrapped_is_recorded_once(tmp_path: Path) -> None:
    """What data-parallel libraries put around a model is no other model."""

    class Wrapper(Module):  # type: ignore[misc]  # torch has no types here
        """As they do it."""

        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **inputs: Any) -> Any:
            """The model's own."""
            return self.module(*args, **inputs)

    recorder = make_recorder(tmp_path)
    model, tokens = make_model().train(), torch.ones(2, LENGTH, dtype=torch.long)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        trainer = make_trainer(tmp_path, callback, model=model)
        wrapped = Wrapper(model)
        callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=wrapped)
        wrapped(tokens, source=["code", "json"])
    sources = {labels.source: rows for labels, rows in recorded(recorder, tmp_path).items()}
    assert sources == {"code": LENGTH, "json": LENGTH}


def test_replicas_of_one_process_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DataParallel computes with copies of a model, in threads: told, and not mixed up."""
    recorder = make_recorder(tmp_path)
    model, tokens = make_model().train(), torch.ones(2, LENGTH, dtype=torch.long)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        callback.on_init_end(None, None, None, model=model)
        model._replicate_for_data_parallel()(tokens, source=["code", "json"])
    assert recorder.counters().unseen_rows == tokens.numel()
    assert "a replica of DataParallel" in caplog.text
    assert not recorded(recorder, tmp_path)
