"""Views of the store: the questions that people ask of windows, answered in SQL.

Each view reads tables by their bare names, so that it works in the store file and over the
Parquet export alike.
"""

from __future__ import annotations

from moescope.core.control_tables import CONTROL_TABLES
from moescope.core.table_types import View

_SERIES = (
    "domain, model, revision, phase, origin, fidelity, sampling_ratio, lane, scope_kind, "
    "scope_value, window_kind, size, stride, request, task"
)
"""Windows that follow each other: everything of a key but start and layer."""

_SERIES_COLUMNS = tuple((name.strip(), "As in `windows`.") for name in _SERIES.split(","))

_HOT_EXPERTS = View(
    name="hot_experts",
    doc="Experts that carry more than twice the mean load, and for how many windows in a row.",
    sql=f"""
    WITH numbered AS (
        SELECT {_SERIES}, start, start_time, close_time, layer, experts, counts, weight,
            list_sum(counts) AS assignments,
            row_number() OVER (PARTITION BY {_SERIES}, layer ORDER BY start) AS number
        FROM windows
    ), loads AS (
        SELECT * EXCLUDE (counts),
            unnest(range(experts)) AS expert, unnest(counts) AS load
        FROM numbered
        WHERE list_max(counts) * experts > 2 * assignments
    ), hot AS (
        SELECT *, number - row_number() OVER (
            PARTITION BY {_SERIES}, layer, expert ORDER BY start
        ) AS run
        FROM loads
        WHERE load * experts > 2 * assignments
    )
    SELECT {_SERIES}, start, start_time, close_time, layer, expert,
        load / assignments AS share,
        load * experts / assignments AS times_mean,
        row_number() OVER (
            PARTITION BY {_SERIES}, layer, expert, run ORDER BY start
        ) AS streak,
        weight
    FROM hot
    """,  # noqa: S608 (constants)
    columns=(
        *_SERIES_COLUMNS,
        ("start", "As in `windows`."),
        ("start_time", "As in `windows`."),
        ("close_time", "As in `windows`."),
        ("layer", "As in `windows`."),
        ("expert", "Logical expert id."),
        ("share", "Its share of the window's assignments at this layer."),
        ("times_mean", "Its load in multiples of the mean load."),
        ("streak", "Stored windows of the series in a row, up to this one, in which it is hot."),
        ("weight", "As in `windows`."),
    ),
)

_RED_WINDOWS = View(
    name="red_windows",
    doc="Windows beyond a red line.",
    sql="SELECT * FROM windows WHERE level = 'red'",
    columns=(("*", "As in `windows`."),),
)

_WORST_WINDOWS = View(
    name="worst_windows",
    doc="Each window at the layer that is farthest from uniform for its number of tokens.",
    sql=f"""
    SELECT {_SERIES}, node, scene, start, start_time, close_time, layer, tokens, requests, coverage,
        complete, js_uniform, js_uniform_floor, js_uniform / js_uniform_floor AS times_floor,
        hot_load_share, cold_expert_share, max_violation, level, weight
    FROM windows
    WHERE js_uniform_floor > 0 AND js_uniform IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY {_SERIES}, start ORDER BY js_uniform / js_uniform_floor DESC, layer
    ) = 1
    ORDER BY times_floor DESC
    """,  # noqa: S608 (constants)
    columns=(
        *_SERIES_COLUMNS,
        *(
            (name, "As in `windows`.")
            for name in (
                "node", "scene", "start", "start_time", "close_time", "layer", "tokens",
                "requests", "coverage", "complete", "js_uniform", "js_uniform_floor",
            )
        ),
        ("times_floor", "js_uniform in multiples of what chance alone gives."),
        *(
            (name, "As in `windows`.")
            for name in (
                "hot_load_share", "cold_expert_share", "max_violation", "level", "weight",
            )
        ),
    ),
)  # fmt: skip


def _weighted(metric: str) -> str:
    return f"sum(weight * {metric}) / sum(weight) FILTER ({metric} IS NOT NULL) AS {metric}"


_LAYER_HEALTH = View(
    name="layer_health",
    doc="Per layer and kind of window: how many windows of which level, and mean metrics.",
    sql=f"""
    SELECT domain, model, revision, phase, origin, scope_kind, scope_value, window_kind, size,
        stride, layer,
        sum(weight) AS windows,
        coalesce(sum(weight) FILTER (level = 'healthy'), 0) AS healthy,
        coalesce(sum(weight) FILTER (level = 'warn'), 0) AS warn,
        coalesce(sum(weight) FILTER (level = 'red'), 0) AS red,
        coalesce(sum(weight) FILTER (level = 'insufficient'), 0) AS insufficient,
        {_weighted("hot_load_share")},
        {_weighted("cold_expert_share")},
        {_weighted("load_entropy")},
        {_weighted("max_violation")},
        {_weighted("js_uniform")},
        {_weighted("js_uniform_floor")},
        max(close_time) AS last_close_time
    FROM windows
    GROUP BY ALL
    """,  # noqa: S608 (constants)
    columns=(
        *(
            (name, "As in `windows`.")
            for name in (
                "domain", "model", "revision", "phase", "origin", "scope_kind", "scope_value",
                "window_kind", "size", "stride", "layer",
            )
        ),
        ("windows", "Windows, by weight."),
        ("healthy", "Of these, healthy."),
        ("warn", "Of these, past a warn line."),
        ("red", "Of these, past a red line."),
        ("insufficient", "Of these, without a verdict."),
        *(
            (name, "Mean over windows, by weight.")
            for name in (
                "hot_load_share", "cold_expert_share", "load_entropy", "max_violation",
                "js_uniform", "js_uniform_floor",
            )
        ),
        ("last_close_time", "Newest window."),
    ),
)  # fmt: skip

_COVERAGE = View(
    name="coverage",
    doc="How much of what should have been seen was seen, per minute.",
    sql="""
    SELECT w.domain, w.model, w.revision, w.phase, w.origin, w.scope_kind, w.scope_value,
        w.window_kind, w.size, w.stride,
        date_trunc('minute', w.close_time) AS minute,
        sum(w.weight) AS windows,
        sum(w.weight) FILTER (w.complete) AS complete,
        count(*) FILTER (w.coverage IS NULL) AS unknown,
        sum(w.seen)::BIGINT AS seen,
        sum(w.expected)::BIGINT AS expected,
        sum(w.lost)::BIGINT AS lost,
        CASE WHEN count(*) = count(w.coverage) THEN sum(w.seen) / sum(w.expected) END AS coverage
    FROM windows w JOIN lanes USING (lane)
    WHERE w.layer = lanes.layers[1]
    GROUP BY ALL
    """,
    columns=(
        *(
            (name, "As in `windows`.")
            for name in (
                "domain", "model", "revision", "phase", "origin", "scope_kind", "scope_value",
                "window_kind", "size", "stride",
            )
        ),
        ("minute", "Of the logical close time; null without event times."),
        ("windows", "Windows, by weight."),
        ("complete", "Of these, complete; null: none."),
        ("unknown", "Stored windows with a gap of unknown length."),
        ("seen", "Rows accepted in stored windows."),
        ("expected", "Rows that should have been seen."),
        ("lost", "Rows known to be lost."),
        ("coverage", "seen / expected; null: at least one gap of unknown length."),
    ),
)  # fmt: skip

_RANK_LOAD = View(
    name="rank_load",
    doc="Load of each expert-parallel rank in shared windows whose placement is known.",
    sql=f"""
    WITH said AS (
        SELECT placement, layer, any_value(ranks) AS ranks, any_value(rank_of) AS rank_of
        FROM placements
        GROUP BY placement, layer
    ), by_rank AS (
        SELECT {_SERIES}, start, start_time, close_time, layer, placement, ranks, rank_of, counts,
            list_sum(counts) AS assignments, unnest(range(ranks)) AS rank, rank_imbalance
        FROM windows JOIN said USING (placement, layer)
        WHERE tokens > 0
    )
    SELECT {_SERIES}, start, start_time, close_time, layer, placement, ranks, rank,
        coalesce(
            list_sum([each[1] for each in list_zip(counts, rank_of) if each[2] = rank]), 0
        )::UBIGINT AS load,
        load / assignments AS share,
        load * ranks / assignments AS times_mean,
        rank_imbalance
    FROM by_rank
    """,  # noqa: S608 (constants)
    columns=(
        *_SERIES_COLUMNS,
        *(
            (name, "As in `windows`.")
            for name in ("start", "start_time", "close_time", "layer", "placement")
        ),
        ("ranks", "Expert-parallel ranks."),
        ("rank", "One of them."),
        ("load", "Assignments to the experts that it holds alone."),
        ("share", "Its share of the window's assignments at this layer."),
        ("times_mean", "Its load in multiples of the mean load."),
        ("rank_imbalance", "As in `windows`."),
    ),
)  # fmt: skip

(_THRESHOLDS,) = (table for table in CONTROL_TABLES if table.name == "thresholds")
_OF_A_LINE = tuple(
    name for name in _THRESHOLDS.column_names if name not in {"version", "commit_id"}
)

_CURRENT_THRESHOLDS = View(
    name="current_thresholds",
    doc="Lines of the version that judges live windows now, with how sure each of them is.",
    sql=f"""
    WITH now AS (
        SELECT coalesce(max(watermark_us), 9223372036854775807) AS now_us
        FROM domains WHERE domain = 'live'
    ), in_force AS (
        SELECT model, revision, origin, fidelity, sampling_ratio, version, effective_from_us
        FROM threshold_activations, now
        WHERE effective_from_us <= now_us
        QUALIFY row_number() OVER (
            PARTITION BY model, revision, origin, fidelity, sampling_ratio
            ORDER BY effective_from_us DESC, activation DESC
        ) = 1
    )
    SELECT i.*, {", ".join(_OF_A_LINE)}
    FROM in_force i JOIN thresholds t USING (version)
    """,  # noqa: S608 (constants)
    columns=(
        *(
            (name, "As in `threshold_activations`.")
            for name in (
                "model", "revision", "origin", "fidelity", "sampling_ratio", "version",
                "effective_from_us",
            )
        ),
        *((name, "As in `thresholds`.") for name in _OF_A_LINE),
    ),
)  # fmt: skip

_OPEN_ALERTS = View(
    name="open_alerts",
    doc="Alerts that are not over, the newest first, with why they stand where they stand.",
    sql="""
    SELECT a.alert, a.state, a.pattern, l.domain, l.model, l.revision, a.phase, a.family,
        a.window_kind, a.size, a.stride, a.scope_kind, a.scope_value, a.began_at, a.fired_at,
        a.last_slot, a.worst_value, a.worst_metric, a.worst_layer, a.worst_start,
        a.worst_request, a.version, a.caused_by, a.historic, e.why
    FROM alerts a
    LEFT JOIN lanes l USING (lane)
    LEFT JOIN (
        SELECT alert, why FROM alert_events
        QUALIFY row_number() OVER (PARTITION BY alert ORDER BY number DESC) = 1
    ) e USING (alert)
    WHERE a.state <> 'resolved'
    ORDER BY a.began_at DESC, a.alert
    """,
    columns=(
        *((name, "As in `alerts`.") for name in ("alert", "state", "pattern")),
        *((name, "As in `lanes`.") for name in ("domain", "model", "revision")),
        *(
            (name, "As in `alerts`.")
            for name in (
                "phase", "family", "window_kind", "size", "stride", "scope_kind", "scope_value",
                "began_at", "fired_at", "last_slot", "worst_value", "worst_metric",
                "worst_layer", "worst_start", "worst_request", "version", "caused_by",
                "historic",
            )
        ),
        ("why", "Of its newest change of state; null: none."),
    ),
)  # fmt: skip

VIEWS: tuple[View, ...] = (
    _HOT_EXPERTS,
    _RED_WINDOWS,
    _WORST_WINDOWS,
    _LAYER_HEALTH,
    _COVERAGE,
    _RANK_LOAD,
    _CURRENT_THRESHOLDS,
    _OPEN_ALERTS,
)
"""Every view, in an order in which they can be created."""
