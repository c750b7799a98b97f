"""Decode steps that wait for each other: some small passes cost as much to read as one.

What a step's routers returned is small, and reading it costs the same few dozen operators and one
call of the recorder, whether it is one step's or eight steps' (decision 0022). So steps that follow
each other closely are kept as they are, and read together: as columns of one pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moescope.producers.torch_probe.inputs import PassInputs
from moescope.producers.torch_probe.passes import ComputedPass, picked

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from moescope.producers.torch_probe.families import RouterFamily
    from moescope.producers.torch_probe.passes import CurrentPass, Wanted
    from moescope.producers.torch_probe.requests import RunningBatch

HELD_STEPS: Final = 8
"""Steps that are read together, by default."""

HELD_SECONDS: Final = 0.25
"""Steps wait no longer for the next ones, when one comes: their rows' event time is when they are
recorded."""

CLOSE_SECONDS: Final = 0.1
"""Steps further apart do not wait: a hundredth of such a step pays for reading it."""

HELD_BYTES: Final = 4 << 20
"""Of tensors that routers returned: with more of them, reading costs what each entry costs."""


class HeldSteps:
    """The steps of one batch that wait.

    Args:
        limit: The most steps that wait for each other.

    Attributes:
        pass_ids: Their numbers.
    """

    def __init__(self, limit: int) -> None:
        self.pass_ids: list[int] = []
        self._limit = limit
        self._fits = 0
        self._batch = 0
        # What routers returned, by step and layer. Never the routers: who unloads the model
        # meanwhile gets its memory back.
        self._outputs: list[Any] = []
        self._captured: list[tuple[torch.Tensor, ...] | None] = []
        self._tokens: list[torch.Tensor] = []
        self._masks: list[torch.Tensor | None] = []
        self._since = self._latest = float("-inf")

    def __len__(self) -> int:
        """How many wait."""
        return len(self.pass_ids)

    def add(self, current: CurrentPass, pass_id: int, wanted: Wanted, now: float) -> bool:
        """Keep a step's tensors, and copies of what the caller may write over.

        Args:
            current: The step's pass; see `is_step`.
            pass_id: Its number.
            wanted: Columns to record.
            now: Monotonic seconds.

        Returns:
            Whether all that wait are to be read now.
        """
        inputs = current.inputs
        if not self.pass_ids:
            self._since, self._batch = now, inputs.batch
            if not self._fits:
                self._fits = max(1, min(self._limit, HELD_BYTES // _bytes_of(current.tensors())))
        self._captured += current.captured
        self._outputs += current.captured if current.outputs is None else current.outputs
        self._masks.append(None if inputs.mask is None else inputs.mask[:, -1:].clone())
        if wanted.tokens and inputs.tokens is not None:
            self._tokens.append(inputs.tokens.clone())
        self.pass_ids.append(pass_id)
        is_apart, self._latest = now - self._latest > CLOSE_SECONDS, now
        return is_apart or len(self.pass_ids) >= self._fits or now - self._since > HELD_SECONDS

    def read(
        self,
        running: RunningBatch,
        family: RouterFamily,
        modules: Sequence[torch.nn.Module],
        wanted: Wanted,
    ) -> ComputedPass:
        """Read all that wait, and wait for none of them.

        Args:
            running: Whose steps they are.
            family: How to read the routers.
            modules: The routers, by layer.
            wanted: Columns to record.

        Raises:
            RefusedPassError: The routers saw other rows than the passes were given.
        """
        import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

        steps = len(self.pass_ids)
        masks = [mask for mask in self._masks if mask is not None]
        inputs = PassInputs(
            self._batch,
            steps,
            torch.cat(self._tokens, dim=1) if len(self._tokens) == steps else None,
            torch.cat(masks, dim=1) if len(masks) == steps else None,
            None,
            None,
            None,
        )
        # One step's layers behind the other's: to a family they are layers.
        every = [*modules] * steps
        routing = family.interpret(
            every,
            picked(family, every, self._outputs, self._captured),
            scores=wanted.scores,
            weights=wanted.weights,
        )
        computed = ComputedPass(
            running, inputs, routing, pass_ids=self.pass_ids, wanted=wanted, is_steps=True
        )
        self.forget()
        return computed

    def forget(self) -> int:
        """Wait for nothing any more; rows that were forgotten."""
        rows = self._batch * len(self.pass_ids)
        self.pass_ids, self._outputs, self._captured = [], [], []
        self._tokens, self._masks = [], []
        return rows


def is_step(current: CurrentPass, wanted: Wanted) -> bool:
    """Whether a pass computed the next token of each request, in tensors that stay as they are.

    Args:
        current: A whole pass.
        wanted: Columns to record.
    """
    import torch  # noqa: PLC0415 - as above

    running, inputs = current.running, current.inputs
    if (
        inputs.length != 1
        or not running.is_decoding
        or current.is_compiled
        or current.is_fresh is not None
        or inputs.attention is not None
        or (wanted.tokens and inputs.tokens is None)
        or torch.is_grad_enabled()  # what routers returned would keep all of the graph
    ):
        return False
    if inputs.mask is not None:
        return running.is_followed_by(inputs)
    return inputs.positions is None and bool(inputs.past == running.columns + len(running.held))


def _bytes_of(captured: Iterable[tuple[torch.Tensor, ...]]) -> int:
    held: int = sum(part.numel() * part.element_size() for parts in captured for part in parts)
    return max(1, held)
