from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rings import EXPERTS, LAYERS, START_US, TOP_K, ids_of, small_recorder

from moescope.core.clock import ManualClock
from moescope.core.vocabulary import Phase
from moescope.producers.ring.reader import RingReader
from moescope.producers.ring.rows import read_rows

if TYPE_CHECKING:
    from moescope.producers import Recorder

USUAL: Final[dict[str, list[Any]]] = {
    "shift": [0, 0, 0, 0, 0, 0, 1, -1],
    "kind": ["u1", "i4", "i8", "u8", ">i4"],
    "bad_id": [None],
    "is_reversed": [False, True],
    "position_kind": ["i8", "u8", ">i8"],
    "phase": ["decode", "decode", "prefill", Phase.EVAL, 1, "draft", "u1 array", "i8 array"],
    "tokens": [None, None, "i4", "u8"],
    "keys": [None, None, "u8"],
    "pass_id": [None, 7],
    "step": [None, None, 5],
    "weights": [None, None, "f4", "f8"],
    "scores": [None, "f4", "f2", ">f8"],
    "dropped": [None, None, "?"],
    "counts": ["list", "i8", "i4"],
    "event_time_us": [None, START_US],
    "has_padding": [False],
}
UNUSUAL: Final[dict[str, list[Any]]] = {
    "shift": [-2_000, 2**31],
    "kind": ["f4"],
    "bad_id": [EXPERTS, -1],
    "position_kind": ["list"],
    "phase": ["Decode", "unheard of", True, [1], "drafts"],
    "tokens": ["f8"],
    "keys": ["f8"],
    "pass_id": [-7, 2**63, 1.5],
    "step": [-1, 2**60, np.int64(3)],
    "weights": ["i4"],
    "scores": ["?"],
    "dropped": ["u1"],
    "counts": ["f8", "with a zero"],
    "event_time_us": [-1],
    "has_padding": [True],
}


STEPS_EACH: Final = 80


def drawn_call(draw: random.Random) -> dict[str, Any]:
    """How a call is made: usual in all respects, or in all but one."""
    call = {name: draw.choice(values) for name, values in USUAL.items()}
    if draw.random() < 0.2:
        odd = draw.choice([*UNUSUAL])
        call[odd] = draw.choice(UNUSUAL[odd])
    return call


def drawn_step(draw: random.Random) -> tuple[Any, ...]:
    """Something that an engine does."""
    action = draw.choice(
        [*["batch"] * 6, *["mixed"] * 3, "equal names", "swap", "prompt", "unsorted", "other"]
    )
    name = draw.choice("abcdef")
    if action == "swap":
        return (
            action,
            draw.randrange(4),
            draw.choice([*"abcdefghijklmnopqr" * 2, "x" * 600, "\ud800"]),
        )
    if action == "prompt":
        return action, name, draw.choice([1, 2, 40, 500]), drawn_call(draw)
    if action == "unsorted":
        return action, name, drawn_call(draw)
    if action == "mixed":
        return action, [draw.choice([1, 1, 2, 30]) for _ in range(4)], drawn_call(draw)
    if action == "other":
        return draw.choice([
            ("fidelity", *draw.choice([("full", 1.0), ("sampled", 0.5), ("counts", 1.0)])),
            ("begin", name, draw.randrange(9)),
            ("end", name),
            ("clock", draw.choice([-2_000_000, -300, 1, 5_000])),
        ])  # fmt: skip
    return action, drawn_call(draw)


class Engine:
    """Tells two recorders the same: one may record usual calls the short way, one may not."""

    def __init__(self, folder: Path, *, is_sampled: bool) -> None:
        self.clock = ManualClock(START_US)
        options: dict[str, Any] = {"clock": self.clock}
        if is_sampled:
            options |= {"fidelity": "sampled", "sampling_ratio": 0.5}
        self.short = small_recorder(folder / "short", **options)
        self.general = small_recorder(folder / "general", **options)
        self.general._calls.usual = None  # noqa: SLF001 - there is no other way to forbid it
        self.batch = ["a", "b", "c", "d"]
        self.next = dict.fromkeys(self.batch, 0)

    def do(self, step: tuple[Any, ...]) -> None:
        """One step."""
        action, *rest = step
        getattr(self, "do_" + action.replace(" ", "_"))(*rest)

    def do_batch(self, call: dict[str, Any]) -> None:
        """A row each of several requests."""
        self.record(self.batch, [self.take(name) for name in self.batch], call)

    def do_mixed(self, counts: list[int], call: dict[str, Any]) -> None:
        """A run of rows each of several requests."""
        if call["counts"] == "with a zero":
            counts = [0, *counts[1:]]
        positions = [
            self.take(name)
            for name, rows in zip(self.batch, counts, strict=True)
            for _ in range(rows)
        ]
        self.record(self.batch, positions, call, counts)

    def do_equal_names(self, call: dict[str, Any]) -> None:
        """A batch of names that are equal, and other objects."""
        equal = ["".join(["", *name]) for name in self.batch]
        self.record(equal, [self.take(name) for name in self.batch], call)

    def do_swap(self, place: int, name: str) -> None:
        """Another request takes a place."""
        self.batch[place] = name

    def do_prompt(self, name: str, rows: int, call: dict[str, Any]) -> None:
        """Many rows of one request."""
        self.record(name, [self.take(name) for _ in range(rows)], call)

    def do_unsorted(self, name: str, call: dict[str, Any]) -> None:
        """Rows of one request in another order."""
        first, second, third = (self.take(name) for _ in range(3))
        self.record(name, [first, third, second], call)

    def do_clock(self, step_us: int) -> None:
        """Time goes on, or back."""
        self.clock.set_us(self.clock.now_us() + step_us)

    def do_fidelity(self, fidelity: str, ratio: float) -> None:
        """More or less is recorded from now on."""
        for recorder in (self.short, self.general):
            assert recorder.set_fidelity(fidelity, ratio)

    def do_begin(self, name: str, prompt_tokens: int) -> None:
        """A request begins, or says more."""
        for recorder in (self.short, self.general):
            recorder.begin_request(name, prompt_tokens=prompt_tokens, task="t")

    def do_end(self, name: str) -> None:
        """A request is over."""
        for recorder in (self.short, self.general):
            recorder.end_request(name)
        self.next[name] = 0

    def take(self, name: str) -> int:
        """The next position of a request."""
        position = self.next.get(name, 0)
        self.next[name] = position + 1
        return position

    def record(
        self,
        names: str | list[str],
        positions: list[int],
        call: dict[str, Any],
        counts: list[int] | None = None,
    ) -> None:
        """The same call to both."""
        rows = len(positions)
        if call["phase"] == "draft":  # the real token has the same position
            for name, drafts in zip(
                [names] if isinstance(names, str) else names,
                counts or ([rows] if isinstance(names, str) else [1] * rows),
                strict=True,
            ):
                self.next[name] -= drafts
        shifted = [position + call["shift"] for position in positions]
        kind = call["position_kind"]
        if kind == "u8":
            shifted = [position % 2**64 for position in shifted]
        ids = ids_of(positions)
        if call["bad_id"] is not None:
            ids[rows // 2, 1, 0] = call["bad_id"]
        ids = ids.astype(call["kind"])
        arguments = columns_of(call, rows)
        if counts is not None:
            given = call["counts"]
            arguments["rows_per_request"] = (
                counts if given in {"list", "with a zero"} else np.array(counts, given)
            )
        for recorder in (self.short, self.general):
            recorder.record(
                names, shifted if kind == "list" else np.array(shifted, kind),
                ids[:, ::-1] if call["is_reversed"] else ids, **arguments,
            )  # fmt: skip


def columns_of(call: dict[str, Any], rows: int) -> dict[str, Any]:
    """All that a call says beside requests, positions and ids."""

    def drawn(kind: str | None, *shape: int) -> Any:
        if kind is None:
            return None
        numbers = np.arange(rows * int(np.prod(shape))).reshape(rows, *shape)
        return (numbers % 2 == 0) if kind == "?" else (numbers / 8).astype(kind)

    phase = call["phase"]
    if str(phase).endswith(" array"):
        phase = (np.arange(rows) % 2).astype(phase.removesuffix(" array"))
    elif phase == "drafts":
        phase = np.where(np.arange(rows) % 3, Phase.DRAFT, Phase.DECODE)
    tokens = None if call["tokens"] is None else np.arange(rows).astype(call["tokens"])
    if call["tokens"] == "u8":
        tokens = np.uint64(2**64 - 1) - np.arange(rows, dtype=np.uint64)
    layers, top_k = len(LAYERS), TOP_K
    return {
        "phase": phase,
        "token_ids": tokens,
        "content_keys": drawn(call["keys"]),
        "pass_id": call["pass_id"],
        "step": call["step"],
        "event_time_us": call["event_time_us"],
        "weights": drawn(call["weights"], layers, top_k),
        "entropy": drawn(call["scores"], layers),
        "margin": drawn(call["scores"], layers),
        "dropped": drawn(call["dropped"], layers, top_k),
        "padding": np.arange(rows) == 1 if call["has_padding"] else None,
    }


def in_ring(recorder: Recorder) -> list[tuple[Any, ...]]:
    """All frames of a recorder's ring, as plainly as can be compared."""
    ring = recorder._ring  # noqa: SLF001 - the recorder does not tell where it writes
    assert ring is not None
    reader = RingReader(ring.path)
    found: list[tuple[Any, ...]] = []
    while (frame := reader.read()) is not None:
        header = frame.header._replace(crc=0)  # covers gaps, which hold anything
        if header.kind == 2:
            rows = read_rows(frame, recorder.profile.shape)
            columns = {name: values.tolist() for name, values in rows.columns.items()}
            found.append((frame.terms, header, rows.facts, rows.counts.tolist(), columns))
        else:
            found.append((frame.terms, header, bytes(frame.body[: header.runs_bytes])))
    assert reader.damaged == 0
    reader.close()
    return found


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), is_sampled=st.sampled_from([False, False, False, True]))
def test_the_short_way_records_what_the_general_way_records(seed: int, *, is_sampled: bool) -> None:
    """Whatever an engine does, ring and counters do not tell whether a call went the short way."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder), is_sampled=is_sampled)
        with engine.short, engine.general:
            for _ in range(STEPS_EACH):
                engine.do(drawn_step(draw))
            assert in_ring(engine.short) == in_ring(engine.general)
            assert engine.short.counters() == engine.general.counters()
            assert engine.short.counters().internal_errors == 0
