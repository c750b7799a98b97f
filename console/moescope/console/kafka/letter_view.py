"""One dead letter for people: where it came from, what is wrong, what its bytes are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from moescope.console.kafka.replay_batches import readable_batch
from moescope.console.times import shown
from moescope.core.clock import NO_TIME
from moescope.core.errors import MoescopeError

if TYPE_CHECKING:
    from moescope.console.kafka.letters import FoundLetter

_SHOWN_BYTES: Final = 256
_LINE: Final = 16
_PRINTABLE: Final = range(32, 127)


def letter_row(found: FoundLetter) -> dict[str, Any]:
    """A letter without its payload, as JSON values; times in µs since the epoch."""
    published, letter = found.published, found.published.letter
    return {
        "key": found.key,
        "reason": letter.reason,
        "detail": letter.detail,
        "topic": published.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "append_time_us": None if letter.append_time_us == NO_TIME else letter.append_time_us,
        "published_us": found.published_us,
        "payload": published.payload_state.value,
        "payload_bytes": found.payload_bytes,
        "sha256": published.sha256,
        "replay": None
        if found.mark is None
        else {
            "state": found.mark.kind.value,
            "incarnation": found.mark.incarnation,
            "sequence": found.mark.sequence,
            "marked_us": found.mark.marked_us,
            "author": found.mark.author,
            "reason": found.mark.reason,
        },
    }


def letter_pairs(found: FoundLetter) -> dict[str, object]:
    """The same for the terminal."""
    row = letter_row(found)
    replay = row.pop("replay")
    for name in ("append_time", "published"):
        row[f"{name} (UTC)"] = shown(row.pop(f"{name}_us"))
    row["replay"] = (
        "never" if replay is None else f"{replay['state']} {shown(replay['marked_us'])} by "
        f"{replay['author']}: {replay['reason'] or 'no reason given'}"
    )  # fmt: skip
    return row


def batch_summary(payload: bytes) -> dict[str, Any]:
    """What a payload is to this version: fields of its header, or why it cannot be used."""
    try:
        batch = readable_batch(payload)
    except MoescopeError as error:
        return {"readable": False, "why": error.what}
    header = batch.header
    return {
        "readable": True,
        "node": header.node,
        "incarnation": header.incarnation,
        "sequence": header.sequence,
        "model": header.model,
        "revision": header.revision,
        "fidelity": header.fidelity.name.lower(),
        "layers": len(header.layers),
        "experts": header.experts,
        "top_k": header.top_k,
        "rows": 0 if batch.tokens is None else len(batch.tokens),
        "watermark_us": None if header.watermark_us == NO_TIME else header.watermark_us,
    }


def hex_view(payload: bytes, most: int = _SHOWN_BYTES) -> list[str]:
    """The first bytes, sixteen a line: place, hexadecimal, and what is printable of them."""
    lines = []
    for place in range(0, min(len(payload), most), _LINE):
        piece = payload[place : place + _LINE]
        text = "".join(chr(byte) if byte in _PRINTABLE else "." for byte in piece)
        lines.append(f"{place:08x}  {piece.hex(' '):<47}  {text}")
    return lines
