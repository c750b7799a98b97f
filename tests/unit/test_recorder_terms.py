from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.rings import (
    EXPERTS,
    LAYERS,
    START_US,
    ids_of,
    logged,
    lost_rows,
    rows_of,
    small_recorder,
)

from moescope.core.batch import SEVERAL_RANKS, Placement
from moescope.core.batchlog import WriterSettings
from moescope.core.clock import ManualClock
from moescope.core.vocabulary import Fidelity, RowFlag
from moescope.producers.agent import Agent, AgentSettings
from moescope.producers.ring.layout import FRAME_BYTES, HEADER_BYTES
from moescope.producers.ring.reader import RingReader
from moescope.producers.ring.rows import column_mask
from moescope.producers.ring.unseen import TOLD_STRIDE, count_word
from moescope.producers.terms import Terms, pack_placement, unpack_placement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.rings import Logged

    from moescope.core.batch import BatchHeader

ROUND_ROBIN = np.arange(EXPERTS) % 4


class Node:
    """A recorder and its agent on one clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(START_US)
        self.recorder = small_recorder(folder, clock=self.clock)
        self.settings = AgentSettings(log=WriterSettings(durability="none"))
        self.agent = self.new_agent()
        self.serial = 0

    def new_agent(self) -> Agent:
        """An agent as it is after a start."""
        return Agent(self.folder, self.folder / "log", clock=self.clock, settings=self.settings)

    def restart_agent(self) -> None:
        """The agent loses its memory."""
        self.agent.close()
        self.agent = self.new_agent()

    def record(self, request: str, rows: int, **more: Any) -> None:
        """Rows of one request at the positions of their serial numbers."""
        serials = np.arange(self.serial, self.serial + rows)
        self.serial += rows
        self.recorder.record(request, serials, ids_of(serials), "decode", token_ids=serials, **more)

    def batches(self) -> list[Logged]:
        """All that was shipped."""
        self.agent.drain()
        return logged(self.folder / "log")

    def headers(self) -> list[BatchHeader]:
        """The headers of all that was shipped."""
        return [entry.batch.header for entry in self.batches()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node."""
    made = Node(tmp_path)
    yield made
    made.agent.close()
    made.recorder.close()


def counted_tokens(batches: list[Logged]) -> list[int]:
    """Tokens of each batch of counts."""
    return [
        int(entry.batch.time_blocks.tokens.sum())
        for entry in batches
        if entry.batch.time_blocks is not None
    ]


def test_rows_are_shipped_under_the_fidelity_they_were_recorded_with(node: Node) -> None:
    """One second holds three fidelities: three batches, each saying what holds for its rows."""
    node.record("a", 5)
    assert node.recorder.set_fidelity("counts")
    node.record("a", 7)
    assert node.recorder.set_fidelity("sampled", 0.999_999)
    node.record("a", 3)
    assert node.recorder.fidelity is Fidelity.SAMPLED
    batches = node.batches()
    headers = [entry.batch.header for entry in batches]
    assert [(header.fidelity.name, header.sampling_ratio) for header in headers] == [
        ("FULL", 1.0),
        ("COUNTS", 1.0),
        ("SAMPLED", 0.999_999),
    ]
    assert [row.serial for row in rows_of(batches[:1])] == [0, 1, 2, 3, 4]
    assert counted_tokens(batches) == [7]
    assert [row.serial for row in rows_of(batches[2:])] == [12, 13, 14]


def test_an_end_is_told_across_a_change_to_counts(node: Node) -> None:
    """A request whose rows were shipped in full ends in the counts that follow."""
    node.record("a", 5)
    node.batches()
    node.recorder.set_fidelity("counts")
    node.recorder.end_request("a")
    node.record("b", 1)
    blocks = node.batches()[-1].batch.token_blocks
    assert blocks is not None
    (told,) = np.flatnonzero(blocks.tokens == 0)
    assert blocks.start_position[told] == 5
    assert blocks.flags[told] == RowFlag.CONTEXT | RowFlag.LAST_OF_REQUEST


def test_an_end_after_counts_does_not_break_the_batch(node: Node) -> None:
    """Counts leave no row to repeat: the end is not told, and the agent goes on."""
    node.recorder.set_fidelity("counts")
    node.record("a", 5)
    node.batches()
    node.recorder.set_fidelity("full")
    node.recorder.end_request("a")
    node.batches()
    node.record("a", 2)
    assert [row.serial for row in rows_of(node.batches())] == [5, 6]
    assert node.agent.counters().shipped.unencodable_rows == 0


def test_counts_leave_out_what_no_count_needs(node: Node) -> None:
    """Weights and scores are not even copied: counts cost the engine less than rows."""
    node.recorder.set_fidelity("counts")
    node.record("a", 4, weights=np.ones((4, 2, 2)), entropy=np.ones((4, 2)), step=3, pass_id=1)
    (path,) = node.folder.glob("*.ring")
    reader = RingReader(path)
    frame = reader.read()
    assert frame is not None
    reader.close()
    unneeded = dict.fromkeys(("weights", "entropy", "pass_id", "token_id"))
    assert not frame.header.columns & column_mask(unneeded)
    blocks = node.batches()[0].batch.token_blocks
    assert blocks is not None
    assert blocks.step is not None


def test_a_lapped_agent_knows_what_holds_where_it_goes_on(node: Node) -> None:
    """The change itself was overwritten long ago, and the rows are labelled right all the same."""
    node.record("a", 5)
    node.batches()
    node.recorder.set_placement(ROUND_ROBIN, 3)
    for _ in range(1_000):
        node.record("a", 50)
    batches = node.batches()
    shipped = [row for row in rows_of(batches) if not row.is_context]
    assert len(shipped) + lost_rows(batches) == node.serial
    assert lost_rows(batches) > 0
    assert [entry.batch.header.expert_map_version for entry in batches[1:]] == [3] * (
        len(batches) - 1
    )


@pytest.mark.parametrize("rows_after", [0, 400])
def test_a_restarted_agent_knows_what_holds(node: Node, rows_after: int) -> None:
    """Wherever the log ends, what follows is shipped under its own terms."""
    node.record("a", 3)
    node.recorder.set_fidelity("sampled", 0.999_999)
    node.record("a", 2)
    for _ in range(rows_after):
        node.record("a", 5)
    node.batches()
    node.restart_agent()
    node.record("a", 1)
    node.recorder.set_fidelity("full")
    node.record("a", 1)
    node.restart_agent()
    headers = node.headers()
    assert [header.fidelity.name for header in headers[-2:]] == ["SAMPLED", "FULL"]
    assert headers[0].fidelity is Fidelity.FULL


def test_rows_whose_terms_were_damaged_are_lost_not_relabelled(node: Node) -> None:
    """When nobody can tell what holds for rows, they are counted as lost."""
    node.record("a", 3)
    node.recorder.set_fidelity("sampled", 0.999_999)
    node.record("a", 4)
    ring = node.recorder._ring  # noqa: SLF001 - where the damage is to be
    assert ring is not None
    reader = RingReader(ring.path)
    first = reader.read()
    reader.close()
    assert first is not None
    ring.buffer[HEADER_BYTES + first.end + FRAME_BYTES + 5] ^= 0xFF
    for _ in range(200):
        node.record("a", 10)
    for _ in range(3):
        node.agent.run_once(flush=True)
    batches = node.batches()
    shipped = [row.serial for row in rows_of(batches) if not row.is_context]
    assert shipped[:3] == [0, 1, 2]
    assert shipped[3] > 7
    assert len(shipped) + lost_rows(batches) == node.serial
    assert {entry.batch.header.fidelity.name for entry in batches[1:]} == {"SAMPLED"}


def test_a_placement_is_told_at_once_after_a_start_and_each_minute(node: Node) -> None:
    """Whoever reads the log from anywhere knows within a minute where the experts are."""
    node.record("a", 1)
    assert node.recorder.set_placement(ROUND_ROBIN, 7)
    node.record("a", 1)
    first, second = node.headers()
    assert (first.placement, first.expert_map_version) == (None, 0)
    assert second.placement is not None
    assert second.placement.version == second.expert_map_version == 7
    assert second.placement.ranks == 4
    np.testing.assert_array_equal(second.placement.rank_of, np.tile(ROUND_ROBIN, (len(LAYERS), 1)))
    node.record("a", 1)
    assert node.headers()[-1].placement is None
    node.clock.sleep(60.0)
    node.record("a", 1)
    assert node.headers()[-1].placement is not None
    node.restart_agent()
    node.record("a", 1)
    assert node.headers()[-1].placement is not None


def test_a_placement_per_layer_and_replicas_are_told(node: Node) -> None:
    """Ranks may hold nothing, and an expert may be on several."""
    table = np.stack([ROUND_ROBIN, np.full(EXPERTS, SEVERAL_RANKS)])
    assert node.recorder.set_placement(table, 1, ranks=16)
    node.record("a", 1)
    placement = node.headers()[0].placement
    assert placement is not None
    assert placement.ranks == 16
    np.testing.assert_array_equal(placement.rank_of, table)


@pytest.mark.parametrize(
    ("table", "version", "options"),
    [
        (np.zeros(EXPERTS + 1, int), 1, {}),
        (np.zeros(EXPERTS), 1, {}),
        (np.full(EXPERTS, -1), 1, {}),
        (np.full(EXPERTS, 70_000), 1, {}),
        (ROUND_ROBIN, -1, {}),
        (ROUND_ROBIN, "one", {}),
        (ROUND_ROBIN, 1, {"ranks": 2}),
        (None, 1, {}),
    ],
)
def test_a_wrong_placement_changes_nothing(
    node: Node,
    table: Any,
    version: Any,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine goes on, the log says why, and batches stay valid."""
    with caplog.at_level(logging.WARNING, logger="moescope.producers"):
        assert not node.recorder.set_placement(table, version, **options)
        assert not node.recorder.set_placement(table, version, **options)
    assert len(caplog.records) == 1
    node.record("a", 1)
    (header,) = node.headers()
    assert (header.placement, header.expert_map_version) == (None, 0)


def test_a_version_never_comes_back(node: Node) -> None:
    """Windows are kept apart by version: not even the one just before may be given again."""
    other = ROUND_ROBIN[::-1]
    assert node.recorder.set_placement(ROUND_ROBIN, 7)
    for table, version in ((ROUND_ROBIN, 6), (other, 6), (ROUND_ROBIN, 5), (other, 7)):
        assert not node.recorder.set_placement(table, version)
        assert node.recorder.profile.expert_map_version == 7
    assert node.recorder.set_placement(ROUND_ROBIN, 7)  # the same again, which changes nothing
    assert node.recorder.set_placement(other, 8)
    assert node.recorder.profile.expert_map_version == 8


@pytest.mark.parametrize(
    "wrong",
    [("some", 1.0), ("full", 0.5), ("sampled", 0.0), ("sampled", 1.0), ("sampled", "half"),
     (None, 1.0)],
)  # fmt: skip
def test_a_wrong_fidelity_changes_nothing(node: Node, wrong: tuple[Any, Any]) -> None:
    """What would make every batch invalid is refused, without an error in the engine."""
    assert not node.recorder.set_fidelity(*wrong)
    node.record("a", 2)
    assert node.headers()[0].fidelity is Fidelity.FULL


def test_a_table_that_the_ring_has_no_room_for_is_refused(tmp_path: Path) -> None:
    """A ring's segments repeat the table: it may not push out the rows."""
    layers, experts = 40, 256
    table = np.random.default_rng(2).integers(0, 60_000, (layers, experts))
    with small_recorder(
        tmp_path, layers=range(layers), experts=experts, ring_bytes=32 * 32_768
    ) as recorder:
        assert not recorder.set_placement(table, 1)
        assert recorder.set_placement(table // 10_000, 1)
        recorder.record("a", [0], np.zeros((1, layers, 2), int), "decode")
        assert recorder.counters().recorded_rows == 1


def test_unseen_rows_are_told_once_and_why(node: Node) -> None:
    """Rows that no hook saw lower coverage, with no row shipped, and survive a restart."""
    node.agent.run_once()
    node.recorder.miss(40, "monolithic kernel")
    node.recorder.miss(2, "monolithic kernel")
    node.clock.sleep(1.0)
    (header,) = node.headers()
    assert header.drops.unseen_rows == header.drops.lost_rows == 42
    assert header.labels == {"unseen_reason": "monolithic kernel"}
    node.restart_agent()
    node.recorder.miss(5, "monolithic kernel")
    node.record("a", 1)
    assert [header.drops.unseen_rows for header in node.headers()] == [42, 5]
    assert node.recorder.counters().unseen_rows == 47
    assert node.agent.counters().shipped.unseen_rows == 5


def told_reasons(headers: list[BatchHeader]) -> list[tuple[int, str]]:
    """Unseen rows and the reason of each batch that tells of any."""
    return [
        (header.drops.unseen_rows, header.labels.get("unseen_reason", ""))
        for header in headers
        if header.drops.unseen_rows
    ]


@pytest.mark.parametrize("more_rows", [0, 2])
def test_the_reason_travels_with_unseen_rows_after_recorded_ones(
    node: Node, more_rows: int
) -> None:
    """What came before the first miss carries its rows and their reason, in one batch with more."""
    node.record("a", 3)
    node.recorder.miss(9, "monolithic kernel")
    if more_rows:
        node.record("a", more_rows)
    headers = node.headers()
    assert len(headers) == 1
    assert told_reasons(headers) == [(9, "monolithic kernel")]


def test_a_reason_that_changed_is_told_with_its_rows(node: Node) -> None:
    """Rows recorded under the first reason carry what was unseen after them with the second."""
    node.recorder.miss(1, "unknown layout")
    node.record("a", 3)
    node.batches()
    node.record("a", 3)
    node.clock.sleep(2)
    node.recorder.miss(4, "monolithic kernel")
    assert told_reasons(node.headers()) == [(1, "unknown layout"), (4, "monolithic kernel")]


@pytest.mark.parametrize("restarts", [False, True])
def test_each_reason_is_told_with_its_own_rows(node: Node, *, restarts: bool) -> None:
    """Several causes between two batches: none gets the rows of another, and none is told twice."""
    node.record("a", 2)
    node.recorder.miss(98, "monolithic kernel")
    node.record("a", 2)
    node.recorder.miss(3, "unknown layout")
    node.record("a", 2)
    headers = node.headers()
    assert told_reasons(headers) == [(98, "monolithic kernel"), (3, "unknown layout")]
    assert [header.sequence for header in headers] == [0, 1]
    if restarts:
        node.restart_agent()
    for _ in range(5):  # they alternate faster than batches are made
        node.recorder.miss(1, "monolithic kernel")
        node.recorder.miss(2, "unknown layout")
    node.recorder.miss(4, "budget")
    node.record("a", 1)
    assert sorted(told_reasons(node.headers())[2:]) == [
        (4, "budget"),
        (5, "monolithic kernel"),
        (10, "unknown layout"),
    ]


def test_an_agent_that_died_before_it_appended_tells_each_reason_once(node: Node) -> None:
    """A batch that was noted and never appended is told again, with its reason and no other."""
    node.recorder.miss(1, "unknown layout")
    node.record("a", 1)
    node.batches()
    node.recorder.miss(2, "budget")
    node.recorder.miss(5, "unknown layout")
    (ring,) = node.folder.glob("*.ring")
    reader = RingReader(ring)
    (note,) = reader.notes()
    told = note.unseen
    reader.note(note._replace(sequence=1, unseen_rows=6, unseen=(told[0] + 5, *told[1:])))
    reader.close()
    node.restart_agent()
    node.record("a", 1)
    assert told_reasons(node.headers()) == [
        (1, "unknown layout"),
        (5, "unknown layout"),
        (2, "budget"),
    ]


def test_more_reasons_than_a_ring_names_are_counted_together(node: Node) -> None:
    """A probe whose every reason is another one costs no memory, and nobody gets its rows."""
    for number in range(40):
        node.recorder.miss(number + 1, f"reason {number}")
    node.record("a", 1)
    told = told_reasons(node.headers())
    assert sorted(told[1:]) == [(number + 1, f"reason {number}") for number in range(15)]
    assert told[0] == (sum(range(16, 41)), "other reasons")


def test_the_unseen_rows_of_an_older_recorder_are_told(node: Node) -> None:
    """A ring without reasons, left by the release before: its rows are told, under no name."""
    node.recorder.miss(5, "budget")
    (ring,) = node.folder.glob("*.ring")
    with ring.open("r+b") as file:
        file.seek(count_word(0) * 8)
        file.write(bytes(8))
    node.record("a", 1)
    assert told_reasons(node.headers()) == [(5, "")]
    node.restart_agent()
    node.record("a", 1)
    assert told_reasons(node.headers()) == [(5, "")]


def test_totals_without_reasons_are_taken_for_the_first_ones(node: Node) -> None:
    """An agent of the release before noted one total: each row is told once, whatever it is for."""
    node.recorder.miss(5, "budget")
    node.recorder.miss(4, "unknown layout")
    node.record("a", 1)
    assert told_reasons(node.headers()) == [(5, "budget"), (4, "unknown layout")]
    (ring,) = node.folder.glob("*.ring")
    with ring.open("r+b") as file:
        file.seek(640)
        file.write(bytes(2 * TOLD_STRIDE))
    node.recorder.miss(2, "budget")
    node.recorder.miss(1, "unknown layout")
    node.restart_agent()
    node.record("a", 1)
    assert told_reasons(node.headers())[2:] == [(3, "unknown layout")]


def test_a_long_reason_ends_between_two_characters(node: Node) -> None:
    """What a slot has room for is text, and the slot behind it keeps its own rows."""
    node.recorder.miss(3, "x" + "ä" * 99)
    node.recorder.miss(2, "budget")
    node.record("a", 1)
    assert told_reasons(node.headers()) == [(3, "x" + "ä" * 86), (2, "budget")]


def test_unseen_rows_of_an_engine_that_ended_are_told(node: Node) -> None:
    """The last thing that an engine says is not forgotten with its ring."""
    node.recorder.miss(9, "unknown layout")
    node.recorder.close()
    node.batches()
    assert [header.drops.unseen_rows for header in node.headers()] == [9]


def test_nonsense_about_unseen_rows_never_raises(node: Node) -> None:
    """Bad numbers and strange reasons are the probe's fault, not the engine's."""
    bad: Any
    for bad in (None, "x", -3, 1.5e300, [1]):
        node.recorder.miss(bad, "why")
    for bad in (None, "\ud800" * 3, "long " * 400, ""):
        node.recorder.miss(1, bad)
        node.clock.sleep(2.0)
    node.record("a", 1)
    headers = node.headers()
    assert sum(header.drops.unseen_rows for header in headers) == 4
    assert all(len(value) <= 100 for header in headers for value in header.labels.values())
    assert node.recorder.counters().internal_errors == 0


def test_a_ring_whose_terms_nobody_understands_is_set_aside(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """A recorder of another release costs its own ring, not the agent; its rows are in the file."""
    node.record("a", 3)
    ring = node.recorder._ring  # noqa: SLF001 - no recorder of this release writes such terms
    assert ring is not None
    ring.change_terms(b"terms of the future")
    node.record("a", 2)
    with caplog.at_level(logging.ERROR, logger="moescope.producers"):
        assert [row.serial for row in rows_of(node.batches())] == [0, 1, 2]
    assert len(list(node.folder.glob("*.ring.damaged"))) == 1
    assert node.agent.counters().unreadable_rings == 1
    assert "set aside" in caplog.text
    node.recorder.close()
    with small_recorder(node.folder, clock=node.clock) as newer:
        newer.record("b", [0], ids_of([0]), "decode")
        assert len(list(rows_of(node.batches()))) == 4


def test_terms_and_placements_come_back_as_they_were_stored() -> None:
    """What the ring holds is what the recorder said."""
    table = np.array([[0, 1, SEVERAL_RANKS], [2, 2, 2]], np.uint16)
    packed = pack_placement(Placement(version=9, rank_of=table, ranks=3))
    terms = Terms(
        fidelity=Fidelity.SAMPLED, sampling_ratio=0.125, expert_map_version=9,
        labels={"fidelity_reason": "Müll"}, placement=packed,
    )  # fmt: skip
    assert Terms.from_bytes(terms.to_bytes()) == terms
    placement = unpack_placement(packed, 2, 3)
    np.testing.assert_array_equal(placement.rank_of, table)
    assert (placement.version, placement.ranks) == (9, 3)
