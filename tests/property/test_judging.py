from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from oracles import judge_plain as oracle
from support.judged_groups import LANE, book_of, group_of, line_key, metric_lines, version_of

from moescope.core.metrics import FAMILIES, JUDGED_METRICS, METRIC_NAMES
from moescope.core.vocabulary import WindowKind
from moescope.processors.judge import Judge

METRICS = (
    "gini", "cold_expert_share", "kl_uniform", "routing_shift", "mix_shift", "topk_overlap",
    "top1_switches",
)  # fmt: skip
LAYERS = len(LANE.layers)
BORDER_US = 6_000_000
MINIMUM_COVERAGE = 0.75
"""Three of four rows are just enough."""
FAMILY_NAMES = {
    str(family): [each.name for each in metrics if each.name in METRICS]
    for family, metrics in FAMILIES.items()
}

# A coarse grid, so that values meet their lines and each other.
GRID = (-1.0, 0.0, 0.5, 1.0, 1.5, 2.0)
CLOSES = (4_999_999, 5_000_000, 5_999_999, BORDER_US, 11_000_000)
SCENES: tuple[dict[str, int], ...] = ({}, {"a": 4}, {"a": 3, "b": 0}, {"a": 1, "b": 3}, {"b": 4})

seeds = st.integers(0, 2**32 - 1)


def _number(rng: random.Random, null: float) -> float:
    return math.nan if rng.random() < null else rng.choice(GRID)


def _one_line(rng: random.Random) -> oracle.Line:
    none = rng.random() < 0.2
    low, high, lower, higher = (math.nan if none else _number(rng, 0.4) for _ in range(4))
    return oracle.Line(low, high, lower, higher, rng.choice((0.25, 0.5, 2.0)))


def _case(seed: int) -> dict[str, Any]:
    """Windows in any order on both sides of an activation, and lines by scene and band.

    Drawn by a plain generator: what is judged has to be dense for ties and mixed traffic to occur.
    """
    rng = random.Random(seed)
    windows = range(rng.randint(1, 6))
    few_nulls = rng.choice((0.0, 0.1, 0.5))
    return {
        "kind": rng.choice((WindowKind.TOKEN, WindowKind.TIME)),
        "start": [rng.randint(0, 2) for _ in windows],
        "request": [rng.choice(("", "a", "b")) for _ in windows],
        "close": [rng.choice(CLOSES) for _ in windows],
        "seen": [rng.choice((3, 4)) for _ in windows],
        "complete": [rng.random() < 0.8 for _ in windows],
        "lost": [rng.choice((0, 0, 1, 2)) for _ in windows],
        "gap": [rng.random() < 0.2 for _ in windows],
        "row_version": [rng.choice((1, 1, 1, 2)) for _ in windows],
        "scenes": [rng.choice(SCENES) for _ in windows],
        "values": [
            {metric: [_number(rng, few_nulls) for _ in range(LAYERS)] for metric in METRICS}
            for _ in windows
        ],
        "lines": {
            (version, scene, band): {
                metric: [_one_line(rng) for _ in range(LAYERS)]
                for metric in METRICS
                if rng.random() < 0.6
            }
            for version in ("t-1", "t-2")
            for scene in ("", "a")
            for band in ("0:1", "0:2")
            if rng.random() < 0.8
        },
    }


def _lines(version: str, case: dict[str, Any], window: int) -> dict[str, list[oracle.Line]]:
    """Lines of a window: those of its scene before those of all scenes, of its band only."""
    token = case["kind"] is WindowKind.TOKEN
    if token and not case["complete"][window]:
        return {}
    band = "0:1" if token or case["seen"][window] == 3 else "0:2"
    present = [scene for scene, tokens in case["scenes"][window].items() if tokens]
    found = dict(case["lines"].get((version, "", band), {}))
    if len(present) == 1:
        found |= case["lines"].get((version, present[0], band), {})
    return found


def _saw_enough(case: dict[str, Any], window: int) -> bool:
    """A shared window may lack a few rows: not a share that is too large, or not known."""
    seen, lost = case["seen"][window], case["lost"][window]
    return not case["gap"][window] and seen >= MINIMUM_COVERAGE * (seen + lost)


@examples(max_examples=150)
@example(22)  # Two metrics of a family are equally bad, and the later column is first by name.
@given(seeds)
def test_judging_equals_one_value_at_a_time(seed: int) -> None:
    """Bits, versions and the worst of each slot are what the definitions say, ties included."""
    case = _case(seed)
    windows = len(case["start"])
    token = case["kind"] is WindowKind.TOKEN
    group = group_of(
        windows,
        kind=case["kind"],
        start=np.array(case["start"]),
        request=case["request"],
        close_time_us=np.array(case["close"]),
        seen=np.array(case["seen"]),
        expected=np.array(case["seen"]) + np.array(case["lost"]),
        complete=np.array(case["complete"]),
        unknown_gap=np.array(case["gap"]),
        row_version=np.array(case["row_version"], np.int32),
        scene_tokens=case["scenes"],
    )
    values = np.full((windows, LAYERS, len(METRIC_NAMES)), np.nan)
    for window, of_metrics in enumerate(case["values"]):
        for metric, of_layers in of_metrics.items():
            values[window, :, METRIC_NAMES.index(metric)] = of_layers
    versions = [
        version_of(
            {
                # The oracle's "0:1" stands for the one band of token windows, too.
                line_key(scene, "" if token else band, kind=str(case["kind"])): {
                    metric: metric_lines(
                        **{
                            side: [getattr(each, side) for each in lines]
                            for side in oracle.Line._fields
                        }
                    )
                    for metric, lines in of_metrics.items()
                }
                for (version, scene, band), of_metrics in case["lines"].items()
                if version == name and (band == "0:1" or not token)
            },
            name,
        )
        for name in ("t-1", "t-2")
    ]
    judge = Judge(
        book_of((0, versions[0]), (BORDER_US, versions[1])), minimum_coverage=MINIMUM_COVERAGE
    )
    judgement = judge.judge(group, values, judge.versions(group))
    assert judgement is not None

    names = ["t-1" if time < BORDER_US else "t-2" for time in case["close"]]
    assert list(judgement.version) == names
    plain = [
        oracle.Window(
            names[window],
            case["values"][window],
            _lines(names[window], case, window),
            case["row_version"][window] == 1
            and (case["complete"][window] if token else _saw_enough(case, window)),
            case["close"][window],
            case["start"][window],
            case["request"][window],
        )
        for window in range(windows)
    ]
    for window, each in enumerate(plain):
        for layer in range(LAYERS):
            levels = [
                oracle.level(each.values[metric.name][layer], each.lines[metric.name][layer])
                if metric.name in each.lines
                else "unjudged"
                for metric in JUDGED_METRICS
            ]
            for actual, included in (
                (judgement.judged, {"fine", "warn", "red"}),
                (judgement.warn, {"warn", "red"}),
                (judgement.red, {"red"}),
            ):
                expected = sum(1 << bit for bit, at in enumerate(levels) if at in included)
                assert int(actual[window, layer]) == expected
    worst = {
        (key.family, key.slot_us, key.version): (
            each.value, each.metric, each.layer, each.start, each.request,
            each.windows, each.red_windows, each.mixed_windows,
        )
        for key, each in judgement.exceedances.items()
    }  # fmt: skip
    assert worst == oracle.worst_of_slots(plain, LANE.layers, FAMILY_NAMES)


@examples(max_examples=60)
@given(seeds)
def test_exceedances_do_not_depend_on_how_windows_are_grouped(seed: int) -> None:
    """Windows judged together or one by one merge to the same slots."""
    case = _case(seed)
    windows = len(case["start"])
    lines = {
        line_key(scene): {
            metric: metric_lines(
                red_high=[each.red_high for each in of_layers],
                red_low=[each.red_low for each in of_layers],
                spread=[each.spread for each in of_layers],
            )
            for metric, of_layers in of_metrics.items()
        }
        for (_, scene, _), of_metrics in case["lines"].items()
    }
    judge = Judge(book_of((0, version_of(lines))))

    def exceedances(chosen: list[int]) -> dict[Any, Any]:
        group = group_of(
            len(chosen),
            start=np.array([case["start"][each] for each in chosen]),
            request=[case["request"][each] for each in chosen],
            close_time_us=np.array([case["close"][each] for each in chosen]),
            scene_tokens=[case["scenes"][each] for each in chosen],
        )
        values = np.full((len(chosen), LAYERS, len(METRIC_NAMES)), np.nan)
        for row, window in enumerate(chosen):
            for metric, of_layers in case["values"][window].items():
                values[row, :, METRIC_NAMES.index(metric)] = of_layers
        judgement = judge.judge(group, values, judge.versions(group))
        assert judgement is not None
        return judgement.exceedances

    merged: dict[Any, Any] = {}
    for window in reversed(range(windows)):
        for key, each in exceedances([window]).items():
            merged[key] = merged[key].merged(each) if key in merged else each
    assert merged == exceedances(list(range(windows)))
