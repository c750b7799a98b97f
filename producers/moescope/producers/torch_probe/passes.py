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
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from moescope.producers.torch_probe.families import RouterFamily, Routing
    from moescope.producers.torch_probe.inputs import PassInputs
    from moescope.producers.torch_probe.requests import RunningBatch


class CurrentPass:
    """A pass that is being computed.

    Args:
        running: Whose rows it computes.
        inputs: What it was given.
        family: How to read the model's routers.
        layers: Their number.

    Attributes:
        running: Whose rows it computes.
        inputs: What it was given.
        number: Among all passes that began.
        family: How to read the model's routers.
        modules: Routers by place among the MoE layers.
        outputs: What their forwards returned, likewise; None until a router has run. None
            altogether where tensors have to be picked while a router runs.
        captured: Tensors that were picked while a router ran, likewise.
        has_repeated: Whether a router ran twice.
        is_compiled: Whether compiled code computed it: then its tensors may change in place.
        is_fresh: Bool [L] on the device, of a replayed pass: whether each router's tensors are its.
    """

    __slots__ = (
        "captured", "family", "has_repeated", "inputs", "is_compiled", "is_fresh", "modules",
        "number", "outputs", "running",
    )  # fmt: skip

    def __init__(
        self, running: RunningBatch, inputs: PassInputs, family: RouterFamily, layers: int
    ) -> None:
        self.running = running
        self.inputs = inputs
        self.family = family
        self.modules: list[Any] = [None] * layers
        self.captured: list[Any] = [None] * layers
        self.outputs: list[Any] | None = [None] * layers if family.reads_output_alone else None
        self.has_repeated = self.is_compiled = False
        self.number = -1
        self.is_fresh: torch.Tensor | None = None

    def keep(self, place: int, module: object, tensors: tuple[torch.Tensor, ...]) -> None:
        """A router has run."""
        if self.captured[place] is not None:
            self.has_repeated = True
        self.captured[place] = tensors
        self.modules[place] = module

    @property
    def rows(self) -> int:
        """B * S."""
        return self.inputs.rows

    def tensors(self) -> Sequence[tuple[torch.Tensor, ...]]:
        """What `RouterFamily.capture` picks, by layer, of a whole pass.

        Without a gradient: tensors that have one need not be detached.

        Raises:
            TypeError: A router did not return what its family's routers return.
        """
        outputs, captured = self.outputs, self.captured
        if outputs is None:
            return captured
        first = outputs[0]
        # Most routers return a tuple of tensors: that is what would be picked.
        if (
            type(first) is tuple
            and all(hasattr(part, "detach") for part in first)
            and set(map(type, captured)) == {type(None)}
            and set(map(type, outputs)) == {tuple}
            and set(map(len, outputs)) == {len(first)}
        ):
            return outputs
        return [
            self.family.capture(module, (), {}, output) if tensors is None else tensors
            for module, output, tensors in zip(self.modules, outputs, captured, strict=True)
        ]

    def interpreted(self, wanted: Wanted) -> Routing:
        """What the routers of a whole pass decided, on the model's device.

        Expert ids of a replayed pass are −1, which is none, where they are not this replay's.
        """
        routing = self.family.interpret(
            self.modules, self.tensors(), scores=wanted.scores, weights=wanted.weights
        )
        if self.is_fresh is None:
            return routing
        return routing._replace(
            expert_ids=routing.expert_ids.masked_fill(~self.is_fresh[:, None], -1)
        )

    @property
    def is_whole(self) -> bool:
        """Whether each router ran once."""
        return not self.has_repeated and None not in self.modules


class Wanted(NamedTuple):
    """Which columns a recorder wants."""

    weights: bool
    scores: bool
    tokens: bool


class ComputedPass:
    """Passes that were computed, their tensors on their way to the host.

    Usually one; several where each computed the next token of each request (`steps`).

    Args:
        running: Whose rows they computed.
        inputs: What they were given; of several, S is their number, and `mask` is theirs alone.
        routing: What the routers decided, [B * S, L, …]; of several, [B, S * L, …].
        pass_ids: Number of the pass, or of each.
        wanted: Columns to bring along.
        is_steps: Whether each column is the next token of each request, and comes from a pass of
            its own.

    Attributes:
        running: Whose rows they computed.
        size: B * S.
        is_step: Whether they computed next tokens of the requests, and nothing else.

    Raises:
        RefusedPassError: The routers saw other rows than the pass was given.
    """

    def __init__(
        self, running: RunningBatch, inputs: PassInputs, routing: Routing, *,
        pass_ids: Sequence[int], wanted: Wanted, is_steps: bool = False,
    ) -> None:  # fmt: skip
        self.running = running
        self._pass_ids = pass_ids
        self._batch, self._length = inputs.batch, inputs.length
        self.size = inputs.rows
        rows = inputs.batch if is_steps else self.size
        if routing.expert_ids.shape[0] != rows:
            raise RefusedPassError(
                "routers saw other rows", f"{routing.expert_ids.shape[0]} of a pass over {rows}"
            )
        mask, attending = inputs.mask, None
        self._columns = 0 if mask is None else mask.shape[1]
        # Decode after decode: the rows before are known, their mask need not be read again.
        self._follows = is_steps or running.is_followed_by(inputs)
        self.is_step = is_steps or (self._follows and inputs.length == 1)
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
    def is_late(self) -> bool:
        """Whether the copy takes its time: then other work is better done first."""
        return self._copy.is_late

    @property
    def pass_id(self) -> int | NDArray[np.int64]:
        """Number of the pass, or [B * S] of the pass of each row."""
        if len(self._pass_ids) == 1:
            return self._pass_ids[0]
        return np.tile(np.array(self._pass_ids, np.int64), self._batch)

    def rows(self) -> HostRows:
        """Wait for the copy, and place the rows.

        Raises:
            RefusedPassError: They cannot be placed for certain.
        """
        (
            mask, is_token, keys_seen, fits, positions, past, tokens, ids, *columns
        ) = self._copy.arrays()  # fmt: skip
        before = self._past if past is None else int(past)
        if self._follows:
            is_there = np.ones((self._batch, self._length), np.bool_) if mask is None else mask != 0
            placed = place_behind(is_there, self.running.following)
            total = self.running.columns + self._length
        elif mask is not None:
            placed = place_by_mask(mask != 0, self._length, before)
            is_longer = self._columns > self._length
            total = self._columns if is_longer else before + self._length
        elif is_token is not None and keys_seen is not None:
            if not np.all(fits):
                raise RefusedPassError("an unknown mask", "fewer keys than columns")
            every = (self._batch, self._length)
            placed = place_by_attention(
                np.broadcast_to(is_token, every), np.broadcast_to(keys_seen, every), positions
            )
            total = before + self._length
        else:
            placed = place_in_order(self._batch, self._length, before, positions)
            total = before + self._length
        assert ids is not None  # noqa: S101 - there are always some
        if len(ids) != self.size:  # several passes: [B, S * L, …]
            ids, *columns = [self._by_row(column) for column in (ids, *columns)]
        return HostRows(placed, tokens, total, ids, *columns)

    def _by_row(self, column: Any) -> Any:  # noqa: ANN401 - an array or None
        if column is None:
            return None
        layers = column.shape[1] // self._length
        return column.reshape(self.size, layers, *column.shape[2:])


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
