"""A run of transformers' `Trainer` beside what its own steps say that they computed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import transformers
from support.rings import logged

from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers import Recorder
from moescope.producers.agent import Agent
from moescope.producers.torch_probe import router_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

LENGTH, SEQUENCES, MICRO_BATCHES = 6, 3, 2
SOURCES = ("code", "prose", "json")
TRAINED, EVALUATED = 31, 9
"""31 sequences are 11 micro-batches, so an epoch's last step has one, of a single sequence."""

VOCABULARY = 200


class Labels(NamedTuple):
    """What a sequence is recorded as."""

    text: int
    step: int
    phase: Phase
    source: str


def make_model(experts: int = 8) -> Any:
    """A tiny random OLMoE, the same each time."""
    torch.manual_seed(5)
    config = transformers.OlmoeConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, num_experts=experts, num_experts_per_tok=3,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.OlmoeForCausalLM(config)


def make_dense_model() -> Any:
    """One without MoE layers."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def make_recorder(folder: Path) -> Recorder:
    """A recorder for `make_model()`, with token ids: they tell one sequence from another."""
    shape = router_shape(make_model())
    return Recorder(
        model="tiny", revision="r1", layers=shape.layers, experts=shape.experts,
        top_k=shape.top_k, directory=folder / "ring", node="node", ring_bytes=8 << 20,
        rank_order=shape.rank_order, score_kind=shape.score_kind, token_id_kind="plain",
    )  # fmt: skip


def recorded(recorder: Recorder, folder: Path) -> Counter[Labels]:
    """How many rows count, by labels; no request has the rows of two sequences."""
    recorder.close()
    with Agent(folder / "ring", folder / "log") as agent:
        agent.drain()
    rows: Counter[Labels] = Counter()
    of_request: Counter[str] = Counter()
    for batch, *_ in logged(folder / "log", "node"):
        tokens = batch.tokens
        if tokens is None:
            continue
        assert tokens.step is not None
        assert tokens.token_id is not None
        for row in np.flatnonzero((tokens.flags & RowFlag.CONTEXT) == 0).tolist():
            request = int(tokens.request[row])
            of_request[batch.requests.ids[request]] += 1
            labels = Labels(
                int(tokens.token_id[row]),
                int(tokens.step[row]),
                Phase(int(tokens.phase[row])),
                batch.requests.scenes[request],
            )
            rows[labels] += 1
    assert set(of_request.values()) <= {LENGTH}
    return rows


def sequences(count: int, first: int = 1) -> list[dict[str, Any]]:
    """Sequences that say one token again and again, each its own: rows tell whose they are."""
    return [
        {
            "input_ids": torch.full((LENGTH,), first + number),
            "labels": torch.full((LENGTH,), first + number),
            "source": SOURCES[number % 3],
        }
        for number in range(count)
    ]


def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch that keeps the sources."""
    return {
        "input_ids": torch.stack([sample["input_ids"] for sample in samples]),
        "labels": torch.stack([sample["labels"] for sample in samples]),
        "source": [sample["source"] for sample in samples],
    }


class OracleTrainer(transformers.Trainer):  # type: ignore[misc]  # transformers has no types here
    """Notes what each of its steps is given, without a look at what is recorded.

    Attributes:
        computed: How many rows, by labels.
    """

    computed: Counter[Labels]

    def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any, **known: Any) -> Any:
        """A micro-batch of the step that `global_step` counts next."""
        self.note(inputs, Phase.TRAIN)
        return super().training_step(model, inputs, *rest, **known)

    def prediction_step(self, model: Any, inputs: dict[str, Any], *rest: Any, **known: Any) -> Any:
        """A batch that is evaluated."""
        self.note(inputs, Phase.EVAL)
        return super().prediction_step(model, inputs, *rest, **known)

    def note(self, inputs: dict[str, Any], phase: Phase) -> None:
        """These sequences are computed in this phase."""
        for ids, source in zip(inputs["input_ids"], inputs["source"], strict=True):
            self.computed[Labels(int(ids[0]), self.state.global_step, phase, source)] += LENGTH


def make_trainer(
    folder: Path,
    *callbacks: Any,
    model: Any = None,
    model_init: Callable[..., Any] | None = None,
    kind: type[OracleTrainer] = OracleTrainer,
    **settings: Any,
) -> OracleTrainer:
    """A trainer of a few steps with gradient accumulation, which shuffles its data."""
    arguments = transformers.TrainingArguments(
        **{
            "output_dir": str(folder / "out"),
            "per_device_train_batch_size": SEQUENCES,
            "per_device_eval_batch_size": 4,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "use_cpu": True,
            "remove_unused_columns": False,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "logging_strategy": "no",
            "dataloader_pin_memory": False,
            "max_steps": 8,
            "seed": 3,
        }
        | settings
    )
    trainer = kind(
        model=model, model_init=model_init, args=arguments, data_collator=collate,
        train_dataset=sequences(TRAINED), eval_dataset=sequences(EVALUATED, first=100),
        callbacks=[*callbacks],
    )  # fmt: skip
    trainer.computed = Counter()
    return trainer
