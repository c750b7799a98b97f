"""Tables of calibration, alerts and jobs: what people and schedules decided, and what fired.

Values of columns named `…_json` are JSON text. The owner writes all of these; every change of
state has a row in `audit`.
"""

from __future__ import annotations

from moescope.core.table_types import Column, Table

COMMIT = Column("commit_id", "BIGINT", "Number of the owner's transaction that wrote the row.")

FOREVER = "forever"

_SCOPE = (
    Column("model", "VARCHAR", "What is served."),
    Column("revision", "VARCHAR", "Its revision."),
    Column("origin", "VARCHAR", "`model` or `framework`."),
    Column("fidelity", "VARCHAR", "How much of its routing the producer ships."),
    Column("sampling_ratio", "DOUBLE", "Share of requests that the producer ships."),
)

_WINDOWS = (
    Column("phase", "VARCHAR", "`prefill`, `decode`, `eval` or `train`."),
    Column("window_kind", "VARCHAR", "`token`, `time`, `task` or `step`."),
    Column("size", "BIGINT", "As in `windows`."),
    Column("stride", "BIGINT", "As in `windows`."),
    Column("scope_kind", "VARCHAR", "`all`, `node` or `scene`."),
)

_BY = (
    Column("author", "VARCHAR", "Who: a person's account, or a job."),
    Column("reason", "VARCHAR", "Why, in words."),
)

_BASELINES = Table(
    name="baselines",
    doc="Named, versioned sets of windows that are known to be healthy.",
    columns=(
        Column("baseline", "VARCHAR", "Name."),
        Column("version", "INTEGER", "1, 2, …; never changed."),
        Column("created_at", "TIMESTAMP", "Wall clock."),
        *_BY,
        Column("selection_json", "VARCHAR", "Spans, revisions, scenes, nodes, and what is out."),
        COMMIT,
    ),
    key=("baseline", "version"),
    exported=True,
    retention=FOREVER,
    revised=False,
)

_THRESHOLD_VERSIONS = Table(
    name="threshold_versions",
    doc="Calibrations; their lines never change.",
    columns=(
        Column("version", "VARCHAR", "`t-` and a number."),
        *_SCOPE,
        Column("layers", "INTEGER[]", "MoE layers, in the order of stored arrays."),
        Column("experts", "INTEGER", "E."),
        Column("top_k", "INTEGER", "k."),
        Column("baseline", "VARCHAR", "Baseline that it was made from."),
        Column("baseline_version", "INTEGER", "Its version."),
        Column("created_at", "TIMESTAMP", "Wall clock."),
        *_BY,
        Column("status", "VARCHAR", "`draft`, `active` or `retired`."),
        Column("summary_json", "VARCHAR", "Spans, units, windows, held-out check, what was out."),
        COMMIT,
    ),
    key=("version",),
    exported=True,
    retention=FOREVER,
)

_THRESHOLDS = Table(
    name="thresholds",
    doc="Lines of each version, per kind of window, metric and layer.",
    columns=(
        Column("version", "VARCHAR", "In `threshold_versions`."),
        *_WINDOWS,
        Column("scene", "VARCHAR", "Scene; empty for windows of any or mixed scenes."),
        Column("band", "VARCHAR", "Volume band; empty for token windows."),
        Column("metric", "VARCHAR", "Name in the metric registry."),
        Column("layer", "INTEGER", "Index among all decoder layers."),
        Column("side", "VARCHAR", "`high`, `low` or `both`."),
        *(
            Column(f"{level}_{side}{part}", "DOUBLE", f"{words}; null: none.", nullable=True)
            for level, share in (("warn", "90"), ("red", "99"))
            for side, quantile in (("low", f"P{100 - int(share)}"), ("high", f"P{share}"))
            for part, words in (
                ("", f"{level.capitalize()} line, {quantile} of the baseline"),
                ("_from", "Lower end of its 95 % interval"),
                ("_to", "Upper end of its 95 % interval"),
            )
        ),
        Column("centre", "DOUBLE", "The baseline's median."),
        Column("spread", "DOUBLE", "1.4826 × its median absolute deviation; positive."),
        Column("units", "BIGINT", "Sampling units: requests or blocks."),
        Column("windows", "BIGINT", "Windows of the baseline behind the line."),
        Column("standing", "VARCHAR", "`firm` or `provisional`."),
        Column("source", "VARCHAR", "`own`, `all scenes`, `layer band` or `model`."),
        COMMIT,
    ),
    key=(
        "version", "phase", "window_kind", "size", "stride", "scope_kind", "scene", "band",
        "metric", "layer",
    ),
    exported=True,
    retention=FOREVER,
    revised=False,
)  # fmt: skip

_THRESHOLD_ACTIVATIONS = Table(
    name="threshold_activations",
    doc="Which version judges from which event time on; rows are only added.",
    columns=(
        Column("activation", "BIGINT", "1, 2, …; of two at one time the later one wins."),
        *_SCOPE,
        Column("version", "VARCHAR", "Version; empty: judging is off."),
        Column("effective_from_us", "BIGINT", "Event time."),
        Column("activated_at", "TIMESTAMP", "Wall clock."),
        Column("action", "VARCHAR", "`activate` or `rollback`."),
        *_BY,
        COMMIT,
    ),
    key=("activation",),
    exported=True,
    retention=FOREVER,
    revised=False,
)

_BASELINE_REFERENCES = Table(
    name="baseline_references",
    doc="Expert loads of a version's baseline by scene: what `routing_shift` is measured against.",
    columns=(
        Column("version", "VARCHAR", "In `threshold_versions`."),
        Column("phase", "VARCHAR", "Phase."),
        Column("scene", "VARCHAR", "Scene."),
        Column("tokens", "BIGINT", "Tokens of the scene in the baseline."),
        Column("counts", "BLOB", "Little-endian int64 [layers, E]."),
        COMMIT,
    ),
    key=("version", "phase", "scene"),
    exported=True,
    retention=FOREVER,
    revised=False,
)

_PAGING_RULES = Table(
    name="paging_rules",
    doc="When the exceedances of a family page; solved for the alarm budget.",
    columns=(
        Column("version", "VARCHAR", "In `threshold_versions`."),
        *_WINDOWS,
        Column("family", "VARCHAR", "Family of metrics."),
        Column("line", "DOUBLE", "In spreads past the red line."),
        Column("needed", "INTEGER", "Slots over the line …"),
        Column("of_slots", "INTEGER", "… of this many with data."),
        Column("expected_per_day", "DOUBLE", "False pages per day on the baseline's blocks."),
        Column("bound_per_day", "DOUBLE", "One-sided upper 95 % bound of it."),
        Column("only_bound", "BOOLEAN", "The baseline is too short for more than the bound."),
        COMMIT,
    ),
    key=(
        "version", "phase", "window_kind", "size", "stride", "scope_kind", "family",
    ),
    exported=True,
    retention=FOREVER,
    revised=False,
)  # fmt: skip

_EXCEEDANCES = Table(
    name="exceedances",
    doc="Per 5 s of event time the worst exceedance of all windows, kept or not.",
    columns=(
        Column("lane", "VARCHAR", "Id of the lane."),
        *_WINDOWS,
        Column("scope_value", "VARCHAR", "The node or scene; empty for `all`."),
        Column("family", "VARCHAR", "Family of metrics."),
        Column("slot", "TIMESTAMP", "Start of the 5 s, of logical close times."),
        Column("version", "VARCHAR", "Thresholds that judged."),
        Column(
            "value", "DOUBLE", "Spreads past the red line; null: nothing was judged.",
            nullable=True,
        ),
        Column("metric", "VARCHAR", "Metric of the worst."),
        Column("layer", "INTEGER", "Its layer."),
        Column("start", "BIGINT", "`start` of its window."),
        Column("request", "VARCHAR", "Request of its window, else empty."),
        Column("windows", "BIGINT", "Windows judged."),
        Column("red_windows", "BIGINT", "Of these, red by a metric of the family."),
        Column("mixed_windows", "BIGINT", "Of these, explained by a red mix shift."),
        COMMIT,
    ),
    key=(
        "lane", "phase", "window_kind", "size", "stride", "scope_kind", "scope_value", "family",
        "slot", "version",
    ),
    exported=True,
    retention="`retention.windows` days",
    time_column="slot",
)  # fmt: skip

_ALERT = (
    Column("alert", "VARCHAR", "Id: a digest of its series and the time it began."),
    Column("lane", "VARCHAR", "Id of the lane."),
    *_WINDOWS,
    Column("scope_value", "VARCHAR", "The node or scene; empty for `all`."),
    Column("family", "VARCHAR", "Family of metrics."),
)

_ALERTS = Table(
    name="alerts",
    doc="Alerts and where they stand; event times.",
    columns=(
        *_ALERT,
        Column("state", "VARCHAR", "`pending`, `firing`, `recovering`, `resolved`, `no_data`."),
        Column("pattern", "VARCHAR", "What it looks like; empty until one is named."),
        Column("began_at", "TIMESTAMP", "First slot over the line."),
        Column(
            "fired_at",
            "TIMESTAMP",
            "Begin of the slot that made it fire; null: not yet.",
            nullable=True,
        ),
        Column("resolved_at", "TIMESTAMP", "When it was over; null: not yet.", nullable=True),
        Column("last_slot", "TIMESTAMP", "Newest slot looked at."),
        Column("worst_value", "DOUBLE", "Greatest exceedance, in spreads past the red line."),
        Column("worst_metric", "VARCHAR", "Its metric."),
        Column("worst_layer", "INTEGER", "Its layer."),
        Column("worst_start", "BIGINT", "`start` of its window."),
        Column("worst_request", "VARCHAR", "Request of its window, else empty."),
        Column("version", "VARCHAR", "Thresholds that judged."),
        Column("caused_by", "VARCHAR", "Alert that has the same cause and was sent; else empty."),
        Column("historic", "BOOLEAN", "It fired while a backlog was read."),
        COMMIT,
    ),
    key=("alert",),
    exported=True,
    retention="`retention.red` days",
    time_column="began_at",
)

_ALERT_EVENTS = Table(
    name="alert_events",
    doc="Every change of an alert's state.",
    columns=(
        Column("alert", "VARCHAR", "In `alerts`."),
        Column("number", "INTEGER", "1, 2, …"),
        Column("slot", "TIMESTAMP", "Slot of event time that decided."),
        Column("state", "VARCHAR", "State from then on."),
        Column("why", "VARCHAR", "In words."),
        COMMIT,
    ),
    key=("alert", "number"),
    exported=True,
    retention="`retention.red` days",
    time_column="slot",
    revised=False,
)

_RED_LINE_PROGRESS = Table(
    name="red_line_progress",
    doc="How far alerts are: slots are judged once, whatever happens between two commits.",
    columns=(
        Column("domain", "VARCHAR", "`live`, or the name of an import."),
        Column("judged_before_us", "BIGINT", "Slots that begin before this are judged."),
        COMMIT,
    ),
    key=("domain",),
    exported=False,
    retention=FOREVER,
)

_OUTBOX = Table(
    name="outbox",
    doc="Notifications, written with what they tell; a receiver may see one twice, never none.",
    columns=(
        Column("notification", "VARCHAR", "Idempotency key: alert, event number and receiver."),
        Column("receiver", "VARCHAR", "`log` or `webhook`."),
        Column("alert", "VARCHAR", "In `alerts`; empty for a test."),
        Column("body_json", "VARCHAR", "What is sent."),
        Column("created_at", "TIMESTAMP", "Wall clock."),
        Column("attempts", "INTEGER", "Deliveries tried."),
        Column("not_before", "TIMESTAMP", "Next try, wall clock."),
        Column("delivered_at", "TIMESTAMP", "Null: not yet.", nullable=True),
        Column("given_up_at", "TIMESTAMP", "Null: still tried.", nullable=True),
        Column("last_error", "VARCHAR", "Why the last try failed; else empty."),
        COMMIT,
    ),
    key=("notification",),
    exported=True,
    retention="`retention.red` days",
)

_PATTERNS = Table(
    name="patterns",
    doc="Named findings of detectors: what a stretch of windows looks like, and why.",
    columns=(
        Column("finding", "VARCHAR", "Id: a digest of pattern, series and begin."),
        Column("pattern", "VARCHAR", "Name; `moescope pattern list` explains it."),
        Column("lane", "VARCHAR", "Id of the lane."),
        Column("phase", "VARCHAR", "Phase."),
        Column("scope_kind", "VARCHAR", "`all`, `node` or `scene`."),
        Column("scope_value", "VARCHAR", "The node or scene; empty for `all`."),
        Column("window_kind", "VARCHAR", "Kind of windows that show it."),
        Column("size", "BIGINT", "Their size."),
        Column("began_at", "TIMESTAMP", "Event time."),
        Column("ended_at", "TIMESTAMP", "Event time of the last window that shows it."),
        Column("confidence", "DOUBLE", "0 … 1."),
        Column("pages", "BOOLEAN", "Whether the pattern is a fault that may page."),
        Column("evidence_json", "VARCHAR", "Metrics, values, lines, windows."),
        Column("likely_cause", "VARCHAR", "In words."),
        Column("next_step", "VARCHAR", "In words."),
        COMMIT,
    ),
    key=("finding",),
    exported=True,
    retention="`retention.red` days",
    time_column="began_at",
)

_JOB_RUNS = Table(
    name="job_runs",
    doc="Runs of scheduled jobs.",
    columns=(
        Column("job", "VARCHAR", "Name of the job."),
        Column("scheduled_for", "TIMESTAMP", "Wall clock; at most one run of a job per time."),
        Column("fencing_token", "BIGINT", "Owner that ran it."),
        Column("started_at", "TIMESTAMP", "Wall clock."),
        Column("ended_at", "TIMESTAMP", "Null: running, or died.", nullable=True),
        Column("state", "VARCHAR", "`running`, `done`, `failed`, `nothing` or `abandoned`."),
        Column("trigger", "VARCHAR", "`schedule` or `person`."),
        Column("result_json", "VARCHAR", "What it did, or why it failed."),
        COMMIT,
    ),
    key=("job", "scheduled_for"),
    exported=True,
    retention="`retention.red` days",
)

_JOB_STATES = Table(
    name="job_states",
    doc="Jobs that a person paused.",
    columns=(
        Column("job", "VARCHAR", "Name of the job."),
        Column("paused", "BOOLEAN", "Whether its schedule is skipped."),
        *_BY,
        COMMIT,
    ),
    key=("job",),
    exported=True,
    retention=FOREVER,
)

_AUDIT = Table(
    name="audit",
    doc="Changes of state that people and jobs made.",
    columns=(
        Column("number", "BIGINT", "1, 2, …"),
        Column("changed_at", "TIMESTAMP", "Wall clock."),
        Column("author", "VARCHAR", "Who."),
        Column("action", "VARCHAR", "Command, for example `threshold activate`."),
        Column("subject", "VARCHAR", "What it changed."),
        Column("reason", "VARCHAR", "Why, in words."),
        Column("detail_json", "VARCHAR", "Its arguments."),
        COMMIT,
    ),
    key=("number",),
    exported=True,
    retention=FOREVER,
    revised=False,
)

CONTROL_TABLES: tuple[Table, ...] = (
    _BASELINES,
    _THRESHOLD_VERSIONS,
    _THRESHOLDS,
    _THRESHOLD_ACTIVATIONS,
    _BASELINE_REFERENCES,
    _PAGING_RULES,
    _EXCEEDANCES,
    _ALERTS,
    _ALERT_EVENTS,
    _RED_LINE_PROGRESS,
    _OUTBOX,
    _PATTERNS,
    _JOB_RUNS,
    _JOB_STATES,
    _AUDIT,
)
"""Tables beside windows and ingest."""
