from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from moescope.core.batch_checks import BatchError
from moescope.core.batchlog import BatchLogReader
from moescope.core.vocabulary import Phase, RowFlag
from moescope.core.wire import decode_batch
from moescope.producers import Recorder, attach
from moescope.producers.agent import Agent
from moescope.producers.torch_probe import router_shape
from moescope.producers.training import RoutingCallback, TrainingLoop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LENGTH, SEQUENCES, MICRO_BATCHES, STEPS = 6, 2, 2, 3
SOURCES = ("code", "prose", "json")


def make_model() -> Any:
    """A tiny random OLMoE, the same each time."""
    torch.manual_seed(5)
    config = transformers.OlmoeConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, num_experts=8, num_experts_per_tok=3,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.OlmoeForCausalLM(config)


def make_recorder(model: Any, folder: Path) -> Recorder:
    """A recorder for it."""
    shape = router_shape(model)
    return Recorder(
        model="tiny", revision="r1", layers=shape.layers, experts=shape.experts,
        top_k=shape.top_k, directory=folder / "ring", node="node", ring_bytes=1 << 20,
        rank_order="selection_score",
    )  # fmt: skip


def recorded(recorder: Recorder, folder: Path) -> Iterator[tuple[str, str, Phase, int, int]]:
    """Request, scene, phase, step and position of each row that counts."""
    recorder.close()
    with Agent(folder / "ring", folder / "log") as agent:
        agent.drain()
    with BatchLogReader(folder / "log", "node") as reader:
        batches = [decode_batch(record.payload) for record in reader.read(0).records]
    for batch in batches:
        tokens = batch.tokens
        if tokens is None:
            continue
        assert tokens.step is not None
        for row in np.flatnonzero((tokens.flags & RowFlag.CONTEXT) == 0).tolist():
            request = int(tokens.request[row])
            yield (
                batch.requests.ids[request],
                batch.requests.scenes[request],
                Phase(int(tokens.phase[row])),
                int(tokens.step[row]),
                int(tokens.position[row]),
            )


class Sequences:
    """Random sequences, each with its source."""

    def __init__(self, count: int) -> None:
        tokens = np.random.default_rng(7).integers(1, 40, (count, LENGTH))
        self._tokens = torch.from_numpy(tokens)

    def __len__(self) -> int:
        """How many."""
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One of them."""
        tokens = self._tokens[index]
        return {"input_ids": tokens, "labels": tokens, "source": SOURCES[index % 3]}


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch that keeps the sources."""
    return {
        "input_ids": torch.stack([sample["input_ids"] for sample in samples]),
        "labels": torch.stack([sample["labels"] for sample in samples]),
        "source": [sample["source"] for sample in samples],
    }


def train(model: Any, folder: Path, *callbacks: Any, checkpointing: bool = False) -> Any:
    """Train for a few steps with transformers' trainer, in the order of the data."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=SEQUENCES,
        gradient_accumulation_steps=MICRO_BATCHES, learning_rate=1e-2, use_cpu=True,
        remove_unused_columns=False, save_strategy="no", report_to=[], disable_tqdm=True,
        logging_strategy="no", activation_checkpointing=checkpointing, seed=3,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=arguments, data_collator=collate, callbacks=[*callbacks],
        train_dataset=Sequences(SEQUENCES * MICRO_BATCHES * STEPS),
        eval_dataset=Sequences(SEQUENCES),
    )  # fmt: skip
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(
        trainer.train_dataset
    )
    trainer.train()
    return trainer


def drop_sources(_model: Any, args: Any, inputs: dict[str, Any]) -> Any:
    """Take the sources out for a model that nobody watches."""
    inputs.pop("source", None)
    return args, inputs


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_trainer_records_steps_micro_batches_and_sources(
    tmp_path: Path, verified: Any, *, checkpointing: bool
) -> None:
    """Each token of each micro-batch counts once, in its step, as its source, however it trains."""
    model = make_model()
    recorder = make_recorder(model, tmp_path)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        trainer = train(model, tmp_path, callback, checkpointing=checkpointing)
        trainer.evaluate()
    rows = [*recorded(recorder, tmp_path)]
    per_step = SEQUENCES * MICRO_BATCHES
    expected = Counter(
        (
            f"run.rank-0.step-{step}.micro-{micro}.row-{row}",
            SOURCES[(step * per_step + micro * SEQUENCES + row) % 3],
            Phase.TRAIN,
            step,
            position,
        )
        for step in range(STEPS)
        for micro in range(MICRO_BATCHES)
        for row in range(SEQUENCES)
        for position in range(LENGTH)
    )
    assert Counter(row for row in rows if row[2] is Phase.TRAIN) == expected
    assert Counter(row[:3] for row in rows if row[2] is not Phase.TRAIN) == {
        (f"run.rank-0.step-{STEPS}.eval-0.row-{row}", SOURCES[row], Phase.EVAL): LENGTH
        for row in range(SEQUENCES)
    }
    verified(
        subject="training",
        what="steps, micro-batches and sources from transformers' Trainer"
        + (", with gradient checkpointing" if checkpointing else ""),
    )


def test_a_watched_run_computes_the_same(tmp_path: Path) -> None:
    """Weights after training are those of a run that nobody watched; closing leaves no hook."""
    watched, alone = make_model(), make_model()
    recorder = make_recorder(watched, tmp_path)
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        train(watched, tmp_path, callback)
    recorder.close()
    alone.register_forward_pre_hook(drop_sources, with_kwargs=True)
    train(alone, tmp_path)
    for (name, found), (_, wanted) in zip(
        watched.state_dict().items(), alone.state_dict().items(), strict=True
    ):
        assert torch.equal(found, wanted), name
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in watched.modules()
    )


def test_sources_of_another_length_lose_no_row(tmp_path: Path) -> None:
    """A collator that drops sources costs the sources, not the tokens."""
    model = make_model()
    recorder = make_recorder(model, tmp_path)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(1, 40, (2, LENGTH)))
    with RoutingCallback(recorder, run="run", source_column="source") as callback:
        callback.on_init_end(None, None, None, model=model)
        model(input_ids=tokens, source=["code"])
        model(input_ids=tokens, source=["code", "json"])
    rows = Counter(row[1] for row in recorded(recorder, tmp_path))
    assert rows == {"unknown": 2 * LENGTH, "code": LENGTH, "json": LENGTH}


def test_a_loop_of_your_own_is_labelled(tmp_path: Path) -> None:
    """Steps and sources arrive as the loop tells them, and documents are tasks."""
    model = make_model()
    recorder = make_recorder(model, tmp_path)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(1, 40, (2, LENGTH)))
    with attach(model, recorder) as probe:
        loop = TrainingLoop(probe, run="mine", rank=3)
        for step in (7, 8):
            with loop.micro_batch(step, sources=["code", "json"]):
                model(input_ids=tokens, labels=tokens).loss.backward()
        with torch.no_grad(), loop.evaluation(8, rows=2):
            model(input_ids=tokens)
    rows = Counter(row[:4] for row in recorded(recorder, tmp_path))
    assert rows == {
        (f"mine.rank-3.step-{step}.micro-0.row-{row}", source, Phase.TRAIN, step): LENGTH
        for step in (7, 8)
        for row, source in enumerate(["code", "json"])
    } | {
        (f"mine.rank-3.step-8.eval-0.row-{row}", "unknown", Phase.EVAL, 8): LENGTH
        for row in range(2)
    }


def test_sequences_have_to_be_counted(tmp_path: Path) -> None:
    """A loop that tells two numbers of sequences, or none, is told so at once."""
    model = make_model()
    recorder = make_recorder(model, tmp_path)
    with attach(model, recorder) as probe:
        loop = TrainingLoop(probe, run="mine")
        with pytest.raises(ValueError, match="tell no numbers"), loop.micro_batch(1):
            raise BatchError("not reached")
        with (
            pytest.raises(ValueError, match=r"\[1, 2\]"),
            loop.micro_batch(1, sources=["a"], rows=2),
        ):
            raise BatchError("not reached")
    recorder.close()


def test_passes_whose_sources_cannot_be_read_are_told(tmp_path: Path) -> None:
    """What goes wrong before a pass costs its labels, so its rows are unseen, and said to be."""

    class Broken:
        """No sources."""

        def tolist(self) -> list[str]:
            """Fail."""
            raise ValueError("no such sources")

    model = make_model()
    recorder = make_recorder(model, tmp_path)
    broken = Broken()

    whole = collate

    def collate_broken(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {**whole(samples), "source": broken}

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "collate", collate_broken)
        with RoutingCallback(recorder, run="run", source_column="source") as callback:
            train(model, tmp_path, callback)
    assert recorder.counters().unseen_rows == STEPS * MICRO_BATCHES * SEQUENCES * LENGTH
    assert not [*recorded(recorder, tmp_path)]
