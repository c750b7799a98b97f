"""Routing that the probe delivered, kept per request until its event times are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.tiny_moe.model import EXPERTS, LAYERS, MODEL_NAME, REVISION, TOP_K
from moescope.core.vocabulary import Fidelity, Phase, RankOrder, ScoreKind
from moescope.producers.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray


def profile_of(node: str) -> Profile:
    """What recordings say about their producer."""
    return Profile(
        node=node,
        model=MODEL_NAME,
        revision=REVISION,
        layers=tuple(range(LAYERS)),
        experts=EXPERTS,
        top_k=TOP_K,
        score_kind=ScoreKind.SOFTMAX,
        rank_order=RankOrder.SELECTION_SCORE,
    )


@dataclass(slots=True)
class Routed:
    """A request's facts, and its rows in the order in which they were computed.

    Attributes:
        columns: By name, one array of rows per pass until `joined` is called.
    """

    id: str
    task: str | None
    scene: str
    prompt_tokens: int | None
    cached_tokens: int
    columns: dict[str, list[NDArray[Any]]] = field(default_factory=dict)

    def joined(self) -> dict[str, NDArray[Any]]:
        """The columns, each as one array [rows, …]."""
        for name, parts in self.columns.items():
            if len(parts) > 1:
                self.columns[name] = [np.concatenate(parts)]
        return {name: parts[0] for name, parts in self.columns.items()}


class Capture:
    """Stands in for a recorder while the model computes."""

    def __init__(self) -> None:
        self.profile = profile_of("capture")
        self.requests: dict[str, Routed] = {}

    @property
    def is_recording(self) -> bool:
        """Always."""
        return True

    @property
    def fidelity(self) -> Fidelity:
        """Every token."""
        return Fidelity.FULL

    def begin_request(
        self,
        request_id: str,
        prompt_tokens: int | None = None,
        cached_tokens: int = 0,
        task: str | None = None,
        scene: str = "unknown",
    ) -> None:
        """Remember a request's facts."""
        self.requests[request_id] = Routed(request_id, task, scene, prompt_tokens, cached_tokens)

    def record(
        self,
        request_ids: Any,
        positions: ArrayLike,
        expert_ids: ArrayLike,
        phase: Phase | str | ArrayLike,
        *,
        weights: ArrayLike | None = None,
        entropy: ArrayLike | None = None,
        margin: ArrayLike | None = None,
        pass_id: int | ArrayLike | None = None,  # noqa: ARG002 - recordings have no passes
        step: int | ArrayLike | None = None,
        token_ids: ArrayLike | None = None,  # noqa: ARG002 - and no tokens
        content_keys: ArrayLike | None = None,  # noqa: ARG002 - nor keys of their texts
        dropped: ArrayLike | None = None,  # noqa: ARG002 - this model drops nothing
        rows_per_request: ArrayLike | None = None,
    ) -> None:
        """Keep the rows of a pass."""
        rows = len(np.asarray(positions))
        names = [request_ids] if isinstance(request_ids, str) else request_ids
        # Without counts one request has all rows, or each has one.
        counts = (
            np.full(len(names), rows // len(names))
            if rows_per_request is None
            else np.asarray(rows_per_request)
        )
        given: dict[str, Any] = {
            "position": np.asarray(positions),
            "expert_ids": np.asarray(expert_ids).astype(np.uint8),
            "phase": np.broadcast_to(np.asarray(phase, np.uint8), rows),
            "weights": weights,
            "entropy": entropy,
            "margin": margin,
            "step": None if step is None else np.full(rows, step, np.int64),
        }
        borders = np.cumsum(counts)[:-1]
        for name, column in given.items():
            if column is None:
                continue
            for request, part in zip(names, np.split(column, borders), strict=True):
                if len(part):
                    self.requests[request].columns.setdefault(name, []).append(part)

    def end_request(self, request_id: str, *, last_of_task: bool = False) -> None:
        """Nothing to do: a recording decides when a request is over."""

    def miss(self, rows: int, reason: str) -> None:
        """A recording with rows that nobody saw would not be one.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(f"{rows} rows were not seen: {reason}")

    def spend(self, seconds: float) -> None:
        """A recording has no budget."""

    def before_change(self, flush: Callable[[], None]) -> None:
        """A recording does not change."""
