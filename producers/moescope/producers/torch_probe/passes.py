"""One forward pass: what its routers said, then which rows of it are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moescope.producers.torch_probe.attention import attending_rows
from moescope.producers.torch_probe.copying import HostCopy
from moescope.producers.torch_probe.inputs import RefusedPassError
from moescope.producers.torch_probe.placing import (
    PlacedRows,
    place_behind,
    place_by_attention,
    place_by_mask,
    place_in_order,
)

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from moescope.producers.torch_probe.families import RouterFamily, Routing
    from moescope.producers.torch_probe.inputs import PassInputs
    from moescope.producers.torch_probe.requests import RunningBatch


class CurrentPass:
    """A pass that is being computed.

    Attributes:
        running: Whose rows it computes.
        inputs: What it was given.
        number: Among all passes that began.
        family: How to read its routers, once the first of them ran.
        modules: Routers by place among the MoE layers.
        captured: Their tensors, likewise; None until a router has run.
        has_repeated: Whether a router ran twice.
        is_fresh: Bool [L] on the device, of a replayed pass: whether each router's tensors are its.
    """

    __slots__ = (
        "captured", "family", "has_repeated", "inputs", "is_fresh", "modules", "number", "running",
    )  # fmt: skip

    def __init__(self, running: RunningBatch, inputs: PassInputs, layers: int) -> None:
        self.running = running
        self.inputs = inputs
        self.family: RouterFamily | None = None
        self.modules: list[Any] = [None] * layers
        self.captured: list[Any] = [None] * layers
        self.has_repeated = False
        self.number = -1
        self.is_fresh: torch.Tensor | None = None

    def keep(
        self, place: int, family: RouterFamily, module: object, tensors: tuple[torch.Tensor, ...]
    ) -> None:
        """A router has run."""
        if self.captured[place] is not None:
            self.has_repeated = True
        self.captured[place] = tensors
        self.modules[place] = module
        self.family = family

    @property
    def rows(self) -> int:
        """B * S."""
        return self.inputs.batch * self.inputs.length

    def interpreted(self, wanted: Wanted) -> Routing:
        """What the routers of a whole pass decided, on the model's device.

        Expert ids of a replayed pass are −1, which is none, where they are not this replay's.
        """
        assert self.family is not None  # noqa: S101 - a whole pass has one
        routing = self.family.interpret(
            self.modules, self.captured, scores=wanted.scores, weights=wanted.weights
        )
        if self.is_fresh is None:
            return routing
        return routing._replace(
            expert_ids=routing.expert_ids.masked_fill(~self.is_fresh[:, None], -1)
        )

    @property
    def is_whole(self) -> bool:
        """Whether each router ran once."""
        return not self.has_repeated and None not in self.captured


class Wanted(NamedTuple):
    """Which columns a recorder wants."""

    weights: bool
    scores: bool
    tokens: bool


class ComputedPass:
    """A pass that was computed, its tensors on their way to the host.

    Args:
        running: Whose rows it computed.
        inputs: What it was given.
        routing: What its routers decided, [B * S, L, …].
        wanted: Columns to bring along.

    Attributes:
        running: Whose rows it computed.
        pass_id: Number of the pass.
        size: B * S.

    Raises:
        RefusedPassError: The routers saw other rows than the pass was given.
    """

    def __init__(
        self, running: RunningBatch, inputs: PassInputs, routing: Routing, *, pass_id: int,
        wanted: Wanted,
    ) -> None:  # fmt: skip
        self.running = running
        self.pass_id = pass_id
        self._batch, self._length = inputs.batch, inputs.length
        rows = self.size = inputs.batch * inputs.length
        if routing.expert_ids.shape[0] != rows:
            raise RefusedPassError(
                "routers saw other rows", f"{routing.expert_ids.shape[0]} of a pass over {rows}"
            )
        mask, attending = inputs.mask, None
        self._columns = 0 if mask is None else mask.shape[1]
        # Decode after decode: the rows before are known, their mask need not be read again.
        self._follows = 0 < running.columns == self._columns - inputs.length
        if mask is not None and self._follows:
            mask = mask[:, -inputs.length :]
        if inputs.attention is not None and inputs.past is not None:
            attending = attending_rows(inputs.attention, inputs.past)
        scores, ids = wanted.scores, routing.expert_ids
        is_past_there = inputs.past is not None and not isinstance(inputs.past, int)
        self._past = 0 if is_past_there or inputs.past is None else inputs.past
        self._copy = HostCopy(
            [
                mask,
                *(attending or (None, None, None)),
                inputs.positions if mask is None else None,
                inputs.past if is_past_there else None,
                inputs.tokens if wanted.tokens else None,
                ids,
                routing.weights if wanted.weights else None,
                routing.entropy if scores else None,
                routing.margin if scores else None,
                routing.dropped,
            ]
        )

    @property
    def is_step(self) -> bool:
        """Whether it computed the next token of each request, and nothing else."""
        return self._follows and self._length == 1

    @property
    def is_late(self) -> bool:
        """Whether the copy takes its time: then other work is better done first."""
        return self._copy.is_late

    def rows(self) -> HostRows:
        """Wait for the copy, and place the rows.

        Raises:
            RefusedPassError: They cannot be placed for certain.
        """
        (
            mask, is_token, keys_seen, fits, positions, past, tokens, ids, *columns
        ) = self._copy.arrays()  # fmt: skip
        before = self._past if past is None else int(past)
        if mask is not None:
            mask = mask != 0
            if self._follows:
                placed = place_behind(mask, self.running.following)
            else:
                placed = place_by_mask(mask, self._length, before)
        elif is_token is not None and keys_seen is not None:
            if not np.all(fits):
                raise RefusedPassError("an unknown mask", "fewer keys than columns")
            every = (self._batch, self._length)
            placed = place_by_attention(
                np.broadcast_to(is_token, every), np.broadcast_to(keys_seen, every), positions
            )
        else:
            placed = place_in_order(self._batch, self._length, before, positions)
        total = (
            self._columns
            if mask is not None and self._columns > self._length
            else (before + self._length)
        )
        assert ids is not None  # noqa: S101 - there are always some
        return HostRows(placed, tokens, total, ids, *columns)


class HostRows(NamedTuple):
    """The rows of one pass on the host: [B, S] and [B * S, L, …]."""

    placed: PlacedRows
    tokens: NDArray[np.int64] | None
    columns: int
    expert_ids: NDArray[Any]
    weights: NDArray[Any] | None
    entropy: NDArray[Any] | None
    margin: NDArray[Any] | None
    dropped: NDArray[Any] | None
