"""Plain values and emissions come back as they were, and hostile bytes are refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emission_values import EMISSIONS, FLOATS, TEXTS
from support.plain_equality import same

from moescope.core.accounts import PartitionProgress
from moescope.core.emission import Emission, LaneKey, SharedDelta
from moescope.core.emission_records import (
    EMISSION_KINDS,
    EmissionAssembler,
    EmissionRecord,
    emission_records,
    read_state,
)
from moescope.core.errors import InternalError
from moescope.core.plain_codec import (
    Kinds,
    PlainFormatError,
    PlainLimits,
    PlainVersionError,
    pack,
    unpack,
)
from moescope.core.vocabulary import ScopeKind, WindowKind

if TYPE_CHECKING:
    from random import Random

NOTHING = Kinds(())
SCALARS = st.none() | st.booleans() | st.integers() | FLOATS | TEXTS | st.binary(max_size=9)
KEYS = st.one_of(st.booleans(), st.integers(), TEXTS, st.binary(max_size=3), st.tuples(TEXTS))
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(KEYS, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


def framed(head: object, body: bytes = b"") -> bytes:
    """Bytes with any head, framed as the format wants them."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    raw = text + b"\0" * (-len(text) % 8) + body
    return struct.pack("<4sBQI", b"MSPV", 1, len(raw), len(text)) + zstandard.compress(raw)


def head_of(**changed: object) -> dict[str, object]:
    """A head of the number 1, with something changed."""
    return {
        "kinds": [],
        "shared": [],
        "shapes": [],
        "arrays": [],
        "bytes": [],
        "value": 1,
    } | changed


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_plain_values_come_back(value: object) -> None:
    """Any value of plain types is the same after a round trip, its types included."""
    assert same(unpack(pack(value, NOTHING), NOTHING), value)


@settings(max_examples=15, deadline=None)
@given(EMISSIONS)
def test_emissions_come_back(emission: Emission) -> None:
    """Every field of every class of an emission survives the way through records."""
    assembler = EmissionAssembler()
    *before, last = [assembler.add(each) for each in emission_records(emission, "a", 7)]
    assert before == [None] * len(before)
    assert last is not None
    assert same(last, emission)
    assert assembler.begins_at is None


@settings(max_examples=15, deadline=None)
@given(EMISSIONS, st.data())
def test_damaged_bytes_raise_one_error(emission: Emission, data: st.DataObject) -> None:
    """Whatever is cut off or flipped ends in the one error, or is a value nevertheless."""
    packed = bytearray(pack(emission, EMISSION_KINDS))
    place = data.draw(st.integers(0, len(packed) - 1))
    if data.draw(st.booleans()):
        del packed[place:]
    else:
        packed[place] ^= data.draw(st.integers(1, 255))
    try:
        unpack(bytes(packed), EMISSION_KINDS)
    except PlainFormatError:
        return
    assert len(packed) > place


NESTED = b'{"kinds":[],"shared":[],"shapes":[],"arrays":[],"bytes":[],"value":'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"MSPV\x01",
        b"x" * 40,
        framed(b"no json"),
        framed(b"[" * 200_000),
        framed(NESTED + b"[1," * 200 + b"1" + b"]" * 200 + b"}"),
        framed([]),
        framed({}),
        framed(head_of(value=[9])),
        framed(head_of(value=[])),
        framed(head_of(value={"a": 1})),
        framed(head_of(value=[5])),
        framed(head_of(value=[6])),
        framed(head_of(value=[4, 0])),
        framed(head_of(value=[2, 1])),
        framed(head_of(value=[2, [1], 1])),
        framed(head_of(bytes=[-1])),
        framed(head_of(bytes=[1 << 62])),
        framed(head_of(arrays=[0])),
        framed(head_of(shapes=[["|O", [1]]], arrays=[0]), b"\0" * 8),
        framed(head_of(shapes=[["<i8", [1 << 62]]], arrays=[0]), b"\0" * 8),
        framed(head_of(shapes=[["<i8", [-1]]], arrays=[0]), b"\0" * 8),
        framed(head_of(shapes=[["<i8", [1]]], arrays=[0], value=[0, [5], [5]]), b"\0" * 8),
        framed(head_of(kinds=[["LaneKey", "domain"]])),
        framed(head_of(kinds=[["LaneKey", "domain", "domain"]])),
        framed(head_of(kinds=[["WindowKind"]], shared=[[0, "no such kind"]])),
        framed(head_of(kinds=[["WindowKind"]], shared=[[0, [4, 0]]])),
    ],
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    """No structure of the bytes gets anything but the one error."""
    with pytest.raises(PlainFormatError):
        unpack(data, EMISSION_KINDS)


@pytest.mark.parametrize(
    "data",
    [
        framed(head_of(kinds=[["os.system", "command"]])),
        framed(head_of(kinds=[["Path"]])),
        framed(head_of(kinds=[["DeadLetterCount", "colour"]])),
        struct.pack("<4sBQI", b"MSPV", 2, 1, 1) + zstandard.compress(b"1"),
    ],
)
def test_unknown_classes_are_never_made(data: bytes) -> None:
    """A class, field or format that is not declared is another version's, and refused as such."""
    with pytest.raises(PlainVersionError, match="another version"):
        unpack(data, EMISSION_KINDS)


def test_declared_sizes_are_checked_before_memory_is_taken() -> None:
    """Neither the prefix nor the frame can make a reader allocate more than its limit."""
    zeros = zstandard.compress(bytes(1 << 20))
    small = PlainLimits(inflated_bytes=1 << 16)
    for size in (1 << 20, 1 << 50, 1 << 10):
        with pytest.raises(PlainFormatError):
            unpack(struct.pack("<4sBQI", b"MSPV", 1, size, 10) + zeros, NOTHING, small)


def test_undeclared_values_are_not_sent() -> None:
    """A value that nobody could read is refused where it is made."""
    lane = LaneKey("live", "m", "r", "model", "full", 1.0, 4, 1, (0,))
    for value in (object(), {1, 2}, 1j, lane, np.array(["a"]), np.array([None])):
        with pytest.raises(InternalError):
            pack([value], NOTHING)
    with pytest.raises(InternalError, match="too large"):
        pack(bytes(1 << 20), NOTHING, PlainLimits(inflated_bytes=1 << 10))


def test_arrays_are_writable_and_their_own() -> None:
    """Who keeps one array of an emission neither shares nor holds the memory of the others."""
    first, second = unpack(pack([np.zeros(3), np.ones((2, 0))], NOTHING), NOTHING)
    first[:] = 5
    assert first.flags.owndata or first.base.size == first.size
    assert second.shape == (2, 0)


def test_fields_with_defaults_may_be_absent() -> None:
    """What an older moescope wrote, before a field was there, is read with its default."""
    names = ["partition", "domain", "emitted_to", "replay_from", "state", "watermark_us"]
    names += ["step_low", "sealed"]
    tree = [7, 0, "p-0", "live", 5, 3, [6], 9, 9, False]
    data = framed(head_of(kinds=[["PartitionProgress", *names]], bytes=[2], value=tree), b"ab")
    progress = unpack(data, EMISSION_KINDS)
    assert (progress.partition, progress.state, progress.set_aside_us) == ("p-0", b"ab", ())


def sent(emission: Emission, sender: str, number: int) -> list[EmissionRecord]:
    """Records of an emission, cut into many small parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moescope.core.emission_records.PART_BYTES", 200)
        return emission_records(emission, sender, number)


@settings(max_examples=6, deadline=None)
@given(st.lists(EMISSIONS, min_size=2, max_size=3), st.randoms(use_true_random=False))
def test_interleaved_senders_are_kept_apart(emissions: list[Emission], random: Random) -> None:
    """Parts of several senders in any mixture give each sender's emission whole."""
    queues = [sent(each, f"s{number}", 1) for number, each in enumerate(emissions)]
    assembler = EmissionAssembler()
    found = []
    while any(queues):
        queue = random.choice([each for each in queues if each])
        emission = assembler.add(queue.pop(0))
        found += [] if emission is None else [emission]
    assert len(found) == len(emissions)
    for emission in emissions:
        assert any(same(emission, each) for each in found)
    assert (assembler.begins_at, assembler.forgotten) == (None, 0)


@settings(max_examples=6, deadline=None)
@given(EMISSIONS.filter(lambda each: each.progress), EMISSIONS, st.randoms(use_true_random=False))
def test_states_are_found_by_their_first_record(
    emission: Emission, other: Emission, random: Random
) -> None:
    """From the first part of a state on, the state can be read whatever lies in between."""
    records, others = sent(emission, "a", 3), sent(other, "b", 3)
    for progress in emission.progress:
        key = f"state/{progress.partition}".encode()
        place = next(number for number, each in enumerate(records) if each.key == key)
        mixed = [records[place]]
        for record in records[place + 1 :]:
            mixed += [*random.sample(others, random.randint(0, len(others))), record]
        assert same(read_state(iter(mixed)), progress)


def test_states_that_are_none_are_refused() -> None:
    """A place that holds no state, or only its beginning, is an error and no other state."""
    records = sent(PROGRESSED, "a", 1)
    for wrong in ([], records[-1:], records[1:2], records[:1], [records[0], *records[2:]]):
        with pytest.raises(PlainFormatError):
            read_state(wrong)


PROGRESSED = Emission(
    progress=(
        PartitionProgress(
            partition="p-0", domain="live", emitted_to=5, replay_from=3,
            state=bytes(range(256)) * 4, watermark_us=9, step_low=9, sealed=False,
            set_aside_us=(1, 2),
        ),
    ),
)  # fmt: skip


def test_the_beginning_of_what_is_unfinished_is_known() -> None:
    """A reader that starts again there loses nothing of it."""
    assembler = EmissionAssembler()
    records, others = sent(PROGRESSED, "a", 1), sent(PROGRESSED, "b", 1)
    assembler.add(records[0], 7)
    assembler.add(others[0], 8)
    assembler.add(records[1], 9)
    assert assembler.begins_at == 7
    for record in records[2:]:
        assembler.add(record, 10)
    assert assembler.begins_at == 8


def test_unfinished_emissions_are_forgotten() -> None:
    """What a dead sender left, or what began before a gap, costs nothing and is counted once."""
    assembler = EmissionAssembler()
    records = sent(PROGRESSED, "a", 1)
    assert len(records) > 3
    for record in records[2:]:
        assert assembler.add(record) is None
    assert assembler.forgotten == 1
    for record in sent(PROGRESSED, "a", 2)[:-1]:
        assert assembler.add(record) is None
    whole = [assembler.add(each) for each in sent(PROGRESSED, "a", 3)][-1]
    assert whole is not None
    assert same(whole, PROGRESSED)
    assert (assembler.begins_at, assembler.forgotten) == (None, 2)
    for number in range(200):
        assembler.add(sent(PROGRESSED, f"dead-{number}", 1)[0])
    assert assembler.forgotten == 2 + 200 - 64


def test_records_of_others_are_told_apart() -> None:
    """A record without the header, or with a senseless one, is an error that can be passed over."""
    assembler = EmissionAssembler()
    senseless = [["state", "a", 1, 1, 1], ["x", "a", 1, 0, 1], ["state", "a", 1, 0, 9_999], [1]]
    texts = [b"{", *(json.dumps(each).encode() for each in senseless)]
    headers = [[], *([("moescope-part", text)] for text in texts)]
    for each in headers:
        with pytest.raises(PlainFormatError):
            assembler.add(EmissionRecord(b"k", b"v", each))
    assert assembler.begins_at is None


def test_emissions_of_other_things_are_refused() -> None:
    """A value of known classes in the wrong places is no emission, and is passed over."""
    for wrong in ({"deltas": (1,)}, {"batches": PROGRESSED.progress}, {"histograms": ()}):
        assembler = EmissionAssembler()
        *before, last = emission_records(replace(PROGRESSED, **wrong), "a", 1)
        assert [assembler.add(each) for each in before] == [None] * len(before)
        with pytest.raises(PlainFormatError):
            assembler.add(last)
        assert assembler.begins_at is None


def test_what_belongs_to_the_transport_stays_behind() -> None:
    """Claim and offsets of other topics are the committing side's own."""
    emission = replace(PROGRESSED, claim=object(), read_to={"d-0": 4}, unread=frozenset({"p-1"}))
    assembler = EmissionAssembler()
    whole = [assembler.add(each) for each in emission_records(emission, "a", 1)][-1]
    assert whole is not None
    assert same(whole, PROGRESSED)


LANE = LaneKey("live", "m", "r", "model", "full", 1.0, 4, 1, (0,))
DELTA = SharedDelta(
    lane=LANE, phase="decode", kind=WindowKind.TIME, scope_kind=ScopeKind.ALL, scope_value="",
    pane=0, counts=np.zeros((1, 4), np.uint32), dropped=np.zeros(1, np.uint64), seen=1,
    first_time_us=0, last_time_us=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "changed"),
    [
        (PROGRESSED.progress[0], {"partition": 7}),
        (PROGRESSED.progress[0], {"emitted_to": "a"}),
        (PROGRESSED.progress[0], {"emitted_to": True}),
        (PROGRESSED.progress[0], {"emitted_to": 1 << 64}),
        (PROGRESSED.progress[0], {"watermark_us": None}),
        (PROGRESSED.progress[0], {"state": "text"}),
        (PROGRESSED.progress[0], {"set_aside_us": (1, "2")}),
        (DELTA, {"lane": None}),
        (DELTA, {"seen": "many"}),
        (DELTA, {"seen": 1.5}),
        (DELTA, {"kind": "time"}),
        (DELTA, {"kind": ScopeKind.ALL}),
        (DELTA, {"counts": [1, 2]}),
        (DELTA, {"counts": np.zeros((1, 4))}),
        (DELTA, {"dropped": np.zeros(1, np.int64)}),
        (DELTA, {"scene_tokens": {"chat": "1"}}),
        (DELTA, {"scene_tokens": ()}),
        (DELTA, {"router": np.zeros(1, np.uint64)}),
        (DELTA, {"lags": DELTA.counts}),
        (replace(LANE, layers=()), {"layers": ("0",)}),
        (PROGRESSED, {"histograms": {"k": DELTA.counts}}),
        (PROGRESSED, {"unread": frozenset({1})}),
        (PROGRESSED, {"deltas": [DELTA]}),
    ],
)
def test_fields_of_other_types_are_refused(value: Emission, changed: dict[str, Any]) -> None:
    """A well-framed object whose fields hold other things would stop whoever works with it."""
    assert same(unpack(pack(value, EMISSION_KINDS), EMISSION_KINDS), value)
    packed = pack(replace(value, **changed), EMISSION_KINDS)
    with pytest.raises(PlainFormatError) as raised:
        unpack(packed, EMISSION_KINDS)
    assert next(iter(changed)) in raised.value.why
