"""One lane of one partition: rolls batches up and keeps what is open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moescope.core.clock import NO_TIME
from moescope.core.router_sums import ROUTER_SUMS
from moescope.core.vocabulary import Fidelity, Phase
from moescope.processors.kernels.advance import close_due, flush_tasks, seal_slots
from moescope.processors.kernels.apply import apply_ops
from moescope.processors.kernels.count import count_dropped, count_rows, mark_identical
from moescope.processors.kernels.plan import STALE_ROW, plan
from moescope.processors.kernels.records import (
    AGE_US,
    CELL,
    CLOSED,
    COUNTERS,
    FORGET_US,
    MINUTE_US,
    N_ACCEPTED,
    N_CELLS,
    N_CLOSED,
    N_IDENTICAL,
    N_LATE,
    N_OPS,
    N_ROW,
    N_STALE,
    N_TASKS,
    NONE,
    SILENCE_US,
    SKIPPED,
    TASK_PIECE,
)
from moescope.processors.lane_names import SceneNumbers, TaskNumbers
from moescope.processors.lane_output import LaneOutput, has_router_sums
from moescope.processors.pane_profiles import Chunk, PaneProfiles, position_origins
from moescope.processors.panes import UNKNOWN_DROPS
from moescope.processors.passes import OpenPasses, PassRows
from moescope.processors.request_slots import RequestSlots
from moescope.processors.rows import RowAccount, classify_rows, counts_that_add_up, phase_anchors
from moescope.processors.score_tables import router_planes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from moescope.core.batch import RoutingBatch
    from moescope.core.emission import LaneKey
    from moescope.processors.config import WindowConfig
    from moescope.processors.row_sampling import RowSampling
    from moescope.processors.traffic_mix import Mix

CELL_BYTES = 16 << 20
MOST_CELLS = 2048
ALL_ZERO_ROWS = 64


class Lane:
    """Everything of one partition that shares a `LaneKey`.

    Args:
        key, partition, config, sampling: what it belongs to.
        watermark: the partition's when the lane begins.
    """

    def __init__(
        self,
        key: LaneKey,
        partition: str,
        config: WindowConfig,
        sampling: RowSampling,
        watermark: int = NO_TIME,
    ) -> None:
        self.key = key
        self._config = config
        self._layers = len(key.layers)
        self._experts = key.experts
        with_router = has_router_sums(key)
        self._requests = RequestSlots(self._layers, self._experts, config, with_router=with_router)
        self._profiles = PaneProfiles(key, config, self._requests, watermark)
        # Part of a pass says nothing of how uneven the whole is.
        is_full = key.fidelity == Fidelity.FULL.name.lower()
        self._has_passes = is_full and bool(config.time or config.step)
        self._passes = OpenPasses(self._layers, self._experts, watermark)
        self._batches = 0
        self._nodes: dict[int, str] = {}
        self._scenes = SceneNumbers()
        self._tasks = TaskNumbers()
        self._deadline = NO_TIME
        self._flushed_minute = NO_TIME
        self._forget_at = NO_TIME
        self._task_gaps: dict[str, int] = {}
        self.output = LaneOutput(
            key, partition, config, sampling, self._scenes.name_of, self._profiles
        )
        width = self._layers * self._experts
        self._most_cells = int(np.clip(CELL_BYTES // (2 * max(width, 1)), 64, MOST_CELLS))
        accumulators = self._requests.windows.shape[1]
        self._cells = np.zeros(self._most_cells, CELL)
        self._cell_counts = np.zeros((self._most_cells, width), np.uint16)
        self._cell_dropped = np.zeros((self._most_cells, self._layers), np.uint64)
        sums = self._layers * ROUTER_SUMS if with_router else 0
        self._cell_router = np.zeros((self._most_cells, sums), np.int64)
        room = self._most_cells + 1
        self._closed = np.zeros(room * (2 * accumulators + 1), CLOSED)
        self._pieces = np.zeros(3 * room + 8, TASK_PIECE)
        self._ops = np.zeros((room * (2 * accumulators + 5) + 64, 4), np.int64)

    # ---- what a batch brings -------------------------------------------------------------

    def roll_up(
        self, batch: RoutingBatch, offset: int, *, live: bool, stale: Sequence[int] = ()
    ) -> RowAccount:
        """Roll a batch up. With `live` false only memory is rebuilt and nothing is handed out.

        `stale` are rows (or blocks) found to be stale when the record was first read: what they
        repeated may lie before the place where a replay starts.
        """
        if batch.tokens is not None:
            return self._roll_up_rows(batch, offset, stale, live=live)
        return self._roll_up_blocks(batch, offset, stale, live=live)

    def _roll_up_rows(
        self, batch: RoutingBatch, offset: int, stale: Sequence[int], *, live: bool
    ) -> RowAccount:
        tokens, routes = batch.tokens, batch.routes
        assert tokens is not None  # noqa: S101 (narrowing; the batch was validated)
        assert routes is not None  # noqa: S101 - as above
        account, status = classify_rows(tokens.phase, tokens.flags)
        status[list(stale)] = SKIPPED
        total = len(tokens)
        identical = np.zeros(total, np.bool_)
        mark_identical(routes.gaps, tokens.request, tokens.position, identical)
        # A context row would carry a run over from the batch before, which a replay may not read.
        identical[1:] &= status[:-1] != SKIPPED
        times = tokens.event_time_us
        if times is None:
            times = np.full(total, NO_TIME, np.int64)
        steps = tokens.step if tokens.step is not None and self._config.step_pane else None
        skipped_layers = np.zeros(self._layers, np.bool_)
        if self.key.top_k == 1 and self._experts > 1 and total >= ALL_ZERO_ROWS:
            skipped_layers = ((routes.gaps[0] == 0) & (routes.relabelling[:, :1] == 0)).all(axis=1)
            if skipped_layers.any():
                account.reasons += ("all_zero_layer",)

        planes = router_planes(routes, self._experts)

        def count(
            begin: int, end: int, cell_of_row: NDArray[np.int32], counts: NDArray[np.uint16],
            dropped: NDArray[np.uint64],
        ) -> None:  # fmt: skip
            used = len(counts)
            before_cell = np.ascontiguousarray(self._cells["before"][:used])
            account.suspicious_pairs += count_rows(
                routes.gaps, routes.relabelling, skipped_layers, planes, begin, end, cell_of_row,
                before_cell, counts.reshape(used, self._layers, self._experts),
                self._cell_router[:used].reshape(used, self._layers, ROUTER_SUMS),
            )  # fmt: skip
            if routes.dropped is not None:
                dropped[:] = 0
                count_dropped(routes.dropped, begin, end, cell_of_row, dropped)
            else:
                dropped[:] = UNKNOWN_DROPS

        origins = position_origins(batch.requests)

        def profile(
            begin: int, end: int, cell_of_row: NDArray[np.int32], counts: NDArray[np.uint16]
        ) -> None:
            self._profiles.add(
                Chunk(
                    tokens, routes, origins, skipped_layers, offset, begin, end, cell_of_row,
                    self._cells[: len(counts)], counts,
                )
            )  # fmt: skip

        cell_of_row = self._run(
            batch, offset, account, live=live,
            request=tokens.request, position=tokens.position,
            row_tokens=np.ones(total, np.int32), phase=tokens.phase, status=status,
            flags=tokens.flags, identical=identical, first_time=times, last_time=times,
            step=steps, count=count, cell_counts=self._cell_counts,
            profile=profile if self._config.time else None, with_panes=True,
        )  # fmt: skip
        if live and self._has_passes:
            rows = PassRows(tokens, routes, cell_of_row, skipped_layers)
            header = batch.header
            self.output.add_passes(self._passes.add(header.node, header.watermark_us, rows))
        if account.suspicious_pairs:
            account.reasons += ("suspicious_rows",)
        return account

    def _roll_up_blocks(
        self, batch: RoutingBatch, offset: int, stale: Sequence[int], *, live: bool
    ) -> RowAccount:
        account = RowAccount()
        blocks = batch.token_blocks
        if blocks is not None and len(blocks):
            account, status = classify_rows(blocks.phase, blocks.flags, blocks.tokens)
            status[list(stale)] = SKIPPED
            total = len(blocks)
            times = blocks.first_time_us
            first = np.full(total, NO_TIME, np.int64) if times is None else times
            last = first if blocks.last_time_us is None else blocks.last_time_us
            width = self._layers * self._experts
            adding_up, wrong = counts_that_add_up(blocks.counts, blocks.tokens, self.key.top_k)
            source = adding_up.reshape(total, width)
            if wrong:
                account.suspicious_pairs += wrong
                account.reasons += ("counts_mismatch",)

            def count(
                begin: int, end: int, cell_of_row: NDArray[np.int32], counts: NDArray[np.uint32],
                dropped: NDArray[np.uint64],
            ) -> None:  # fmt: skip
                counts[:] = 0
                dropped[:] = 0
                self._cell_router[: len(counts)] = 0
                rows = np.arange(begin, end)
                cell = cell_of_row[begin:end]
                rows, cell = rows[cell >= 0], cell[cell >= 0]
                counts[cell] = source[rows]
                if blocks.dropped is not None:
                    dropped[cell] = blocks.dropped[rows]
                else:
                    dropped[:] = UNKNOWN_DROPS

            self._run(
                batch, offset, account, live=live,
                request=blocks.request, position=blocks.start_position,
                row_tokens=blocks.tokens, phase=blocks.phase, status=status,
                flags=blocks.flags, identical=np.zeros(total, np.bool_),
                first_time=first, last_time=last,
                step=blocks.step if self._config.step_pane else None, count=count,
                cell_counts=np.zeros((self._most_cells, width), np.uint32), profile=None,
                with_panes=False,
            )  # fmt: skip
        if batch.time_blocks is not None and live:
            seconds = batch.time_blocks
            adding_up, wrong = counts_that_add_up(seconds.counts, seconds.tokens, self.key.top_k)
            if wrong:
                account.reasons += ("counts_mismatch",)
                seconds = replace(seconds, counts=adding_up)
            self.output.add_time_blocks(seconds, batch.header.node, self._scenes.number_of)
        return account

    def _run(
        self,
        batch: RoutingBatch,
        offset: int,
        account: RowAccount,
        *,
        live: bool,
        request: NDArray[np.int32],
        position: NDArray[np.int32],
        row_tokens: NDArray[np.int32],
        phase: NDArray[np.uint8],
        status: NDArray[np.uint8],
        flags: NDArray[np.uint8],
        identical: NDArray[np.bool_],
        first_time: NDArray[np.int64],
        last_time: NDArray[np.int64],
        step: NDArray[np.int64] | None,
        count: Any,  # noqa: ANN401 (a closure over the batch's own planes)
        cell_counts: NDArray[Any],
        profile: Callable[..., None] | None,
        with_panes: bool,
    ) -> NDArray[np.int32]:
        """Plan and carry out rows; says of which cell each row became, negative: of none."""
        requests = self._requests
        slot_of_request = requests.claim(batch.requests.ids)
        node = batch.header.node
        self._nodes.update(dict.fromkeys(slot_of_request.tolist(), node))
        anchors, unanchored = phase_anchors(batch.requests)
        tasks = self._tasks.numbers_of(batch.requests.tasks)
        scenes = self._scenes.numbers_of(batch.requests.scenes)
        total = len(request)
        cell_of_row = np.full(total, NONE, np.int32)
        steps = np.zeros(0, np.int64) if step is None else step
        n = np.zeros(COUNTERS, np.int64)
        self._batches += 1
        begin = 0
        while begin < total:
            n[:] = 0
            plan(
                begin, request, position, row_tokens, phase, status, flags, identical,
                first_time, last_time, steps, slot_of_request, anchors, unanchored, tasks,
                scenes, requests.slots, requests.windows, requests.specs, self._config.border,
                self._config.gap_limit, 0 if step is None else self._config.step_pane, offset,
                self._batches, cell_of_row, self._cells, self._closed, self._pieces, self._ops, n,
            )  # fmt: skip
            end, used = int(n[N_ROW]), int(n[N_CELLS])
            counts, dropped = cell_counts[:used], self._cell_dropped[:used]
            router = self._cell_router[:used]
            count(begin, end, cell_of_row, counts, dropped)
            self._carry_out(n, counts, dropped, router, live=live)
            if profile is not None and used:
                profile(begin, end, cell_of_row, counts)
            if live and used:
                self.output.add_cells(
                    self._cells, used, counts, dropped, router, scenes, node, with_panes=with_panes
                )
            account.accepted += int(n[N_ACCEPTED])
            account.stale += int(n[N_STALE])
            account.late += int(n[N_LATE])
            if n[N_IDENTICAL]:
                account.suspicious_pairs += int(n[N_IDENTICAL]) * self._layers
                repeated = phase[begin:end][identical[begin:end]]
                # A generation that loops does this by itself; a prompt does not.
                generated = bool((repeated == Phase.DECODE).all())
                account.reasons += ("repeated_generation" if generated else "identical_rows",)
            begin = end
        if account.stale:
            account.stale_rows = tuple(np.flatnonzero(cell_of_row == STALE_ROW).tolist())
        self._hand_over_similarity(live=live)
        self._note_earliest(first_time)
        ended = slot_of_request[requests.slots["phase"][slot_of_request] == NONE]
        if len(ended):
            self._release(np.unique(ended))
        return cell_of_row

    def _hand_over_similarity(self, *, live: bool) -> None:
        if not live:
            self._profiles.discard()
        for phase, sums in self._profiles.similarity.closed():
            self.output.add_similarity(phase, sums)

    def _note_earliest(self, times: NDArray[np.int64]) -> None:
        """See to it that rows of a node that lags behind are looked at in time."""
        timed = times[times != NO_TIME]
        if not len(timed):
            return
        earliest = int(timed.min())
        self._deadline = min(self._deadline, earliest + SILENCE_US)
        self._forget_at = min(self._forget_at, earliest + FORGET_US)
        if earliest // MINUTE_US < self._flushed_minute:
            self._flushed_minute = NO_TIME

    def _carry_out(
        self,
        n: NDArray[np.int64],
        counts: NDArray[np.unsignedinteger[Any]],
        dropped: NDArray[np.uint64],
        router: NDArray[np.int64],
        *,
        live: bool,
    ) -> None:
        requests = self._requests
        n_closed, n_pieces = int(n[N_CLOSED]), int(n[N_TASKS])
        width = self._layers * self._experts
        closed_counts = np.empty((n_closed, width), np.uint16)
        closed_dropped = np.empty((n_closed, self._layers), np.uint64)
        piece_counts = np.zeros((n_pieces, width), np.uint32)
        piece_dropped = np.zeros((n_pieces, self._layers), np.uint64)
        closed_router = np.empty((n_closed, router.shape[1]), np.int64)
        piece_router = np.zeros((n_pieces, router.shape[1]), np.int64)
        apply_ops(
            self._ops, int(n[N_OPS]), counts, dropped, router, requests.window_counts,
            requests.window_dropped, requests.window_router, requests.task_counts,
            requests.task_dropped, requests.task_router, closed_counts, closed_dropped,
            closed_router, piece_counts, piece_dropped, piece_router, self._config.task,
        )  # fmt: skip
        if not live:
            return
        if n_closed:
            closed = self._closed[:n_closed].copy()
            slots = closed["slot"].tolist()
            self.output.add_closed(
                closed, closed_counts, closed_dropped, closed_router,
                [requests.names[slot] for slot in slots],
                self._tasks.names_of(closed["task"].tolist()),
                [self._nodes[slot] for slot in slots],
            )  # fmt: skip
        if n_pieces and self._config.task:
            pieces = self._pieces[:n_pieces].copy()
            self.output.add_pieces(
                pieces, piece_counts, piece_dropped, piece_router,
                self._tasks.names_of(pieces["task"].tolist()),
            )  # fmt: skip

    def _carry_out_closings(self, n: NDArray[np.int64], *, live: bool) -> None:
        """Carry out a plan without rows."""
        self._carry_out(
            n, self._cell_counts[:0], self._cell_dropped[:0], self._cell_router[:0], live=live
        )

    def add_lost(self, lost: Mix, node: str, panes: Sequence[int], *, unknown_gap: bool) -> None:
        """Note rows that will never arrive, by phase and scene."""
        for (phase, scene), rows in lost.items():
            self.output.add_lost(
                phase, self._scenes.number_of(scene), node, panes, rows, unknown_gap=unknown_gap
            )

    def close_passes(self, node: str, watermark_us: int) -> None:
        """Hand out the passes that a node has completed, in whatever batch it said so."""
        self.output.add_passes(self._passes.close(node, watermark_us))

    # ---- what time brings ----------------------------------------------------------------

    def advance(self, watermark: int, *, live: bool) -> None:
        """Close what the watermark has overtaken, hand out task minutes, forget the silent."""
        requests = self._requests
        self._profiles.similarity.advance(watermark)
        self._hand_over_similarity(live=live)
        if live:
            self.output.add_passes(self._passes.advance(watermark))
        if watermark >= self._deadline:
            open_windows = requests.windows["open"] != 0
            due = np.flatnonzero(open_windows.any(axis=1))
            if len(due):
                self._close(watermark, due, live=live)
            self._deadline = self._next_deadline(watermark)
        minute = watermark // MINUTE_US
        if minute > self._flushed_minute:
            self._flushed_minute = minute
            timed = requests.slots["last_time"] != NO_TIME
            due = np.flatnonzero(
                (requests.slots["task_seen"] > 0) & timed & (requests.slots["task_minute"] < minute)
            )
            self._flush_tasks(due, live=live)
        if watermark >= self._forget_at:
            timed = (requests.slots["live"] != 0) & (requests.slots["last_time"] != NO_TIME)
            silent = timed & (requests.slots["last_time"] <= watermark - FORGET_US)
            self._release(np.flatnonzero(silent))
            oldest = requests.slots["last_time"][timed & ~silent]
            self._forget_at = int(oldest.min() if len(oldest) else watermark) + FORGET_US

    def _next_deadline(self, watermark: int) -> int:
        requests = self._requests
        open_windows = requests.windows["open"] != 0
        timed = open_windows & (requests.windows["first_time"] != NO_TIME)
        if not timed.any():
            return watermark + SILENCE_US // 3
        silent = requests.slots["last_time"][timed.any(axis=1)].min() + SILENCE_US
        aged = requests.windows["first_time"][timed].min() + AGE_US
        # A window that opens later may be silent before any of these.
        return int(min(silent, aged, watermark + SILENCE_US // 3))

    def _close(self, watermark: int, due: NDArray[np.int64], *, live: bool) -> None:
        requests = self._requests
        step = max(1, (len(self._closed) - 2) // max(requests.windows.shape[1], 1))
        for begin in range(0, len(due), step):
            n = np.zeros(COUNTERS, np.int64)
            close_due(
                due[begin : begin + step], watermark, requests.slots, requests.windows,
                requests.specs, self._closed, self._ops, n,
            )  # fmt: skip
            self._carry_out_closings(n, live=live)

    def _flush_tasks(self, due: NDArray[np.int64], *, live: bool) -> None:
        step = len(self._pieces) - 4
        for begin in range(0, len(due), step):
            n = np.zeros(COUNTERS, np.int64)
            flush_tasks(
                due[begin : begin + step], self._requests.slots, self._pieces, self._ops, n
            )  # fmt: skip
            self._carry_out_closings(n, live=live)

    def seal(self, *, live: bool) -> None:
        """Close everything: the partition was read to its sealed end."""
        requests = self._requests
        everyone = requests.live()
        step = max(1, (len(self._closed) - 2) // max(requests.windows.shape[1], 1))
        step = min(step, len(self._pieces) - 4)
        for begin in range(0, len(everyone), step):
            n = np.zeros(COUNTERS, np.int64)
            seal_slots(
                everyone[begin : begin + step], requests.slots, requests.windows,
                requests.specs, self._closed, self._pieces, self._ops, n,
            )  # fmt: skip
            self._carry_out_closings(n, live=live)
        self._release(everyone)
        if live:
            self.output.add_passes(self._passes.seal())
        self._profiles.similarity.seal()
        self._hand_over_similarity(live=live)

    # ---- memory --------------------------------------------------------------------------

    def lowest_open_offset(self) -> int | None:
        """Lowest record offset that something open still needs."""
        needed = (self._requests.lowest_open_offset(), self._profiles.similarity.lowest_offset())
        return min((offset for offset in needed if offset is not None), default=None)

    def state(self, replay_from: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What a restart cannot rebuild from the records that it replays from there on."""
        requests = self._requests
        values, arrays = self.output.state()
        values["scenes"] = self._scenes.state()
        values["similarity"] = self._profiles.similarity.state()
        values["closed_early"] = self._closed_early()
        values["idle"], arrays["idle"] = requests.idle(replay_from)
        values["idle_nodes"] = [self._node_of(name) for name in values["idle"]]
        values["open_pieces"], arrays["open_pieces"] = requests.open_pieces()
        values["passes"], arrays["passes"] = self._passes.state()
        return values, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take over a saved state, before replay."""
        self._scenes.restore(values["scenes"])
        self.output.restore(values, arrays)
        self._profiles.similarity.restore(values["similarity"])
        self._passes.restore(values["passes"], arrays["passes"])
        self._task_gaps = dict(
            zip(values["open_pieces"], arrays["open_pieces"].tolist(), strict=True)
        )
        slots = self._requests.remember(values["idle"], arrays["idle"])
        self._nodes.update(zip(slots.tolist(), values["idle_nodes"], strict=True))

    def _node_of(self, request: str) -> str:
        slot = self._requests.find(request)
        return "" if slot is None else self._nodes.get(slot, "")

    def finish_replay(self, values: dict[str, Any] | None, watermark: int) -> None:
        """Bring memory rebuilt from replayed records to where the last commit stood.

        Windows that closed early are marked, so that they do not open again; what the watermark
        had already closed or handed out is thrown away.
        """
        requests = self._requests
        for mark in values["closed_early"] if values else []:
            slot = int(requests.claim([mark["request"]])[0])
            state = requests.slots[slot]
            self._nodes.setdefault(slot, mark["node"])
            if state["phase"] == NONE:
                state["phase"] = mark["phase"]
                state["last_position"] = mark["last_position"]
                state["last_time"] = mark["last_time"]
                state["last_pane"] = NO_TIME
            if state["phase"] != mark["phase"]:
                continue
            window = requests.windows[slot, mark["accumulator"]]
            window["closed_early"] = max(int(window["closed_early"]), mark["index"])
            if window["open"] and window["index"] <= window["closed_early"]:
                requests.drop_open(slot, mark["accumulator"])
        for request, gap in self._task_gaps.items():
            open_slot = requests.find(request)
            if open_slot is not None:
                requests.slots[open_slot]["task_gap"] = gap
        self._task_gaps = {}
        self._deadline = NO_TIME
        self._flushed_minute = NO_TIME
        self._forget_at = NO_TIME
        if watermark != NO_TIME:
            self.advance(watermark, live=False)

    def _closed_early(self) -> list[dict[str, Any]]:
        requests = self._requests
        marks = []
        for slot, accumulator in np.argwhere(requests.windows["closed_early"] >= 0).tolist():
            state, window = requests.slots[slot], requests.windows[slot, accumulator]
            if state["live"]:
                marks.append(
                    {
                        "request": requests.names[slot],
                        "node": self._nodes[slot],
                        "phase": int(state["phase"]),
                        "accumulator": accumulator,
                        "index": int(window["closed_early"]),
                        "last_position": int(state["last_position"]),
                        "last_time": int(state["last_time"]),
                    }
                )
        return marks

    def _release(self, slots: NDArray[np.int64]) -> None:
        self._requests.release(slots)
        for slot in slots.tolist():
            self._nodes.pop(slot, None)
        if len(self._tasks) > 4 * len(self._requests) + 4096:
            self._tasks.keep(set(self._requests.slots["task"].tolist()))
