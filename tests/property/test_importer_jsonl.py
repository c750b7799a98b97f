"""What goes into the JSON lines importer comes out of the log, and nothing else."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.decoded_logs import log_of

from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.importers import ImportReport, import_files

if TYPE_CHECKING:
    from support.decoded_logs import LoggedBatch

EXPERTS = 300
Truth = dict[tuple[str, int], dict[int, frozenset[int]]]


@dataclass(frozen=True)
class Recording:
    """A file's lines, and what they mean."""

    lines: list[dict[str, Any]]
    truth: Truth
    times: dict[tuple[str, int], int]
    layers: list[int]


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """A few requests with gaps, layers and times, as lines in any order."""
    layers = sorted(draw(st.sets(st.integers(0, 60), min_size=1, max_size=3)))
    top_k = draw(st.integers(1, 4))
    per_token = draw(st.booleans())
    timed = draw(st.booleans())
    ids = st.lists(st.integers(0, EXPERTS - 1), min_size=top_k, max_size=top_k, unique=True)
    names = draw(st.lists(st.sampled_from("abcdé\u4e00"), min_size=1, max_size=4, unique=True))
    truth: Truth = {}
    times: dict[tuple[str, int], int] = {}
    lines: list[dict[str, Any]] = []
    for name in names:
        positions = draw(st.sets(st.integers(0, 400), min_size=1, max_size=12))
        clock = draw(st.integers(1_000_000_000, 1_000_000_003)) * 1_000_000
        for position in sorted(positions):
            routes = {layer: draw(ids) for layer in layers}
            clock += draw(st.integers(0, 700_000))
            truth[name, position] = {layer: frozenset(chosen) for layer, chosen in routes.items()}
            times[name, position] = clock
            common: dict[str, Any] = {"request": name, "position": position}
            if timed:
                common["time"] = clock
            if per_token:
                lines.append({**common, "experts": list(routes.values())})
            else:
                lines += [
                    {**common, "layer": layer, "experts": chosen}
                    for layer, chosen in routes.items()
                ]
    order = draw(st.permutations(range(len(lines))))
    return Recording([lines[i] for i in order], truth, times if timed else {}, layers)


def written(lines: list[bytes], suffix: str) -> bytes:
    """A file's bytes, compressed as its suffix says."""
    plain = b"\n".join(lines)
    if suffix == ".gz":
        return gzip.compress(plain)
    return zstandard.compress(plain) if suffix == ".zst" else plain


def imported(
    content: bytes, suffix: str, options: dict[str, str]
) -> tuple[ImportReport, list[LoggedBatch]]:
    """Import a file twice; the report, and the batches of the log."""
    with tempfile.TemporaryDirectory() as folder:
        root, path = Path(folder) / "log", Path(folder) / f"routes.jsonl{suffix}"
        root.mkdir()
        path.write_bytes(content)
        report = import_files("jsonl", [path], root, options)
        first = {file: file.read_bytes() for file in root.rglob("*.seg")}
        again = import_files("jsonl", [path], root, options)
        assert again.files[0].already_imported
        assert {file: file.read_bytes() for file in root.rglob("*.seg")} == first
        [batches] = log_of(root).values()
    return report, batches


def decoded(batches: list[LoggedBatch]) -> tuple[Truth, dict[tuple[str, int], int]]:
    """Counted rows and their times, read row by row."""
    truth: Truth = {}
    times: dict[tuple[str, int], int] = {}
    for batch, _ in batches:
        tokens, routes = batch.tokens, batch.routes
        assert tokens is not None
        assert routes is not None
        for row in range(len(tokens)):
            if tokens.flags[row] & RowFlag.CONTEXT:
                continue
            key = batch.requests.ids[tokens.request[row]], int(tokens.position[row])
            assert key not in truth
            truth[key] = {
                int(layer): frozenset(routes.expert_ids[row, place].tolist())
                for place, layer in enumerate(batch.header.layers)
            }
            if tokens.event_time_us is not None:
                times[key] = int(tokens.event_time_us[row])
    return truth, times


def check_shape(batches: list[LoggedBatch]) -> None:
    """Numbered, in order, at most a second long, never behind the watermark, ended once."""
    last_position: dict[str, int] = {}
    recent: dict[str, list[int]] = defaultdict(list)
    ended: list[str] = []
    watermark = -(2**63)
    for number, (batch, record) in enumerate(batches):
        tokens = batch.tokens
        assert tokens is not None
        assert batch.header.sequence == number
        assert len(record.payload) <= 1 << 20
        context: dict[str, list[int]] = defaultdict(list)
        new: dict[str, list[int]] = defaultdict(list)
        for row in range(len(tokens)):
            name = batch.requests.ids[tokens.request[row]]
            position = int(tokens.position[row])
            if tokens.flags[row] & RowFlag.CONTEXT:
                context[name].append(position)
                continue
            assert position > last_position.get(name, -1)
            last_position[name] = position
            new[name].append(position)
            if tokens.flags[row] & RowFlag.LAST_OF_REQUEST:
                ended.append(name)
        assert {name: recent[name][-2:] for name in new if recent[name]} == context
        for name, positions in new.items():
            recent[name] += positions
        if tokens.event_time_us is not None:
            times = tokens.event_time_us[tokens.flags & RowFlag.CONTEXT == 0]
            assert times.min() >= watermark
            assert times.max() // 1_000_000 == times.min() // 1_000_000
            assert batch.header.watermark_us >= watermark
            watermark = batch.header.watermark_us
    assert sorted(ended) == sorted(last_position)


@settings(max_examples=30)
@given(recordings(), st.sampled_from(["", ".gz", ".zst"]))
def test_every_token_arrives_once_with_its_experts(recording: Recording, suffix: str) -> None:
    """Decoded rows equal an independent reading of the lines, whatever their order."""
    content = written([json.dumps(line).encode() for line in recording.lines], suffix)
    options = {
        "experts": str(EXPERTS),
        "time_unit": "us",
        "layers": ",".join(map(str, recording.layers)),
    }
    report, batches = imported(content, suffix, options)
    truth, times = decoded(batches)
    assert truth == recording.truth
    assert times == recording.times
    assert report.rows == len(recording.truth)
    assert report.rejected == 0
    check_shape(batches)


BAD_LINES = st.sampled_from(
    [
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"request":"a"}',
        b'{"request":"a","position":1,"layer":0,"experts":[]}',
        b'{"request":"a","position":1,"layer":0,"experts":[1.5]}',
        b'{"request":"a","position":1,"layer":0,"experts":[-1]}',
        b'{"request":"a","position":1,"layer":0,"experts":[70000]}',
        b'{"request":"a","position":1,"layer":0,"experts":[true]}',
        b'{"request":"a","position":1,"layer":0,"experts":"1"}',
        b'{"request":"a","position":-4,"layer":0,"experts":[1]}',
        b'{"request":"a","position":1e3,"layer":0,"experts":[1]}',
        b'{"request":{},"position":1,"layer":0,"experts":[1]}',
        b'{"request":"\\ud800","position":1,"layer":0,"experts":[1]}',
        b'{"request":"a","position":1,"layer":99999999999999999999,"experts":[1]}',
        b'{"request":"a","position":1,"layer":0,"experts":[[1],[2,3]]}',
        b'{"request":"a","position":1,"layer":0,"experts":[1],"phase":"sleep"}',
        b'{"request":"a","position":1,"layer":0,"experts":[1],"time":NaN}',
        b'{"request":"a","position":1,"layer":0,"experts":[1],"time":-1}',
        b"[" * 100_000,
    ]
)


@settings(max_examples=25)
@given(recordings(), st.lists(BAD_LINES, min_size=1, max_size=5), st.data())
def test_bad_lines_are_counted_by_number_and_change_nothing_else(
    recording: Recording, bad: list[bytes], data: st.DataObject
) -> None:
    """Strange lines are rejected one by one; all others arrive as if they were not there."""
    good = [json.dumps(line).encode() for line in recording.lines]
    rest = data.draw(st.permutations([*good[1:], *bad]))
    lines = [good[0], *rest]
    options = {
        "experts": str(EXPERTS),
        "time_unit": "us",
        "layers": ",".join(map(str, recording.layers)),
    }
    report, batches = imported(written(lines, ""), "", options)
    truth, _ = decoded(batches)
    assert truth == recording.truth
    assert report.rejected == len(bad)
    expected = [number for number, line in enumerate(lines, 1) if line not in good]
    assert [reject.line for reject in report.files[0].first_rejects] == expected


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from(["prefill", "decode"])),
        min_size=1,
        max_size=20,
    )
)
def test_positions_follow_the_order_of_lines_where_the_file_has_none(
    rows: list[tuple[str, str]],
) -> None:
    """The n-th line of a request and layer is position n."""
    lines: list[bytes] = []
    counter: dict[str, int] = defaultdict(int)
    expected = []
    for number, (name, phase) in enumerate(rows):
        expected.append((name, counter[name], number % EXPERTS, phase))
        counter[name] += 1
        lines += [
            json.dumps({"rid": name, "L": layer, "ids": [number % EXPERTS], "what": phase}).encode()
            for layer in (3, 8)
        ]
    options = {
        "experts": str(EXPERTS),
        "map.request": "rid",
        "map.layer": "L",
        "map.experts": "ids",
        "map.phase": "what",
    }
    _, batches = imported(written(lines, ""), "", options)
    found = []
    for batch, _ in batches:
        tokens, routes = batch.tokens, batch.routes
        assert tokens is not None
        assert routes is not None
        for row in range(len(tokens)):
            if not tokens.flags[row] & RowFlag.CONTEXT:
                name = batch.requests.ids[tokens.request[row]]
                phase = Phase(tokens.phase[row]).name.lower()
                expert = int(routes.expert_ids[row, 0, 0])
                found.append((name, int(tokens.position[row]), expert, phase))
    assert sorted(found) == sorted(expected)
