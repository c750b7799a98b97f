"""Importing a file: identity, rejects, limits, and taking up what broke off."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from support.decoded_logs import LoggedBatch, log_of

from moescope.core.batchlog import (
    BatchLogLockedError,
    BatchLogReader,
    BatchLogWriter,
    list_partitions,
)
from moescope.core.clock import NO_TIME
from moescope.core.vocabulary import Phase, RankOrder, RowFlag
from moescope.producers.importers import (
    FORMATS,
    ImportFormatError,
    TooManyRejectsError,
    batching,
    import_files,
    source_files,
)

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = {"experts": "16"}


def lines_file(folder: Path, lines: list[dict[str, Any] | str], name: str = "a.jsonl") -> Path:
    """A file of JSON lines; text is written as it is."""
    path = folder / name
    rows = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def tokens(count: int, **fields: Any) -> list[dict[str, Any] | str]:
    """Tokens of one request with two layers."""
    return [
        {"request": "r", "position": number, "experts": [[number % 16], [3]], **fields}
        for number in range(count)
    ]


def only_batches(root: Path) -> list[LoggedBatch]:
    """Batches of the only partition."""
    [batches] = log_of(root).values()
    return batches


def test_an_import_is_a_sealed_domain_of_its_own(tmp_path: Path) -> None:
    """Old event times must never hold back, or be held back by, the live fleet."""
    path = lines_file(tmp_path, tokens(3))
    report = import_files("jsonl", [path], tmp_path / "log", OPTIONS)
    [info] = list_partitions(tmp_path / "log")
    assert info.name == report.files[0].node
    assert info.name.startswith("import-")
    with BatchLogReader(tmp_path / "log", info.name) as reader:
        assert reader.meta.domain == info.name
        assert reader.meta.append_clock == "none"
        assert reader.is_sealed()


def test_a_second_import_changes_nothing_wherever_the_file_lies(tmp_path: Path) -> None:
    """Node and numbers come from the content, so that a repeated import is recognised."""
    first = import_files("jsonl", [lines_file(tmp_path, tokens(3))], tmp_path / "log", OPTIONS)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = lines_file(elsewhere, tokens(3), "b.jsonl")
    again = import_files("jsonl", [path], tmp_path / "log", OPTIONS)
    assert again.files[0].already_imported
    assert again.rows == 0
    assert again.files[0].node == first.files[0].node
    assert len(log_of(tmp_path / "log")) == 1


def test_other_options_are_another_import_but_limits_are_not(tmp_path: Path) -> None:
    """A wrong field map can be corrected and the file imported again."""
    path = lines_file(tmp_path, tokens(3))
    nodes = [
        import_files("jsonl", [path], tmp_path / "log", {**OPTIONS, **more}).files[0].node
        for more in ({}, {"model": "m"}, {"max_rejected": "5"}, {"model": "m"})
    ]
    assert nodes[0] == nodes[2]
    assert nodes[1] == nodes[3] != nodes[0]


def test_an_import_that_is_running_is_waited_for(tmp_path: Path) -> None:
    """Of a log's writer somebody is told to take another name, and an import has none."""
    path = lines_file(tmp_path, tokens(3))
    node = import_files("jsonl", [path], tmp_path / "other", OPTIONS).files[0].node
    log = tmp_path / "log"
    log.mkdir()
    with (
        BatchLogWriter(log, node, domain=node, append_clock="none"),
        pytest.raises(BatchLogLockedError) as caught,
    ):
        import_files("jsonl", [path], log, OPTIONS)
    assert caught.value.what == f"Another import of {path} is running."
    assert node in caught.value.why
    assert caught.value.next_step.startswith("Wait until it has ended, then run this one again")
    assert caught.value.exit_code == 3
    assert import_files("jsonl", [path], log, OPTIONS).rows == 3


def test_an_import_that_broke_off_is_taken_up_again(tmp_path: Path) -> None:
    """Batches that are in the log already are not written twice."""
    path = lines_file(tmp_path, tokens(6, time=0) + tokens(0))
    spread = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for number, line in enumerate(spread):
        line["time"] = number
    path = lines_file(tmp_path, spread)
    import_files("jsonl", [path], tmp_path / "whole", OPTIONS)
    [(node, batches)] = log_of(tmp_path / "whole").items()
    assert len(batches) == 6
    (tmp_path / "log").mkdir()
    with BatchLogWriter(tmp_path / "log", node, domain=node, append_clock="none") as writer:
        for item in batches[:2]:
            writer.append(item.record.payload)
    report = import_files("jsonl", [path], tmp_path / "log", OPTIONS)
    assert not report.files[0].already_imported
    resumed = log_of(tmp_path / "log")[node]
    assert [item.record.payload for item in resumed] == [item.record.payload for item in batches]


def test_rejects_are_written_beside_the_log_with_file_line_and_reason(tmp_path: Path) -> None:
    """Nothing is silently dropped: every rejected line can be looked up."""
    lines = [*tokens(2), "{", {"request": "r", "position": 7}, *tokens(1)]
    path = lines_file(tmp_path, lines)
    report = import_files("jsonl", [path], tmp_path / "log", OPTIONS)
    summary = report.summary()
    assert summary["rejected_by_reason"] == {
        "no JSON": 1,
        "no experts": 1,
        "the same token again": 1,
    }
    assert summary["first_rejects"][0].startswith(f"{path}:3: no JSON (")
    [rejects_file] = summary["rejects_files"]
    with open(rejects_file, encoding="utf-8") as file:  # noqa: PTH123 (a reported name)
        written = [json.loads(line) for line in file]
    assert [(item["line"], item["reason"]) for item in written] == [
        (3, "no JSON"),
        (4, "no experts"),
        (5, "the same token again"),
    ]
    assert report.rows == 2


def test_an_import_stops_only_when_the_caller_set_a_limit(tmp_path: Path) -> None:
    """A wrong field map over a large file should fail early if one asks for it."""
    path = lines_file(tmp_path, [*tokens(2), *["{"] * 4])
    with pytest.raises(TooManyRejectsError, match="More than 2 lines"):
        import_files("jsonl", [path], tmp_path / "log", {**OPTIONS, "max_rejected": "2"})
    assert log_of(tmp_path / "log") == {}
    assert import_files("jsonl", [path], tmp_path / "log", OPTIONS).rejected == 4


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (tokens(2), {}, "not known: experts"),
        ([], OPTIONS, "No line of"),
        (["{"], OPTIONS, "No line of"),
        (tokens(1), {**OPTIONS, "expert": "4"}, "no import option 'expert'"),
        (tokens(1), {"experts": "0"}, "experts cannot be '0'"),
        (tokens(1), {"experts": "many"}, "experts cannot be 'many'"),
        (tokens(1), {**OPTIONS, "layers": "3,1"}, "layers cannot be '3,1'"),
        (tokens(1), {**OPTIONS, "phase": "sleep"}, "phase cannot be 'sleep'"),
        ([{"experts": [[1, 2]]}], {"experts": "1"}, "selects 2 experts"),
        (
            [
                {"layer": 0, "experts": [1], "position": 0},
                {"layer": 1, "experts": [1], "position": 1},
            ],
            OPTIONS,
            "No token of",
        ),
    ],
)
def test_what_cannot_be_imported_at_all_is_an_error(
    lines: list[dict[str, Any] | str], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    """An empty import would look like success."""
    with pytest.raises(ImportFormatError, match=message):
        import_files("jsonl", [lines_file(tmp_path, lines)], tmp_path / "log", options)
    assert log_of(tmp_path / "log") == {}


def test_unknown_formats_missing_files_and_no_files_are_errors(tmp_path: Path) -> None:
    """The message says what to do next."""
    with pytest.raises(ImportFormatError, match="Choose from jsonl"):
        import_files("parquet", [tmp_path / "a"], tmp_path)
    with pytest.raises(ImportFormatError, match="cannot be read"):
        import_files("jsonl", [tmp_path / "absent"], tmp_path, OPTIONS)
    with pytest.raises(ImportFormatError, match="no file to import"):
        import_files("jsonl", [], tmp_path, OPTIONS)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_archives_are_refused_as_a_whole(suffix: str, tmp_path: Path) -> None:
    """Half a file is not an import: its requests would look shorter than they were."""
    content = lines_file(tmp_path, tokens(2_000)).read_bytes()
    packed = gzip.compress(content) if suffix == ".gz" else zstandard.compress(content)
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed[: len(packed) - 9])
    with pytest.raises(ImportFormatError, match="damaged"):
        import_files("jsonl", [path], tmp_path / "log", OPTIONS)
    path.write_bytes(packed + (packed if suffix == ".zst" else b""))
    report = import_files("jsonl", [path], tmp_path / "log", OPTIONS)
    assert report.rows == 2_000


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb or a binary file must not fill the memory."""
    path = lines_file(tmp_path, [*tokens(1), "x" * 500, *tokens(1, request="s")])
    monkeypatch.setattr(source_files, "MAX_LINE_BYTES", 200)
    report = import_files("jsonl", [path], tmp_path / "log", OPTIONS)
    assert report.files[0].rejected == {"line too long": 1}
    assert report.rows == 2
    monkeypatch.setattr(source_files, "MAX_INFLATED_BYTES", 300)
    with pytest.raises(ImportFormatError, match="inflates to more than"):
        import_files("jsonl", [path], tmp_path / "other", OPTIONS)
    many = lines_file(tmp_path, tokens(9_000), "many.jsonl")
    monkeypatch.undo()
    with pytest.raises(ImportFormatError, match="more than 1 MiB of memory"):
        import_files("jsonl", [many], tmp_path / "other", {**OPTIONS, "max_memory_mib": "1"})


def test_lines_without_requests_are_one_request_named_like_the_node(tmp_path: Path) -> None:
    """Without requests a file is one synthetic request and task."""
    path = lines_file(tmp_path, [{"experts": [[number], [1]]} for number in range(4)])
    report = import_files("jsonl", [path], tmp_path / "log", {**OPTIONS, "scene": "replay"})
    [(batch, _)] = only_batches(tmp_path / "log")
    assert batch.requests.ids == batch.requests.tasks == (report.files[0].node,)
    assert batch.requests.scenes == ("replay",)
    assert batch.tokens is not None
    assert batch.tokens.position.tolist() == [0, 1, 2, 3]
    assert batch.tokens.event_time_us is None
    assert batch.header.watermark_us == NO_TIME
    assert batch.tokens.flags[-1] == RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK


@pytest.mark.parametrize(
    ("unit", "value"),
    [("s", 1_700_000_000.5), ("ms", 1_700_000_000_500), ("us", 1_700_000_000_500_000),
     ("ns", 1_700_000_000_500_000_000), ("s", "2023-11-14T22:13:20.500000"),
     ("s", "2023-11-14T23:13:20.500+01:00")],
)  # fmt: skip
def test_times_are_understood_in_every_unit(unit: str, value: float | str, tmp_path: Path) -> None:
    """One instant, written in six ways."""
    path = lines_file(tmp_path, tokens(1, time=value))
    import_files("jsonl", [path], tmp_path / "log", {**OPTIONS, "time_unit": unit})
    [(batch, _)] = only_batches(tmp_path / "log")
    assert batch.tokens is not None
    assert batch.tokens.event_time_us is not None
    assert batch.tokens.event_time_us.tolist() == [1_700_000_000_500_000]


def test_event_time_never_goes_back_within_a_request(tmp_path: Path) -> None:
    """A row below an earlier position's time is raised and reported, not dropped as stale."""
    lines: list[dict[str, Any] | str] = [
        {"request": "r", "position": position, "time": time, "experts": [[1], [2]]}
        for position, time in ((0, 10), (1, 14), (2, 12), (3, 15))
    ]
    report = import_files("jsonl", [lines_file(tmp_path, lines)], tmp_path / "log", OPTIONS)
    times = [
        int(time)
        for batch, _ in only_batches(tmp_path / "log")
        if batch.tokens is not None and batch.tokens.event_time_us is not None
        for time, flags in zip(batch.tokens.event_time_us, batch.tokens.flags, strict=True)
        if not flags & RowFlag.CONTEXT
    ]
    assert times == [10_000_000, 14_000_000, 14_000_000, 15_000_000]
    assert "1 rows were earlier" in report.files[0].notes[0]


@pytest.mark.parametrize(
    ("rows", "decode_start"),
    [
        ([(0, "prefill", None), (1, "prefill", None), (2, "decode", None)], 2),
        ([(0, "prefill", None), (3, "decode", None)], -1),
        ([(7, "decode", None), (8, "decode", None)], -1),
        ([(7, "decode", 5), (8, "decode", 5)], 5),
    ],
)
def test_decode_starts_where_the_file_says_and_never_where_it_was_first_seen(
    rows: list[tuple[int, str, int | None]], decode_start: int, tmp_path: Path
) -> None:
    """Windows count from the phase's start; a guess would shift all of them."""
    lines: list[dict[str, Any] | str] = [
        {"request": "r", "position": at, "phase": phase, "experts": [[1]], "prompt_tokens": prompt}
        for at, phase, prompt in rows
    ]
    import_files("jsonl", [lines_file(tmp_path, lines)], tmp_path / "log", OPTIONS)
    [(batch, _)] = only_batches(tmp_path / "log")
    assert batch.requests.phase_starts[0, Phase.DECODE] == decode_start


def test_weights_give_the_rank_order_when_asked(tmp_path: Path) -> None:
    """Unordered ids have no top-1; with weights, the heaviest is it."""
    lines: list[dict[str, Any] | str] = [
        {"request": "r", "position": 0, "experts": [[4, 9, 2]], "weights": [[0.2, 0.5, 0.3]]}
    ]
    path = lines_file(tmp_path, lines)
    options = {**OPTIONS, "rank_order": "weight", "weight_bits": "16"}
    import_files("jsonl", [path], tmp_path / "log", options)
    [(batch, _)] = only_batches(tmp_path / "log")
    routes = batch.routes
    assert batch.header.rank_order is RankOrder.WEIGHT
    assert routes is not None
    assert routes.top1 is not None
    assert routes.weights is not None
    assert routes.expert_ids[0, 0, routes.top1[0, 0]] == 9
    import_files("jsonl", [path], tmp_path / "plain", OPTIONS)
    [(plain, _)] = only_batches(tmp_path / "plain")
    assert plain.header.rank_order is RankOrder.UNKNOWN
    assert plain.routes is not None
    assert plain.routes.weights is None


def test_what_gates_will_refuse_is_reported_but_imported(tmp_path: Path) -> None:
    """Suspicion is the gates' verdict; the importer says early that they will have work."""
    lines: list[dict[str, Any] | str] = [
        {"request": "r", "position": 0, "experts": [[0, 0], [1, 2]]},
        {"request": "r", "position": 1, "experts": [[3, 3], [1, 16]]},
    ]
    report = import_files("jsonl", [lines_file(tmp_path, lines)], tmp_path / "log", OPTIONS)
    assert report.summary()["suspicious"] == {
        "repeated ids": 1,
        "ids beyond the experts": 1,
        "all-zero ids": 1,
    }
    [(batch, _)] = only_batches(tmp_path / "log")
    assert batch.routes is not None
    assert sorted(batch.routes.expert_ids[1, 1].tolist()) == [1, 16]


def test_large_files_become_many_small_batches_with_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch exceeds its bound, and none forgets the rows before it."""
    monkeypatch.setattr(batching, "BATCH_BYTES", 4096)
    path = lines_file(tmp_path, tokens(400))
    import_files("jsonl", [path], tmp_path / "log", OPTIONS)
    batches = only_batches(tmp_path / "log")
    assert len(batches) > 4
    for number, (batch, record) in enumerate(batches):
        assert len(record.payload) <= 4096
        assert batch.tokens is not None
        context = batch.tokens.flags & RowFlag.CONTEXT != 0
        assert int(context.sum()) == (2 if number else 0)
        assert np.diff(batch.tokens.position).tolist() == [1] * (len(batch.tokens) - 1)


def test_every_format_documents_its_options() -> None:
    """The command line and the reference print these."""
    for name, known in FORMATS.items():
        assert known.name == name
        assert known.summary.endswith(".")
        for option in known.options:
            assert option.help.endswith((".", "!"))


def test_progress_names_the_file(tmp_path: Path) -> None:
    """Long imports show where they are."""
    calls: list[tuple[float, str]] = []

    def progress(done: float, detail: str = "") -> None:
        calls.append((done, detail))

    import_files(
        "jsonl", [lines_file(tmp_path, tokens(1))], tmp_path / "log", OPTIONS, progress=progress
    )
    assert calls[-1] == (1, "a.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        {"experts": [[1]], "request": "r" * 1_000, "task": "t" * 1_000, "scene": "s" * 1_000},
        {"experts": [[1] * 200] * 40},
    ],
    ids=["long names", "wide lines"],
)
def test_memory_is_bounded_while_lines_are_read(line: dict[str, Any], tmp_path: Path) -> None:
    """Not behind the last one: what is too much is noticed before a bad line at the end is."""
    lines: list[dict[str, Any] | str] = [
        {**line, "request": f"{line.get('request', 'r')}{number}"} for number in range(400)
    ]
    path = lines_file(tmp_path, [*lines, "no line"])
    options = {**OPTIONS, "experts": "256", "max_rejected": "0", "max_memory_mib": "1"}
    with pytest.raises(ImportFormatError, match="more than 1 MiB of memory"):
        import_files("jsonl", [path], tmp_path / "log", options)


@pytest.mark.parametrize(
    "wrong",
    [
        '{"experts": "1,2"}', '{"experts": [["1"]]}', '{"experts": [[1.5]]}',
        '{"experts": [[true]]}',
        '{"experts": [[NaN]]}', '{"experts": [[-1]]}', '{"experts": [[1e400]]}',
        '{"experts": [[65536]]}', '{"experts": {"0": [1]}}', '{"experts": [[1], 2]}',
        '{"experts": [[]]}', '{"experts": []}', '{"experts": null}',
        '{"experts": [[1]], "position": -1}', '{"experts": [[1]], "position": "0"}',
        '{"experts": [[1]], "position": NaN}', '{"experts": [[1]], "time": NaN}',
        '{"experts": [[1]], "time": Infinity}', '{"experts": [[1]], "time": "yesterday"}',
        '{"experts": [[1]], "request": ["r"]}', '{"experts": [[1]], "request": {"a": 1}}',
        '{"experts": [[1]], "request": "\\ud800"}', '{"experts": [[1]], "phase": 3}',
        '{"experts": [1], "layer": [0]}',
        '{"experts": [[1]], "weights": [[NaN]]}', '{"experts": [[1]], "weights": "1"}',
        '{"experts": [[' + "1" * 5_000 + "]]}", "[" * 100_000, "null", "[]", '"text"', "\x00\x01",
    ],
)  # fmt: skip
def test_a_line_with_values_of_the_wrong_kind_is_rejected_alone(wrong: str, tmp_path: Path) -> None:
    """Whatever stands in a line, it ends as one rejected line with a reason of a few words."""
    path = lines_file(tmp_path, [*tokens(2), wrong])
    options = {**OPTIONS, "weight_bits": "8"}
    report = import_files("jsonl", [path], tmp_path / "log", options)
    assert (report.rows, report.rejected) == (2, 1)
    [reject] = report.files[0].first_rejects
    assert reject.line == 3
    assert 0 < len(reject.reason) + len(reject.detail) < 300
