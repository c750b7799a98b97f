"""Labels of the passes that a training loop computes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from moescope.core.vocabulary import UNKNOWN_SCENE, Phase
from moescope.producers.torch_probe.requests import RequestFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

EVALUATION: Final = "eval"


class BatchProbe(Protocol):
    """What a loop needs of `moescope.producers.torch_probe.Probe`."""

    def batch(
        self,
        requests: Sequence[RequestFacts],
        *,
        phase: Phase | None = None,
        step: int | None = None,
    ) -> AbstractContextManager[None]:
        """See `Probe.batch`."""
        ...


class TrainingLoop:
    """Tells a probe which optimizer step, micro-batch and data source each sequence belongs to.

        with mp.attach(model, recorder) as probe:
            loop = TrainingLoop(probe, run="pretrain-7")
            for step, batch in enumerate(batches):
                for number, part in enumerate(micro_batches(batch)):
                    with loop.micro_batch(step, sources=part.sources, micro_batch=number):
                        model(**part.inputs).loss.backward()
                optimizer.step()

    A sequence is a request; its id names run, rank, step, micro-batch and row. Its source is the
    scene of its rows (beyond 64 different ones `other`), so that a step window tells its mix of
    sources. What is computed again for the gradient is not recorded a second time.

    Args:
        probe: From `attach`; its `content_key` gives the rows of whole sequences content keys.
        run: Name of the run; request ids begin with it, so two runs that one store watches need two
            names.
        rank: Of this process among those that compute different sequences.
    """

    def __init__(self, probe: BatchProbe, *, run: str, rank: int = 0) -> None:
        self._probe = probe
        self._name = f"{run}.rank-{rank}"
        self._evaluated = 0

    @contextmanager
    def micro_batch(
        self,
        step: int,
        *,
        sources: Sequence[str] | None = None,
        rows: int | None = None,
        micro_batch: int = 0,
        tasks: Sequence[str] | None = None,
    ) -> Iterator[None]:
        """The passes inside train on these sequences.

        Args:
            step: Optimizer step, from 0.
            sources: Where each sequence comes from; unknown by default.
            rows: Number of sequences, when neither sources nor tasks are given.
            micro_batch: Number of the micro-batch in its step.
            tasks: The document that each sequence is part of; by default each is its own.

        Raises:
            ValueError: How many sequences there are is not told, or told in two ways.
        """
        prefix = f"{self._name}.step-{step}.micro-{micro_batch}"
        facts = _facts(prefix, sources=sources, tasks=tasks, rows=rows)
        with self._probe.batch(facts, phase=Phase.TRAIN, step=step):
            yield

    @contextmanager
    def evaluation(
        self,
        step: int,
        *,
        sources: Sequence[str] | None = None,
        rows: int | None = None,
        tasks: Sequence[str] | None = None,
    ) -> Iterator[None]:
        """The passes inside evaluate these sequences; see `micro_batch`."""
        prefix = f"{self._name}.step-{step}.{EVALUATION}-{self._evaluated}"
        self._evaluated += 1
        facts = _facts(prefix, sources=sources, tasks=tasks, rows=rows)
        with self._probe.batch(facts, phase=Phase.EVAL, step=step):
            yield


def _facts(
    prefix: str,
    *,
    sources: Sequence[str] | None,
    tasks: Sequence[str] | None,
    rows: int | None,
) -> list[RequestFacts]:
    told = {len(given) for given in (sources, tasks) if given is not None}
    if rows is not None:
        told.add(rows)
    if len(told) != 1:
        raise ValueError(
            f"sources, tasks and rows tell {sorted(told) or 'no'} numbers of sequences"
        )
    return [
        RequestFacts(
            id=f"{prefix}.row-{row}",
            task=None if tasks is None else tasks[row],
            scene=UNKNOWN_SCENE if sources is None else sources[row],
        )
        for row in range(told.pop())
    ]
