"""The sections of routes: relabelling, gap planes and what else the router told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.batch import BatchHeader, Quantised, Routes
from moescope.core.wire.byte_planes import from_byte_planes, to_byte_planes
from moescope.core.wire.errors import BatchDecodeError
from moescope.core.wire.layout import SectionId
from moescope.core.wire.sections import Section, SectionWriter, inflate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.wire.limits import Budget

_BYTE_VALUES = 256
_CODE_WIDTHS = {4: 1, 8: 1, 16: 2}
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}
_QUANTISED = {
    "weights": SectionId.WEIGHTS,
    "entropy": SectionId.ENTROPY,
    "margin": SectionId.MARGIN,
}


def add_routes(writer: SectionWriter, routes: Routes) -> None:
    """Write every section of the routes."""
    width = 1 if routes.relabelling.shape[1] <= _BYTE_VALUES else 2
    writer.add_planes(SectionId.RELABELLING, width, to_byte_planes(routes.relabelling, width))
    _add_plane(writer, SectionId.GAPS, routes.gaps.itemsize, routes.gaps)
    if routes.top1 is not None:
        _add_plane(writer, SectionId.TOP1, 1, routes.top1)
    for name, section in _QUANTISED.items():
        quantised = getattr(routes, name)
        if quantised is not None:
            _add_plane(writer, section, quantised.bits, quantised.codes)
    if routes.dropped is not None:
        bits = np.packbits(routes.dropped, axis=None, bitorder="little")
        writer.add_columns(SectionId.DROPPED, bits.tobytes())


def take_routes(
    sections: dict[SectionId, Section], header: BatchHeader, tokens: int, memory: Budget
) -> Routes:
    """Read every section of the routes, and remove it from `sections`.

    Raises:
        BatchDecodeError: One is missing, malformed or too large.
    """
    layers, k = len(header.layers), header.top_k
    planes, plane = (k, layers, tokens), (layers, tokens)
    taker = _Taker(sections, memory)
    relabelling = taker.planes(SectionId.RELABELLING, (layers, header.experts))
    gaps = taker.planes(SectionId.GAPS, planes)
    if relabelling is None or gaps is None:
        raise BatchDecodeError("The batch has tokens but no routes")
    return Routes(
        gaps=gaps,
        relabelling=relabelling.astype(np.uint16),
        top1=taker.planes(SectionId.TOP1, plane),
        weights=taker.quantised(SectionId.WEIGHTS, planes),
        entropy=taker.quantised(SectionId.ENTROPY, plane),
        margin=taker.quantised(SectionId.MARGIN, plane),
        dropped=taker.bits(SectionId.DROPPED, planes),
    )


def _add_plane(
    writer: SectionWriter, section: SectionId, parameter: int, values: NDArray[Any]
) -> None:
    if values.itemsize == 1:
        contiguous = np.ascontiguousarray(values)
        writer.add_planes(section, parameter, contiguous.reshape(-1).data)
    else:
        writer.add_planes(section, parameter, to_byte_planes(values, values.itemsize))


class _Taker:
    def __init__(self, sections: dict[SectionId, Section], memory: Budget) -> None:
        self._sections = sections
        self._memory = memory

    def planes(self, identifier: SectionId, shape: tuple[int, ...]) -> NDArray[Any] | None:
        section = self._sections.pop(identifier, None)
        if section is None:
            return None
        return self._values(section, section.parameter, shape)

    def quantised(self, identifier: SectionId, shape: tuple[int, ...]) -> Quantised | None:
        section = self._sections.pop(identifier, None)
        if section is None:
            return None
        width = _CODE_WIDTHS.get(section.parameter, 0)
        return Quantised(codes=self._values(section, width, shape), bits=section.parameter)

    def bits(self, identifier: SectionId, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        section = self._sections.pop(identifier, None)
        if section is None:
            return None
        count = int(np.prod(shape))
        self._check(section, known=section.parameter == 0, length=(count + 7) // 8)
        self._memory.spend(count)
        packed = np.frombuffer(inflate(section), np.uint8)
        if count % 8 and packed[-1] >> (count % 8):
            raise BatchDecodeError(f"{section.title} has bits after its end")
        flags = np.unpackbits(packed, count=count, bitorder="little")
        return flags.view(np.bool_).reshape(shape)

    def _values(self, section: Section, width: int, shape: tuple[int, ...]) -> NDArray[Any]:
        count = int(np.prod(shape))
        self._check(section, known=width in _DTYPES, length=count * width)
        if width > 1:
            self._memory.spend(count * width)
        return from_byte_planes(inflate(section), width, _DTYPES[width]).reshape(shape)

    def _check(self, section: Section, *, known: bool, length: int) -> None:
        if not known:
            raise BatchDecodeError(f"{section.title} has the parameter {section.parameter}")
        if section.inflated_length != length:
            raise BatchDecodeError(
                f"{section.title} inflates to {section.inflated_length} bytes, not {length}"
            )
