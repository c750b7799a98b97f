"""Labels of the passes that a training loop computes."""

from __future__ import annotations

import logging
import operator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from moescope.core.vocabulary import UNKNOWN_SCENE, Phase
from moescope.producers.torch_probe.requests import RequestFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

EVALUATION: Final = "eval"

_log = logging.getLogger("moescope.producers")


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

    A step that comes behind a later one is trained anew: from then on ids say which training it is,
    so that its sequences are not taken for those before. Its rows still are of that step.

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
        self._trainings = 1
        self._step: int | None = None
        self._computed = 0

    @contextmanager
    def micro_batch(
        self,
        step: int,
        *,
        sources: Sequence[str] | None = None,
        rows: int | None = None,
        micro_batch: int | None = None,
        tasks: Sequence[str] | None = None,
    ) -> Iterator[None]:
        """The passes inside train on these sequences.

        Args:
            step: Optimizer step, from 0.
            sources: Where each sequence comes from; unknown by default.
            rows: Number of sequences, when neither sources nor tasks are given.
            micro_batch: Number of the micro-batch in its step; by default they are counted.
            tasks: The document that each sequence is part of; by default each is its own.

        Raises:
            ValueError: How many sequences there are is not told, or told in two ways.
        """
        number = self._count(step)
        prefix = f"{self._named}.step-{step}.micro-{number if micro_batch is None else micro_batch}"
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
        prefix = f"{self._named}.step-{step}.{EVALUATION}-{self._evaluated}"
        self._evaluated += 1
        facts = _facts(prefix, sources=sources, tasks=tasks, rows=rows)
        with self._probe.batch(facts, phase=Phase.EVAL, step=step):
            yield

    def _count(self, step: int) -> int:
        """Number of a micro-batch that begins now among those of its step."""
        try:
            step = operator.index(step)
        except TypeError:  # the recorder counts what it cannot record
            return 0
        if step != self._step:
            if self._step is not None and step < self._step:
                self._train_anew(step, self._step)
            self._step, self._computed = step, 0
        self._computed += 1
        return self._computed - 1

    def _train_anew(self, step: int, latest: int) -> None:
        if self._trainings == 1:
            _log.warning(
                "Step %s is trained behind step %s: its rows are added to those that step windows "
                "have of it, or come too late for them. Give a training that begins anew a run and "
                "a recorder (with a revision) of its own (said once).",
                step,
                latest,
            )
        self._trainings += 1

    @property
    def _named(self) -> str:
        return self._name if self._trainings == 1 else f"{self._name}.training-{self._trainings}"


def sources_of(values: Any) -> list[str]:
    """Sources as texts; they may be numbers, also in a tensor or an array.

    Raises:
        ValueError: They are one text.
    """
    return [UNKNOWN_SCENE if each is None else str(each) for each in _listed(values)]


def _listed(values: Any) -> list[Any]:
    if isinstance(values, str | bytes):
        raise ValueError(  # noqa: TRY004 - as of any other wrong number of sequences
            f"{values!r:.80} is one text: give a list with one for each sequence"
        )
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _facts(
    prefix: str,
    *,
    sources: Sequence[str] | None,
    tasks: Sequence[str] | None,
    rows: int | None,
) -> list[RequestFacts]:
    scenes = None if sources is None else sources_of(sources)
    documents = None if tasks is None else _listed(tasks)
    told = {len(given) for given in (scenes, documents) if given is not None}
    if rows is not None:
        told.add(rows)
    if len(told) != 1:
        raise ValueError(
            f"sources, tasks and rows tell {sorted(told) or 'no'} numbers of sequences"
        )
    return [
        RequestFacts(
            id=f"{prefix}.row-{row}",
            task=None if documents is None or documents[row] is None else str(documents[row]),
            scene=UNKNOWN_SCENE if scenes is None else scenes[row],
        )
        for row in range(told.pop())
    ]
