"""Decode steps that wait for each other: some small passes cost as much to read as one.

What a step's routers returned is small, and reading it costs the same few dozen operators and one
call of the recorder, whether it is one step's or eight steps' (decision 22). So steps that follow
each other closely are copied, and read together: as columns of one pass.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from moescope.producers.torch_probe.families.stacked import StackedPasses
from moescope.producers.torch_probe.inputs import PassInputs, RefusedPassError
from moescope.producers.torch_probe.passes import ComputedPass
from moescope.producers.waiting import CLOSE_SECONDS, HELD_PASSES, HELD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import torch

    from moescope.producers.torch_probe.families import RouterFamily
    from moescope.producers.torch_probe.families.stacked import Parts
    from moescope.producers.torch_probe.passes import CurrentPass, Wanted
    from moescope.producers.torch_probe.requests import RunningBatch

_BY_ROW: Final = 2  # [N, …]

HELD_STEPS: Final = HELD_PASSES
"""Steps that are read together, by default."""

HELD_BYTES: Final = 4 << 20
"""Of tensors that routers returned: with more of them, reading costs what each entry costs."""


class HeldSteps:
    """The steps of one batch that wait.

    Args:
        limit: The most steps that wait for each other.

    Attributes:
        pass_ids: Their numbers.
        since: When the first of them came, in monotonic seconds.
    """

    def __init__(self, limit: int) -> None:
        self.pass_ids: list[int] = []
        self.since = self._latest = float("-inf")
        # An import statement in each step takes ten times as long.
        self._torch: Any = sys.modules["torch"]
        self._limit = limit
        self._fits = 0
        self._read_of: Wanted | None = None
        self._read: frozenset[int] = frozenset()
        self._batch = 0
        self._wanted: Wanted | None = None
        self._weights: tuple[int, ...] = ()
        self._parts: list[Parts] = []
        self._tokens: list[torch.Tensor] = []
        self._masks: list[torch.Tensor | None] = []
        self._stream: Any = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self.pass_ids)

    def go_with(self, current: CurrentPass, wanted: Wanted) -> bool:
        """Whether the steps that wait can be read together with this one.

        Args:
            current: A step's pass; see `takes`.
            wanted: Columns to record.
        """
        has_mask, had_mask = current.inputs.mask is not None, self._masks[-1] is not None
        return (
            self._wanted == wanted
            and has_mask == had_mask  # ones without a mask are no padding of those with one
            and self._weights == current.family.weights_read(current.modules)
        )

    def add(self, current: CurrentPass, pass_id: int, wanted: Wanted, now: float) -> bool:
        """Copy a step's tensors: the caller may write over them, and routers may be loaded anew.

        Args:
            current: The step's pass; see `takes`.
            pass_id: Its number.
            wanted: Columns to record.
            now: Monotonic seconds.

        Returns:
            Whether all that wait are to be read now.

        Raises:
            RefusedPassError: The routers saw other rows than the pass was given.
            TypeError: A router did not return what its family's routers return.
        """
        torch = self._torch
        captured, inputs = current.tensors(), current.inputs
        if self._read_of != wanted:
            self._read_of = wanted
            self._read = current.family.parts_read(
                captured[0], scores=wanted.scores, weights=wanted.weights
            )
        read = self._read
        parts = copied_parts(captured, read)
        copied: list[Any] = [parts[part] for part in read]
        if len(copied[0]) != inputs.batch:
            raise RefusedPassError(
                "routers saw other rows", f"{len(copied[0])} of a pass over {inputs.batch}"
            )
        weights = current.family.weights_read(current.modules)
        if not self.pass_ids:
            self.since, self._wanted, self._weights = now, wanted, weights
            self._batch = inputs.batch
            if not self._fits:
                size = sum(part.numel() * part.element_size() for part in copied)
                self._fits = max(1, min(self._limit, HELD_BYTES // max(1, size)))
            if copied[0].is_cuda:
                self._stream = torch.cuda.current_stream(copied[0].device)
        self._parts.append(parts)
        self._masks.append(None if inputs.mask is None else inputs.mask[:, -1:].clone())
        if wanted.tokens and inputs.tokens is not None:
            self._tokens.append(inputs.tokens.clone())
        self.pass_ids.append(pass_id)
        is_apart, self._latest = now - self._latest > CLOSE_SECONDS, now
        return is_apart or len(self.pass_ids) >= self._fits or self.is_late(now)

    def takes(self, current: CurrentPass, wanted: Wanted) -> bool:
        """Whether a pass computed the next token of each request, and can be read later.

        Args:
            current: A whole pass.
            wanted: Columns to record.
        """
        running, inputs, torch = current.running, current.inputs, self._torch
        if (
            inputs.length != 1
            or not running.is_decoding
            or running.is_over
            or current.is_compiled
            or current.is_fresh is not None
            or inputs.attention is not None
            or (wanted.tokens and inputs.tokens is None)
            or torch.is_grad_enabled()  # what routers returned would keep all of the graph
            or torch.is_autocast_enabled("cuda")  # logits computed again would be others
            or torch.is_autocast_enabled("cpu")
        ):
            return False
        if inputs.mask is not None:
            return running.is_followed_by(inputs)
        past = inputs.past
        return (
            inputs.positions is None
            and isinstance(past, int)
            and past == running.columns + len(self.pass_ids)
        )

    def is_late(self, now: float) -> bool:
        """Whether the steps that wait have waited as long as they may."""
        return now - self.since > HELD_SECONDS

    def are_left(self, now: float) -> bool:
        """Whether no further step has come for as long as steps wait: a generation that pauses."""
        return bool(self.pass_ids) and now - self._latest > HELD_SECONDS

    def read(
        self, running: RunningBatch, family: RouterFamily, modules: Sequence[torch.nn.Module]
    ) -> ComputedPass:
        """Read all that wait, and wait for none of them.

        Args:
            running: Whose steps they are.
            family: How to read the routers.
            modules: The routers, by layer.

        Raises:
            RefusedPassError: What they were computed with is not there any more.
        """
        torch = self._torch
        wanted, steps = self._wanted, len(self.pass_ids)
        assert wanted is not None  # noqa: S101 - nobody reads nothing
        if self._weights != family.weights_read(modules):
            self._fits = 1  # who changes them once changes them again: the next steps do not wait
            raise RefusedPassError("routers' weights changed while decode steps waited")
        with self._where_they_were_computed():
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
            routing = family.interpret(
                [*modules] * steps,
                StackedPasses(self._parts, len(modules)),
                scores=wanted.scores,
                weights=wanted.weights,
            )
            computed = ComputedPass(
                running, inputs, routing, pass_ids=self.pass_ids, wanted=wanted, is_steps=True
            )
        self.forget()
        return computed

    def _where_they_were_computed(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else self._torch.cuda.stream(self._stream)

    def forget(self) -> tuple[int, int]:
        """Wait for nothing any more; passes, and rows in them, that were forgotten."""
        passes = len(self.pass_ids)
        self.pass_ids, self._parts, self._tokens, self._masks = [], [], [], []
        self._wanted = self._stream = None
        return passes, self._batch * passes


def copied_parts(captured: Sequence[tuple[torch.Tensor, ...]], read: frozenset[int]) -> Parts:
    """Copies of what the routers of one pass returned.

    Args:
        captured: As `RouterFamily.capture` picked it, by layer.
        read: The parts that are copied; the others stay as they are.

    Raises:
        RefusedPassError: The routers saw different rows.
    """
    import torch  # noqa: PLC0415 - an inference node without torch imports this module, too

    try:
        return [
            torch.stack(_by_row(tensors), dim=1) if part in read else tensors
            for part, tensors in enumerate(zip(*captured, strict=True))
        ]
    except (RuntimeError, ValueError) as error:
        raise RefusedPassError("routers saw other rows", str(error)) from None


def _by_row(tensors: tuple[torch.Tensor, ...]) -> Sequence[torch.Tensor]:
    # Only tensors of one shape can be stacked: the first one tells, for this runs in each step.
    if tensors[0].ndim == _BY_ROW:
        return tensors
    return [tensor.flatten(0, -2) for tensor in tensors]
