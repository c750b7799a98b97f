"""One JSON line of routing, understood: a token at one layer, or a token at all layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moescope.core.vocabulary import MAX_EXPERTS, Phase
from moescope.producers.importers.errors import RejectedLineError
from moescope.producers.importers.json_values import (
    as_expert_ids,
    as_integer,
    as_name,
    as_time_us,
    as_weights,
    look_up,
    shown,
)
from moescope.producers.importers.options import IMPORTABLE_PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = (
    "request",
    "task",
    "scene",
    "position",
    "layer",
    "experts",
    "weights",
    "time",
    "phase",
    "pass",
    "step",
    "prompt_tokens",
)
_LARGEST_POSITION = 2**31 - 2
_LARGEST_COUNTER = 2**62


@dataclass(slots=True, kw_only=True)
class Line:
    """Values of one line.

    Attributes:
        layer: Index, or −1 when `experts` holds all layers.
        experts: Ids layer after layer, as many as `layers` × `top_k`.
        weights: In the order of `experts`, or None.
        position, time_us, pass_id, step, prompt_tokens: −1 when the line does not say.
        request, task, scene: Empty when the line does not say.
    """

    experts: list[int]
    layers: int
    top_k: int
    layer: int
    weights: list[float] | None
    request: str
    task: str
    scene: str
    phase: int
    position: int
    time_us: int
    pass_id: int
    step: int
    prompt_tokens: int

    @property
    def shape(self) -> tuple[bool, int, int]:
        """What all lines of a file have in common: form, layers, ids per layer."""
        return self.layer >= 0, self.layers, self.top_k

    @property
    def columns(self) -> tuple[bool, bool, bool, bool, bool]:
        """Which optional columns the line has; again the same for all lines of a file."""
        values = self.position, self.time_us, self.pass_id, self.step
        has = [value >= 0 for value in values]
        return has[0], has[1], has[2], has[3], self.weights is not None


class LineReader:
    """Understands lines by a field map.

    Args:
        names: Field → name in the file; an empty name means that the file does not have it.
        default_phase: Of lines that name none.
        time_unit: Of times that are numbers.
        with_weights: Whether weights are wanted.
    """

    def __init__(
        self, names: Mapping[str, str], default_phase: Phase, time_unit: str, *, with_weights: bool
    ) -> None:
        self._names = names
        self._default_phase = default_phase
        self._time_unit = time_unit
        self._with_weights = with_weights

    def read(self, record: dict[str, Any]) -> Line:
        """Understand one line.

        Raises:
            RejectedLineError: A value is missing or wrong.
        """
        experts = self._value(record, "experts")
        if experts is None:
            raise RejectedLineError("no experts", f"field {self._names['experts']!r} is missing")
        nested = isinstance(experts, list) and bool(experts) and isinstance(experts[0], list)
        layer = self._value(record, "layer")
        if nested:
            per_layer = [as_expert_ids(ids) for ids in experts]
        else:
            if layer is None:
                raise RejectedLineError("no layer", f"field {self._names['layer']!r} is missing")
            per_layer = [as_expert_ids(experts)]
        top_k = len(per_layer[0])
        if any(len(ids) != top_k for ids in per_layer):
            raise RejectedLineError("layers with different numbers of experts")
        time = self._value(record, "time")
        return Line(
            experts=[expert for ids in per_layer for expert in ids],
            layers=len(per_layer),
            top_k=top_k,
            layer=-1 if nested else as_integer(layer, "layer", MAX_EXPERTS),
            weights=self._weights(record, nested=nested, layers=len(per_layer), top_k=top_k),
            request=self._name(record, "request"),
            task=self._name(record, "task"),
            scene=self._name(record, "scene"),
            phase=self._phase(record),
            position=self._integer(record, "position", _LARGEST_POSITION),
            time_us=-1 if time is None else as_time_us(time, self._time_unit),
            pass_id=self._integer(record, "pass", _LARGEST_COUNTER),
            step=self._integer(record, "step", _LARGEST_COUNTER),
            prompt_tokens=self._integer(record, "prompt_tokens", _LARGEST_POSITION),
        )

    def _value(self, record: dict[str, Any], field: str) -> Any:
        name = self._names[field]
        return look_up(record, name) if name else None

    def _name(self, record: dict[str, Any], field: str) -> str:
        value = self._value(record, field)
        return "" if value is None else as_name(value, field)

    def _integer(self, record: dict[str, Any], field: str, largest: int) -> int:
        value = self._value(record, field)
        return -1 if value is None else as_integer(value, field, largest)

    def _phase(self, record: dict[str, Any]) -> int:
        value = self._value(record, "phase")
        if value is None:
            return self._default_phase
        phase = IMPORTABLE_PHASES.get(value.lower()) if isinstance(value, str) else None
        if phase is None:
            raise RejectedLineError("unknown phase", shown(value))
        return phase

    def _weights(
        self, record: dict[str, Any], *, nested: bool, layers: int, top_k: int
    ) -> list[float] | None:
        value = self._value(record, "weights") if self._with_weights else None
        if value is None:
            return None
        if not nested:
            return as_weights(value, top_k)
        if not isinstance(value, list) or len(value) != layers:
            raise RejectedLineError("weights do not match the experts")
        return [weight for part in value for weight in as_weights(part, top_k)]
