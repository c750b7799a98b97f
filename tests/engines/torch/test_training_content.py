"""Content keys of training rows: they join a trainer's pass with the engine that generated it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import VOCABULARY, Recording, make_model

from moescope.core.batchlog import BatchLogReader
from moescope.core.vocabulary import Phase, RowFlag
from moescope.core.wire import decode_batch
from moescope.producers import attach
from moescope.producers.content_keys import content_keys
from moescope.producers.training import RoutingCallback, TrainingLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

MOESCOPE = Path(__file__).resolve().parents[3] / ".venv/bin/moescope"
"""The command of the project's own environment: an engine's has no server packages."""

SECRET = b"rollouts of the tests"
SEQUENCES, MICRO_BATCHES, STEPS = 2, 2, 3
PADDING = 0

Text = list[int]
Keys = dict[tuple[str, int], int | None]


def make_texts(count: int, lengths: range, seed: int) -> list[Text]:
    """Random texts of several lengths."""
    random = np.random.default_rng(seed)
    return [
        random.integers(1, VOCABULARY, random.integers(lengths.start, lengths.stop)).tolist()
        for _ in range(count)
    ]


def padded(texts: Sequence[Text], side: str = "right") -> dict[str, Any]:
    """A batch of texts as a model takes it."""
    width = max(map(len, texts))
    holes = [[0] * (width - len(text)) for text in texts]
    ones = [[1] * len(text) for text in texts]
    pairs = list(zip(texts, holes, strict=True))
    masks = list(zip(ones, holes, strict=True))
    if side == "left":
        pairs, masks = [pair[::-1] for pair in pairs], [pair[::-1] for pair in masks]
    ids = torch.tensor([first + second for first, second in pairs])
    mask = torch.tensor([first + second for first, second in masks])
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
    }


def train(
    model: Any, folder: Path, callback: RoutingCallback, texts: Sequence[Text], **settings: Any
) -> Any:
    """Train on texts in their order, with gradient accumulation; the trainer."""
    side = settings.pop("side", "right")
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=SEQUENCES,
        gradient_accumulation_steps=MICRO_BATCHES, use_cpu=True, remove_unused_columns=False,
        save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no", seed=3,
        dataloader_pin_memory=False, num_train_epochs=1, **settings,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=arguments, callbacks=[callback], train_dataset=list(texts),
        eval_dataset=list(texts[:SEQUENCES]), data_collator=lambda batch: padded(batch, side),
    )  # fmt: skip
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(texts)
    trainer.train()
    return trainer


def recorded_keys(recording: Recording, phase: Phase) -> Keys:
    """By request and position; None where the row has none."""
    recording.rows()
    keys: Keys = {}
    with BatchLogReader(recording.folder / "log", "node") as reader:
        batches = [decode_batch(record.payload) for record in reader.read(0).records]
    for batch in batches:
        tokens = batch.tokens
        if tokens is None:
            continue
        counts = ((tokens.flags & RowFlag.CONTEXT) == 0) & (tokens.phase == phase)
        for row in np.flatnonzero(counts).tolist():
            name = batch.requests.ids[tokens.request[row]]
            key = None if tokens.content_key is None else int(tokens.content_key[row])
            assert keys.setdefault((name, int(tokens.position[row])), key) == key
    return keys


def expected_keys(texts: dict[str, Text]) -> Keys:
    """As if each text had been hashed alone."""
    return {
        (name, position): key
        for name, text in texts.items()
        for position, key in enumerate(content_keys(text, key=SECRET).tolist())
    }


def trained_as(number: int) -> str:
    """The request that a trainer makes of a text."""
    step, within = divmod(number, SEQUENCES * MICRO_BATCHES)
    micro_batch, row = divmod(within, SEQUENCES)
    return f"run.rank-0.step-{step}.micro-{micro_batch}.row-{row}"


@pytest.mark.parametrize(
    ("side", "checkpointing"), [("right", False), ("left", False), ("right", True)]
)
def test_a_trainers_rows_have_the_keys_of_their_texts(
    tmp_path: Path, verified: Any, *, side: str, checkpointing: bool
) -> None:
    """Padding, accumulation and what is computed again for the gradient change no key."""
    texts = make_texts(SEQUENCES * MICRO_BATCHES * STEPS, range(3, 11), seed=7)
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    with RoutingCallback(recording.recorder, run="run", content_key=SECRET) as callback:
        trainer = train(
            model, tmp_path, callback, texts, side=side, activation_checkpointing=checkpointing
        )
        trainer.evaluate()
        assert callback.probe is not None
        assert callback.probe.counters.errors == 0
    wanted = expected_keys({trained_as(number): text for number, text in enumerate(texts)})
    assert recorded_keys(recording, Phase.TRAIN) == wanted
    evaluated = {f"run.rank-0.step-{STEPS}.eval-0.row-{row}": texts[row] for row in range(2)}
    assert recorded_keys(recording, Phase.EVAL) == expected_keys(evaluated)
    verified(subject="training", what="content keys from transformers' Trainer")


def test_a_trainer_without_a_secret_records_no_keys(tmp_path: Path) -> None:
    """Keys tell which texts begin alike: nobody gets them who did not ask."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    with RoutingCallback(recording.recorder, run="run") as callback:
        callback.on_init_end(None, None, None, model=model.train())
        model(**padded([[5, 9, 11], [7, 7]]))
    keys = recorded_keys(recording, Phase.TRAIN)
    assert len(keys) == 5
    assert set(keys.values()) == {None}


def test_a_loop_has_the_keys_of_its_probe(tmp_path: Path) -> None:
    """Whole sequences have keys, computed once or twice; the rest of a cut one has none."""
    texts = make_texts(SEQUENCES * MICRO_BATCHES, range(4, 9), seed=8)
    model = make_model("olmoe").train()
    recording = Recording(model, tmp_path)
    with attach(model, recording.recorder, content_key=SECRET) as probe:
        loop = TrainingLoop(probe, run="run")
        for number in range(MICRO_BATCHES):
            part = texts[number * SEQUENCES :][:SEQUENCES]
            with loop.micro_batch(0, rows=SEQUENCES, micro_batch=number):
                model(**padded(part)).loss.backward()
        with loop.micro_batch(1, rows=SEQUENCES):
            with torch.no_grad():
                model(**padded(texts[:SEQUENCES]))
            model(**padded(texts[:SEQUENCES])).loss.backward()
        with loop.micro_batch(2, rows=1):
            model(
                input_ids=torch.tensor([texts[0][2:]]),
                position_ids=torch.arange(2, len(texts[0]))[None],
            )
        assert probe.counters.errors == 0
    named = {trained_as(number): text for number, text in enumerate(texts)} | {
        f"run.rank-0.step-1.micro-0.row-{row}": text for row, text in enumerate(texts[:SEQUENCES])
    }
    cut = range(2, len(texts[0]))
    assert recorded_keys(recording, Phase.TRAIN) == expected_keys(named) | {
        ("run.rank-0.step-2.micro-0.row-0", position): None for position in cut
    }


def test_packed_texts_are_missed_not_mixed(tmp_path: Path) -> None:
    """Texts packed into one row would get keys of what stands before them: none is recorded."""
    texts = [[5, 9, 11], [7, 7, 21, 3]]
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    collate = transformers.DataCollatorWithFlattening(return_tensors="pt")
    batch = collate([{"input_ids": text} for text in texts])
    with RoutingCallback(recording.recorder, run="run", content_key=SECRET) as callback:
        callback.on_init_end(None, None, None, model=model.train())
        model(**batch)
        assert callback.probe is not None
        assert callback.probe.counters.refused_passes == 1
    assert recorded_keys(recording, Phase.TRAIN) == {}
    assert recording.recorder.counters().unseen_rows == sum(map(len, texts))


def generated(model: Any, folder: Path, prompts: list[Text], tokens: int) -> list[Text]:
    """What a model says to prompts, recorded as a rollout engine would."""
    recording = Recording(model, folder)
    texts = []
    with attach(model, recording.recorder, content_key=SECRET) as probe:
        for number, prompt in enumerate(prompts):
            with probe.request(f"rollout-{number}"):
                output = model.generate(
                    torch.tensor([prompt]), do_sample=False, max_new_tokens=tokens,
                    min_new_tokens=tokens,
                )  # fmt: skip
            texts.append(output[0].tolist())
    recording.rows()
    return texts


def agreement(rollout: Path, training: Path) -> dict[str, Any]:
    """What `moescope report compare` says of a rollout and the pass that trains on it."""
    printed = subprocess.run(
        [MOESCOPE, "report", "compare", rollout, training, "--a", "phase=decode",
         "--b", "phase=train", "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(printed.stdout)
    return report


@pytest.mark.skipif(not MOESCOPE.exists(), reason="`make setup-dev` installs moescope")
def test_training_and_rollout_are_compared_by_content(tmp_path: Path, verified: Any) -> None:
    """Under the same weights they agree token by token; a rollout of older weights does not."""
    prompts, tokens = make_texts(SEQUENCES * MICRO_BATCHES, range(5, 12), seed=9), 32
    others = make_texts(SEQUENCES * MICRO_BATCHES, range(20, 30), seed=10)
    rollout = generated(make_model("olmoe"), tmp_path / "rollout", prompts, tokens)
    found = {}
    for name, texts in (("fresh", rollout), ("stale", others + rollout)):
        model = make_model("olmoe")
        recording = Recording(model, tmp_path / name)
        with RoutingCallback(recording.recorder, run="run", content_key=SECRET) as callback:
            train(
                model, tmp_path / name, callback, texts, learning_rate=0.05, warmup_steps=0,
                lr_scheduler_type="constant",
            )  # fmt: skip
        recording.rows()
        found[name] = agreement(tmp_path / "rollout", tmp_path / name)
    # The last token that is generated is never computed.
    compared = len(prompts) * (tokens - 1)
    assert [report["tokens"] for report in found.values()] == [compared, compared]
    assert found["fresh"]["overall"]["all_layers"]["value"] > 0.99
    assert found["stale"]["overall"]["all_layers"]["value"] < 0.9
    verified(subject="training", what="a Trainer's pass against the rollout, by content key")
