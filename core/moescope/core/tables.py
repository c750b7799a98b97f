"""The store's tables, declared once: schema, export, query and documentation follow from here.

Names are an interface. Times are UTC: columns of type TIMESTAMP are for people, columns named
`…_us` are microseconds since the epoch and may hold `NO_TIME` or `END_OF_TIME`.
"""

from __future__ import annotations

from enum import StrEnum

from moescope.core.control_tables import COMMIT as _COMMIT
from moescope.core.control_tables import CONTROL_TABLES
from moescope.core.metrics import METRICS
from moescope.core.table_types import Column, Table, View
from moescope.core.views import VIEWS

__all__ = ["TABLES", "TABLE_BY_NAME", "VIEWS", "Column", "LevelReason", "Table", "View"]


class LevelReason(StrEnum):
    """Why a window's level is `insufficient`."""

    COVERAGE_UNKNOWN = "coverage unknown"
    COVERAGE = "coverage"
    PARTIAL = "partial"
    SUSPICIOUS_ROWS = "suspicious rows"
    NO_THRESHOLD = "no calibrated threshold"
    NO_LINE = "no line for this volume or scene"


_LANE_ID = Column("lane", "VARCHAR", "Id of the lane; `lanes` says what it stands for.")

_LANE_FIELDS = (
    Column("domain", "VARCHAR", "Watermark domain: `live`, or the name of an import."),
    Column("model", "VARCHAR", "What is served."),
    Column("revision", "VARCHAR", "Changes with weights or router configuration."),
    Column("origin", "VARCHAR", "`model`: what the router chose; `framework`: what was executed."),
    Column("fidelity", "VARCHAR", "How much of its routing the producer ships."),
    Column("sampling_ratio", "DOUBLE", "Share of requests that the producer ships."),
    Column("experts", "INTEGER", "E, number of logical experts."),
    Column("top_k", "INTEGER", "k, experts per token and layer."),
)

_SCOPE = (
    Column("scope_kind", "VARCHAR", "`all`, `node` or `scene`."),
    Column("scope_value", "VARCHAR", "The node or scene; empty for `all`."),
)

_WINDOW_SHAPE = (
    Column("window_kind", "VARCHAR", "`token`, `time`, `task` or `step`."),
    Column("size", "BIGINT", "Positions (token), µs (time), steps (step); 0 for task windows."),
    Column("stride", "BIGINT", "Distance between starts, in the unit of `size`; 0 for tasks."),
)

_PHASE = Column("phase", "VARCHAR", "`prefill`, `decode`, `eval` or `train`.")


def _windows() -> Table:
    lane = {column.name: column for column in _LANE_FIELDS}
    return Table(
        name="windows",
        doc="One row per closed window and layer.",
        columns=(
            *(lane[name] for name in ("domain", "model", "revision")),
            _PHASE,
            lane["origin"],
            *_SCOPE,
            *_WINDOW_SHAPE,
            Column("start", "BIGINT", "First position, event time in µs, or step."),
            Column("request", "VARCHAR", "Request of a token window, else empty."),
            Column("task", "VARCHAR", "Task of a token or task window, else empty."),
            Column("layer", "INTEGER", "Index among all decoder layers."),
            lane["fidelity"],
            lane["sampling_ratio"],
            _LANE_ID,
            lane["experts"],
            lane["top_k"],
            Column("node", "VARCHAR", "Node of a token window or of scope `node`, else empty."),
            Column("scene", "VARCHAR", "Scene that all rows share; empty when they differ."),
            Column("scenes", "VARCHAR[]", "Scenes of the rows, in order of name."),
            Column("scene_tokens", "BIGINT[]", "Accepted rows per entry of `scenes`."),
            Column("band", "VARCHAR", "Volume band; empty for token windows."),
            Column("start_time", "TIMESTAMP", "`start` of a time or task window.", nullable=True),
            Column("first_time", "TIMESTAMP", "Event time of the first row.", nullable=True),
            Column("last_time", "TIMESTAMP", "Event time of the last row.", nullable=True),
            Column("close_time", "TIMESTAMP", "Logical close time, of event time.", nullable=True),
            Column("span", "BIGINT", "Extent: positions, µs or steps that the window covers."),
            Column("tokens", "BIGINT", "Tokens counted at this layer."),
            Column("requests", "BIGINT", "Distinct requests (by phase) with a row in the window."),
            Column("seen", "BIGINT", "Rows accepted."),
            Column("expected", "BIGINT", "Rows that should have been seen."),
            Column("lost", "BIGINT", "Rows known to be lost."),
            Column(
                "coverage", "DOUBLE", "seen / expected; null: a gap of unknown length.",
                nullable=True,
            ),
            Column("complete", "BOOLEAN", "Whether everything expected was seen."),
            Column("counts", "UBIGINT[]", "Assignments per expert, E entries."),
            Column(
                "dropped", "UBIGINT", "Assignments dropped by capacity; null: not told.",
                nullable=True,
            ),
            *(
                Column(metric.name, metric.sql_type, metric.description + ".", nullable=True)
                for metric in METRICS
            ),
            Column(
                "lag_overlap", "DOUBLE[]",
                "Overlap at lags 1 … 64 over sampled requests; null: not sampled.", nullable=True,
            ),
            Column(
                "trailing_reference", "VARCHAR",
                "Id in `reference_distributions`; null before the first.", nullable=True,
            ),
            Column(
                "placement", "VARCHAR",
                "Id in `placements` of where the experts were; null: not told.", nullable=True,
            ),
            Column("level", "VARCHAR", "`healthy`, `warn`, `red` or `insufficient`."),
            Column("level_reason", "VARCHAR", "Why the level is `insufficient`.", nullable=True),
            Column("warn_metrics", "VARCHAR[]", "Metrics past their warn line."),
            Column("red_metrics", "VARCHAR[]", "Metrics past their red line."),
            Column("close_reason", "VARCHAR", "Why the window closed."),
            Column(
                "threshold_version", "VARCHAR", "Thresholds that were in force; null: none.",
                nullable=True,
            ),
            Column("weight", "DOUBLE", "How many windows the row stands for (row sampling)."),
            Column("row_version", "INTEGER", "1 at first closing; more after late rows."),
            _COMMIT,
        ),
        key=(
            "domain", "model", "revision", "phase", "origin", "scope_kind", "scope_value",
            "window_kind", "size", "stride", "start", "request", "task", "layer", "fidelity",
            "sampling_ratio", "lane",
        ),
        exported=True,
        retention="`retention.windows` days, red rows `retention.red` days; imports stay",
        time_column="close_time",
    )  # fmt: skip


_LANES = Table(
    name="lanes",
    doc="What is constant over a set of comparable windows.",
    columns=(
        _LANE_ID,
        *_LANE_FIELDS,
        Column("layers", "INTEGER[]", "MoE layers, in the order of stored count arrays."),
        _COMMIT,
    ),
    key=("lane",),
    exported=True,
    retention="forever",
    revised=False,
)

_METRIC_HISTOGRAMS = Table(
    name="metric_histograms",
    doc="How often each metric took which value, over all windows, kept or not.",
    columns=(
        Column("minute", "TIMESTAMP", "Minute of the logical close time; the epoch: timeless."),
        _LANE_ID,
        _PHASE,
        *_SCOPE,
        *_WINDOW_SHAPE,
        Column("band", "VARCHAR", "Volume band."),
        Column("metric", "VARCHAR", "Name in the metric registry."),
        Column(
            "bins", "BLOB",
            "One zstd frame of little-endian int64 [layers, 66]: underflow, 64 bins, overflow.",
        ),
        _COMMIT,
    ),
    key=(
        "minute", "lane", "phase", "scope_kind", "scope_value", "window_kind", "size", "stride",
        "band", "metric",
    ),
    exported=True,
    retention="`retention.windows` days; imports stay",
    time_column="minute",
)  # fmt: skip

_DELTAS = Table(
    name="deltas",
    doc="Additive parts of shared windows that are open, or may still change.",
    columns=(
        _LANE_ID,
        Column("domain", "VARCHAR", "Watermark domain of the lane."),
        _PHASE,
        *_SCOPE,
        Column("window_kind", "VARCHAR", "`time`, `task` or `step`."),
        Column("task", "VARCHAR", "Task, else empty."),
        Column("pane", "BIGINT", "Start of the pane: µs, or a step."),
        Column("counts", "BLOB", "Little-endian unsigned [layers, E]; width by length."),
        Column("dropped", "BLOB", "Little-endian uint64 [layers]."),
        Column("request_gaps", "BLOB", "Little-endian int64 [G]."),
        Column("router", "BLOB", "Little-endian int64 [layers, 8]; null: none.", nullable=True),
        Column(
            "extras", "BLOB",
            "Counts at sampled positions, a similarity pane, lag overlap, passes; null: none.",
            nullable=True,
        ),
        Column("requests", "BIGINT", "Requests first seen (task and step)."),
        Column("seen", "BIGINT", "Rows accepted."),
        Column("lost", "BIGINT", "Rows known to be lost."),
        Column("unknown_gap", "BOOLEAN", "A gap of unknown length."),
        Column("first_time_us", "BIGINT", "Event time of the first row."),
        Column("last_time_us", "BIGINT", "Event time of the last row."),
        Column("scenes", "VARCHAR[]", "Scenes of the rows."),
        Column("scene_tokens", "BIGINT[]", "Accepted rows per entry of `scenes`."),
        Column("last_of_task", "BOOLEAN", "A row said that the task is over."),
        Column(
            "keep_until_us", "BIGINT",
            "Watermark at which the row is deleted; null while a task or step window is open.",
            nullable=True,
        ),
        _COMMIT,
    ),
    key=(),
    exported=False,
    retention="10 minutes of event time past closing",
)  # fmt: skip

_REFERENCES = Table(
    name="reference_distributions",
    doc="Trailing references that windows were compared with.",
    columns=(
        Column("reference_id", "VARCHAR", "Id; `windows.trailing_reference` names it."),
        _LANE_ID,
        _PHASE,
        Column("partition", "VARCHAR", "Partition of a token reference; empty for the owner's."),
        Column("effective_from", "TIMESTAMP", "Grid point at which it came into force."),
        Column("counts", "BLOB", "Little-endian int64 [layers, E]."),
        _COMMIT,
    ),
    key=("reference_id",),
    exported=True,
    retention="`retention.windows` days, longer where a window names it; imports stay",
    time_column="effective_from",
    revised=False,
)

_PLACEMENTS = Table(
    name="placements",
    doc="Which expert-parallel rank holds which expert, as nodes said it.",
    columns=(
        Column("placement", "VARCHAR", "Id of what was said; `windows.placement` names it."),
        *(field for field in _LANE_FIELDS if field.name in {"domain", "model", "revision"}),
        Column("node", "VARCHAR", "Who said it."),
        Column("effective_from", "TIMESTAMP", "Event time from which it holds; epoch: always."),
        Column("layer", "INTEGER", "Index among all decoder layers."),
        Column("version", "BIGINT", "The producer's number of the placement."),
        Column("ranks", "INTEGER", "Expert-parallel ranks."),
        Column(
            "rank_of", "INTEGER[]",
            "Rank of each expert, E entries; 65535: replicas on several ranks.",
        ),
        _COMMIT,
    ),
    key=("domain", "model", "revision", "node", "effective_from", "placement", "layer"),
    exported=True,
    retention="`retention.red` days past the one that followed; imports stay",
    time_column="effective_from",
    revised=False,
)  # fmt: skip

_OFFSETS = Table(
    name="offsets",
    doc="How far each partition was read, committed together with the output.",
    columns=(
        Column("partition", "VARCHAR", "Source of ordered records."),
        Column("domain", "VARCHAR", "Its watermark domain."),
        Column("emitted_to", "BIGINT", "First record whose output is not stored yet."),
        Column("replay_from", "BIGINT", "Where a restarted processor starts reading."),
        Column("state", "BLOB", "Opaque processor state as of `emitted_to`."),
        Column("watermark_us", "BIGINT", "The partition's watermark."),
        Column("step_low", "BIGINT", "Lowest step that an active training node works on."),
        Column("sealed", "BOOLEAN", "Read to the end of a sealed log."),
        Column("set_aside_us", "BIGINT[]", "Watermarks of its nodes that are not waited for."),
        Column("log_id", "VARCHAR", "Id of the topic; empty: it has none, or nobody told."),
        _COMMIT,
    ),
    key=("partition",),
    exported=False,
    retention="forever",
)

_DELTA_OFFSETS = Table(
    name="delta_offsets",
    doc="How far each partition of the deltas topic was applied, committed together with it.",
    columns=(
        Column("partition", "VARCHAR", "Partition of the topic."),
        Column("next_offset", "BIGINT", "Where a restarted owner starts reading."),
        Column("handled_to", "BIGINT", "All that ends before this record is stored."),
        _COMMIT,
    ),
    key=("partition",),
    exported=False,
    retention="forever",
)

_DOMAINS = Table(
    name="domains",
    doc="How far each watermark domain is, and what could not be used there.",
    columns=(
        Column("domain", "VARCHAR", "`live`, or the name of an import."),
        Column("watermark_us", "BIGINT", "Shared windows up to here have closed."),
        Column("step_low", "BIGINT", "Step windows up to here have closed."),
        Column("late_rows", "BIGINT", "Rows that came too late for a shared window, per window."),
        Column("duplicate_windows", "BIGINT", "Token windows left out: their key exists already."),
        _COMMIT,
    ),
    key=("domain",),
    exported=True,
    retention="forever",
)

_PRODUCERS = Table(
    name="producers",
    doc="Producers as their partitions see them.",
    columns=(
        Column("partition", "VARCHAR", "Partition that the producer writes to."),
        Column("node", "VARCHAR", "Name of the producer process."),
        Column("incarnation", "UBIGINT", "Its boot id."),
        Column("last_sequence", "BIGINT", "Greatest batch number."),
        Column("watermark", "TIMESTAMP", "Its watermark; null: none yet.", nullable=True),
        Column("state", "VARCHAR", "Active, set aside, or why not."),
        Column("lost_rows", "BIGINT", "Rows that it said it lost."),
        Column("gaps", "BIGINT", "Gaps in its batch numbers."),
        _COMMIT,
    ),
    key=("partition", "node", "incarnation"),
    exported=True,
    retention="forever",
)

_ROW_COUNTS = (
    ("rows", "Tokens in the batch."),
    ("accepted_rows", "Rows accepted."),
    ("context_rows", "Rows repeated from the batch before."),
    ("padding_rows", "Padding."),
    ("recomputed_rows", "Positions computed again."),
    ("stale_rows", "Rows at or below the greatest accepted position of their request."),
    ("late_rows", "Rows of token windows that had closed, per window size."),
    ("uncounted_phase_rows", "Warm-up and draft rows."),
    ("suspicious_pairs", "(Row, layer) pairs kept out of the counts."),
    ("lost_rows", "Rows that the producer lost since its batch before."),
    ("unseen_rows", "Of these, computed where nobody could see them."),
    ("rejected_rows", "Rows refused with their batch."),
)

_BATCHES = Table(
    name="batches",
    doc="Ingest accounting: one row per record read.",
    columns=(
        Column("partition", "VARCHAR", "Source of the record."),
        Column("log_offset", "BIGINT", "Its place there."),
        Column("append_time", "TIMESTAMP", "When the log got it.", nullable=True),
        Column("node", "VARCHAR", "Producer."),
        Column("incarnation", "UBIGINT", "Its boot id."),
        Column("sequence", "BIGINT", "Number of the batch."),
        Column("model", "VARCHAR", "What is served."),
        Column("revision", "VARCHAR", "Its revision."),
        Column("record_bytes", "BIGINT", "Size as stored."),
        *(Column(name, "BIGINT", doc) for name, doc in _ROW_COUNTS),
        Column("verdict", "VARCHAR", "What was decided about the batch."),
        Column("reasons", "VARCHAR[]", "Why."),
        _COMMIT,
    ),
    key=("partition", "log_offset"),
    exported=True,
    retention="`retention.windows` days; imports stay",
    time_column="append_time",
    revised=False,
)

_DEAD_LETTERS = Table(
    name="dead_letters",
    doc="Records that could not be used, kept whole: so many per partition and minute.",
    columns=(
        Column("partition", "VARCHAR", "Source of the record."),
        Column("log_offset", "BIGINT", "Its place there."),
        Column("append_time", "TIMESTAMP", "When the log got it.", nullable=True),
        Column("reason", "VARCHAR", "Which check refused it."),
        Column("detail", "VARCHAR", "In words."),
        Column("payload", "BLOB", "The record."),
        _COMMIT,
    ),
    key=("partition", "log_offset"),
    exported=True,
    retention="`retention.windows` days; imports stay",
    time_column="append_time",
    revised=False,
)

_DEAD_LETTER_COUNTS = Table(
    name="dead_letter_counts",
    doc="How many records could not be used, those included that are not kept.",
    columns=(
        Column("partition", "VARCHAR", "Source of the records."),
        Column("reason", "VARCHAR", "Which check refused them."),
        Column("records", "BIGINT", "All of them."),
        Column("kept", "BIGINT", "Those that `dead_letters` got."),
        Column("record_bytes", "BIGINT", "Bytes of all."),
        _COMMIT,
    ),
    key=("partition", "reason"),
    exported=True,
    retention="forever",
)

_TOKEN_WINDOW_KEYS = Table(
    name="token_window_keys",
    doc="Keys of stored token windows, so that a request that returns is not stored twice.",
    columns=(
        Column("key_hash", "UBIGINT", "64-bit hash of a token window's key without the layer."),
        Column("close_time", "TIMESTAMP", "As in `windows`.", nullable=True),
    ),
    key=("key_hash",),
    exported=False,
    retention="`retention.windows` days",
    time_column="close_time",
    revised=False,
    indexed=True,
)

_REMOVED_ROWS = Table(
    name="removed_rows",
    doc="Rows of exported tables that were removed or replaced, so that the export forgets them.",
    columns=(
        Column("table_name", "VARCHAR", "Table that held the row."),
        Column("row_key", "UBIGINT", "64-bit hash of the row's key."),
        _COMMIT,
    ),
    key=(),
    exported=False,
    retention="some thousand transactions",
    revised=False,
)

_RETENTION_MARKS = Table(
    name="retention_marks",
    doc="Up to when old rows were removed, so that the export forgets them hour by hour.",
    columns=(
        Column("table_name", "VARCHAR", "Table that held the rows."),
        Column("removed_before", "TIMESTAMP", "Hours before this have lost rows."),
        _COMMIT,
    ),
    key=("table_name",),
    exported=False,
    retention="forever",
)

_OWNER = Table(
    name="owner",
    doc="The owner of this file; one row.",
    columns=(
        Column("fencing_token", "BIGINT", "Raised by each process that becomes the owner."),
        Column("host", "VARCHAR", "Its machine."),
        Column("process_id", "BIGINT", "Its process."),
        Column("opened_at", "TIMESTAMP", "When it opened the file."),
        Column("last_commit_id", "BIGINT", "Number of the newest transaction."),
    ),
    key=(),
    exported=False,
    retention="forever",
)

_SCHEMA_MIGRATIONS = Table(
    name="schema_migrations",
    doc="Changes of the schema that this file has seen.",
    columns=(
        Column("version", "INTEGER", "Number of the change."),
        Column("name", "VARCHAR", "What it does."),
        Column("applied_at", "TIMESTAMP", "When."),
    ),
    key=("version",),
    exported=False,
    retention="forever",
    revised=False,
)

TABLES: tuple[Table, ...] = (
    _windows(),
    _LANES,
    _METRIC_HISTOGRAMS,
    _DELTAS,
    _REFERENCES,
    _PLACEMENTS,
    _OFFSETS,
    _DELTA_OFFSETS,
    _DOMAINS,
    _PRODUCERS,
    _BATCHES,
    _DEAD_LETTERS,
    _DEAD_LETTER_COUNTS,
    _TOKEN_WINDOW_KEYS,
    _REMOVED_ROWS,
    _RETENTION_MARKS,
    _OWNER,
    _SCHEMA_MIGRATIONS,
    *CONTROL_TABLES,
)
"""Every table of the store."""

TABLE_BY_NAME = {table.name: table for table in TABLES}
