"""A second decoder of wire format version 1, written from docs/reference/wire-format.md alone.

Plain Python, no numpy and nothing of moescope: slow, and independent of the codec it checks. It
reads valid batches; it refuses what it notices, and makes no promise about hostile bytes.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import zstandard

PHASES = 6
_UNSEEN, _PLACEMENT = 32769, 32770
_SECTIONS = {*range(1, 13), _UNSEEN, _PLACEMENT}
_CASTAGNOLI = 0x82F63B78


def decode(data: bytes) -> dict[str, Any]:
    """Decode a batch into dictionaries, lists, numbers and strings."""
    whole = _Bytes(data[:-4])
    magic, major, _minor, node_length, incarnation, sequence = whole.fields("<4sBBHQQ")
    _require(magic == b"MSRB", "magic")
    _require(major == 1, "major version")
    _require(crc32c(data[:-4]) == struct.unpack("<I", data[-4:])[0], "checksum")
    node = whole.text(node_length)
    sections = _sections(whole)
    batch: dict[str, Any] = {"node": node, "incarnation": incarnation, "sequence": sequence}
    counts = _header(_Bytes(sections[1][1]), batch)
    _additions(sections, batch)
    batch["requests"] = _requests(sections, counts["requests"])
    batch["tokens"] = _tokens(sections, counts["tokens"])
    batch["routes"] = _routes(sections, counts["tokens"], batch)
    batch["token_blocks"] = _token_blocks(sections, counts["token_blocks"], batch)
    batch["time_blocks"] = _time_blocks(sections, counts["time_blocks"], batch)
    return batch


def weight_value(code: int, bits: int) -> float:
    """The weight or margin that a code stands for."""
    if bits == 16:
        return float(struct.unpack("<e", struct.pack("<H", code))[0])
    if code == 0:
        return 0.0
    return math.exp2(0.4 * (code - 13) if bits == 4 else (code - 215) / 20)


def entropy_value(code: int, bits: int, experts: int) -> float:
    """The score entropy in nats that a code stands for."""
    if bits == 16:
        return weight_value(code, bits)
    return code / (15 if bits == 4 else 255) * math.log(experts)


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit over a table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_CASTAGNOLI if byte & 1 else 0)
    return byte


_CRC_TABLE = [_crc_entry(byte) for byte in range(256)]


def _require(condition: bool, what: str) -> None:  # noqa: FBT001 - reads like an assertion
    if not condition:
        message = f"not a valid batch: {what}"
        raise ValueError(message)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def take(self, length: int) -> bytes:
        _require(length <= self.left, "too short")
        self.position += length
        return self.data[self.position - length : self.position]

    def fields(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def number(self, layout: str) -> int:
        (value,) = self.fields(layout)
        return int(value)

    def text(self, length: int) -> str:
        return self.take(length).decode("utf-8")

    def short_text(self) -> str:
        return self.text(self.number("<H"))

    def planes(self, count: int, width: int) -> list[int]:
        planes = [self.take(count) for _ in range(width)]
        return [
            sum(plane[index] << (8 * byte) for byte, plane in enumerate(planes))
            for index in range(count)
        ]

    def differences(self, count: int) -> list[int]:
        value, width = self.fields("<QB")
        values = [value][:count]
        for z in self.planes(max(count - 1, 0), width):
            d = z // 2 if z % 2 == 0 else -((z + 1) // 2)
            value = (value + d) % 2**64
            values.append(value)
        return values

    def column(self, count: int, *, signed: bool) -> list[int]:
        form = self.number("<B")
        if form == 0:
            values = self.differences(count)
        elif form == 1:
            values = self.planes(count, self.number("<B"))
        else:
            _require(form == 2, "form of a column")
            distinct = self.differences(self.number("<I"))
            values = [distinct[index] for index in self.differences(count)]
        if signed:
            return [value - 2**64 if value >= 2**63 else value for value in values]
        return values

    def text_table(self) -> list[str]:
        lengths = self.column(self.number("<I"), signed=False)
        return [self.text(length) for length in lengths]

    def end(self) -> None:
        _require(self.left == 0, "bytes left in a section")


def _sections(whole: _Bytes) -> dict[int, tuple[int, bytes]]:
    sections: dict[int, tuple[int, bytes]] = {}
    while whole.left:
        identifier, encoding, parameter, stored, inflated = whole.fields("<HBBII")
        payload = whole.take(stored)
        if identifier not in _SECTIONS and identifier & 0x8000:
            continue
        _require(identifier in _SECTIONS, "unknown section")
        _require(identifier > max(sections, default=0), "order of sections")
        if encoding == 1:
            payload = zstandard.ZstdDecompressor().decompress(payload)
        _require(len(payload) == inflated, "inflated length")
        sections[identifier] = (parameter, payload)
    return sections


def _additions(sections: dict[int, tuple[int, bytes]], batch: dict[str, Any]) -> None:
    if _UNSEEN in sections:
        section = _Bytes(sections[_UNSEEN][1])
        batch["unseen_rows"] = section.number("<Q")
        section.end()
    if _PLACEMENT in sections:
        section = _Bytes(sections[_PLACEMENT][1])
        version, ranks = section.fields("<QH")
        layers, experts = len(batch["layers"]), batch["experts"]
        flat = section.column(layers * experts, signed=False)
        section.end()
        rows = [flat[start : start + experts] for start in range(0, len(flat), experts)]
        batch["placement"] = {"version": version, "ranks": ranks, "rank_of": rows}


def _header(section: _Bytes, batch: dict[str, Any]) -> dict[str, int]:
    batch["watermark_us"], batch["encoded_at_us"] = section.fields("<qq")
    batch["expert_map_version"], batch["sampling_ratio"] = section.fields("<Qd")
    batch["ranks"] = list(section.fields("<4i"))
    batch["drops"] = list(section.fields("<4Q"))
    for name in (
        "origin",
        "id_space",
        "score_kind",
        "rank_order",
        "fidelity",
        "token_id_kind",
    ):
        batch[name] = section.number("<B")
    batch["experts"], batch["top_k"] = section.fields("<HH")
    layers, labels = section.fields("<HH")
    requests, tokens, token_blocks, time_blocks = section.fields("<4I")
    batch["layers"] = list(section.fields(f"<{layers}H"))
    for name in ("model", "revision", "engine", "engine_version"):
        batch[name] = section.short_text()
    batch["labels"] = {}
    for _ in range(labels):
        key = section.short_text()
        batch["labels"][key] = section.short_text()
    section.end()
    return {
        "requests": requests,
        "tokens": tokens,
        "token_blocks": token_blocks,
        "time_blocks": time_blocks,
    }


def _requests(sections: dict[int, tuple[int, bytes]], count: int) -> dict[str, Any]:
    if not count:
        return {"ids": [], "tasks": [], "scenes": [], "phase_starts": [], "cached_tokens": []}
    section = _Bytes(sections[2][1])
    table = section.text_table()
    names = [[table[index] for index in section.column(count, signed=False)] for _ in range(3)]
    starts = [section.column(count, signed=True) for _ in range(PHASES)]
    cached = section.column(count, signed=True)
    section.end()
    return {
        "ids": names[0],
        "tasks": names[1],
        "scenes": names[2],
        "phase_starts": [list(row) for row in zip(*starts, strict=True)],
        "cached_tokens": cached,
    }


def _tokens(sections: dict[int, tuple[int, bytes]], count: int) -> dict[str, Any] | None:
    if not count:
        return None
    section = _Bytes(sections[3][1])
    present = section.number("<H")
    tokens: dict[str, Any] = {
        name: section.column(count, signed=name in ("request", "position"))
        for name in ("request", "position", "phase", "flags")
    }
    optional = ("event_time_us", "pass_id", "step", "token_id", "content_key", "block")
    for bit, name in enumerate(optional):
        signed = name not in ("token_id", "content_key")
        tokens[name] = section.column(count, signed=signed) if present >> bit & 1 else None
    section.end()
    return tokens


class _Shape:
    """Picks one token's values out of planes."""

    def __init__(self, batch: dict[str, Any], tokens: int) -> None:
        self.layers, self.k, self.tokens = len(batch["layers"]), batch["top_k"], tokens
        self.cells = self.layers * tokens

    def per_layer(self, values: list[int]) -> list[list[int]]:
        """Bring [L][T] into [T][L]."""
        return [
            [values[layer * self.tokens + token] for layer in range(self.layers)]
            for token in range(self.tokens)
        ]

    def per_expert(self, values: list[int]) -> list[list[list[int]]]:
        """Bring [k][L][T] into [T][L][k]."""
        planes = [
            self.per_layer(values[start : start + self.cells])
            for start in range(0, self.k * self.cells, self.cells)
        ]
        return [
            [[plane[token][layer] for plane in planes] for layer in range(self.layers)]
            for token in range(self.tokens)
        ]


def _routes(
    sections: dict[int, tuple[int, bytes]], tokens: int, batch: dict[str, Any]
) -> dict[str, Any] | None:
    if not tokens:
        return None
    shape = _Shape(batch, tokens)
    routes: dict[str, Any] = {
        "expert_ids": _expert_ids(sections, shape, batch["experts"]),
        "top1": shape.per_layer(list(sections[6][1])) if 6 in sections else None,
        "weights": _codes(sections.get(7), shape, per_expert=True),
        "entropy": _codes(sections.get(8), shape, per_expert=False),
        "margin": _codes(sections.get(9), shape, per_expert=False),
        "dropped": None,
    }
    if 10 in sections:
        packed = sections[10][1]
        bits = [packed[i // 8] >> (i % 8) & 1 for i in range(shape.k * shape.cells)]
        routes["dropped"] = shape.per_expert(bits)
    return routes


def _expert_ids(
    sections: dict[int, tuple[int, bytes]], shape: _Shape, experts: int
) -> list[list[list[int]]]:
    width, payload = sections[4]
    relabelling = _Bytes(payload).planes(shape.layers * experts, width)
    width, payload = sections[5]
    rows = shape.per_expert(_Bytes(payload).planes(shape.k * shape.cells, width))
    for token in rows:
        for layer, gaps in enumerate(token):
            rank = 0
            for place, gap in enumerate(gaps):
                rank += gap
                known = rank < experts
                gaps[place] = relabelling[layer * experts + rank] if known else rank
    return rows


def _codes(
    section: tuple[int, bytes] | None, shape: _Shape, *, per_expert: bool
) -> dict[str, Any] | None:
    if section is None:
        return None
    bits, payload = section
    count = shape.cells * (shape.k if per_expert else 1)
    values = _Bytes(payload).planes(count, 2 if bits == 16 else 1)
    return {
        "bits": bits,
        "codes": shape.per_expert(values) if per_expert else shape.per_layer(values),
    }


def _token_blocks(
    sections: dict[int, tuple[int, bytes]], count: int, batch: dict[str, Any]
) -> dict[str, Any] | None:
    if not count:
        return None
    section = _Bytes(sections[11][1])
    present = section.number("<H")
    blocks: dict[str, Any] = {}
    for name in ("request", "phase", "flags", "start_position", "tokens"):
        blocks[name] = section.column(count, signed=name not in ("phase", "flags"))
    for bit, name in enumerate(("first_time_us", "last_time_us", "step")):
        blocks[name] = section.column(count, signed=True) if present >> bit & 1 else None
    _counts(section, blocks, count, batch, has_dropped=bool(present >> 3 & 1))
    return blocks


def _time_blocks(
    sections: dict[int, tuple[int, bytes]], count: int, batch: dict[str, Any]
) -> dict[str, Any] | None:
    if not count:
        return None
    section = _Bytes(sections[12][1])
    present = section.number("<H")
    blocks: dict[str, Any] = {"scenes": section.text_table()}
    for name in ("second_us", "phase", "scene", "tokens", "requests"):
        blocks[name] = section.column(count, signed=name not in ("phase", "scene"))
    _counts(section, blocks, count, batch, has_dropped=bool(present & 1))
    return blocks


def _counts(
    section: _Bytes,
    blocks: dict[str, Any],
    count: int,
    batch: dict[str, Any],
    *,
    has_dropped: bool,
) -> None:
    layers, experts = len(batch["layers"]), batch["experts"]
    flat = section.column(count * layers * experts, signed=False)
    rows = [flat[start : start + experts] for start in range(0, len(flat), experts)]
    blocks["counts"] = [rows[start : start + layers] for start in range(0, len(rows), layers)]
    blocks["dropped"] = None
    if has_dropped:
        flat = section.column(count * layers, signed=False)
        blocks["dropped"] = [flat[start : start + layers] for start in range(0, len(flat), layers)]
    section.end()
