"""Each planted incident shows in the rows what its label says, and its twin does not."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.small_fleet import (
    SMALL_MODEL,
    SMALL_TRAFFIC,
    Row,
    counted_rows,
    rows_of,
    simulate_small,
)

from moescope.core.vocabulary import Phase, RowFlag
from moescope.producers.simulator import LABELS_FILE, SCENARIOS, SimulationError, scenario_named
from moescope.producers.simulator.incidents import (
    ColdExperts,
    ExpertCollapse,
    HotExpert,
    Incident,
    SharedPrefix,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray
    from support.decoded_logs import LoggedBatch

    from moescope.producers.simulator import TrafficSpec

LONG = replace(SMALL_TRAFFIC, tasks_per_second=0.3)
INCIDENTS = sorted(
    name for name, scenario in SCENARIOS.items() if scenario.incidents and not scenario.twin_of
)


def run(
    name: str, root: Path, *, duration_s: int = 12, traffic: TrafficSpec = SMALL_TRAFFIC
) -> tuple[dict[str, list[LoggedBatch]], dict[str, Any]]:
    """Simulate a scenario; its batches by node, and its labels."""
    _, log = simulate_small(SCENARIOS[name], root, duration_s=duration_s, traffic=traffic)
    return log, json.loads((root / LABELS_FILE).read_text(encoding="utf-8"))


def only_label(labels: dict[str, Any]) -> dict[str, Any]:
    """The one incident that was planted."""
    [label] = labels["incidents"]
    return dict(label)


def paths(rows: list[Row], requests: set[str]) -> dict[str, dict[int, bytes]]:
    """Expert sets by request and position."""
    found: dict[str, dict[int, bytes]] = defaultdict(dict)
    for row in rows:
        if row.request in requests:
            found[row.request][row.position] = np.sort(row.ids, axis=-1).tobytes()
    return found


def load(rows: list[Row], layer: int) -> NDArray[np.float64]:
    """Share of each expert at a place in the list of layers."""
    ids = np.concatenate([row.ids[layer] for row in rows])
    return np.bincount(ids, minlength=SMALL_MODEL.experts) / len(ids)


@pytest.mark.parametrize("name", INCIDENTS)
def test_every_scenario_runs_and_is_labelled(name: str, tmp_path: Path) -> None:
    """A scenario that the command line lists must work, on a fleet of any size."""
    _, labels = run(name, tmp_path, duration_s=3)
    assert labels["scenario"] == name
    assert [label["name"] for label in labels["incidents"]] == [
        incident.name for incident in SCENARIOS[name].incidents
    ]
    for label in labels["incidents"]:
        assert labels["start_us"] <= label["start_us"] < label["end_us"] <= labels["end_us"]
        assert label["present"] is True


@pytest.mark.parametrize("name", [name for name in INCIDENTS if name != "demo"])
def test_every_incident_has_a_twin_that_is_not_present(name: str) -> None:
    """An alert is only worth something if the healthy twin does not raise it."""
    incident, twin = SCENARIOS[name], SCENARIOS[f"{name}_twin"]
    assert twin.twin_of == name
    assert twin.traffic == incident.traffic
    absent = all(not planted.effect for planted in twin.incidents)
    assert absent or (twin.engine.prefix_caching and not incident.engine.prefix_caching)


@pytest.mark.parametrize("name", ["fixed_system_prompt_aligned", "fixed_system_prompt_unaligned"])
def test_a_system_prompt_takes_one_route_in_all_requests(name: str, tmp_path: Path) -> None:
    """Equal tokens at equal positions are routed equally: what positional agreement sees."""
    log, labels = run(name, tmp_path, duration_s=16)
    found = paths(counted_rows(log["sim-000"]), set(only_label(labels)["requests"]))
    complete = [path for path in found.values() if len(path) > 256]
    assert len(complete) > 3
    for position in range(256):
        assert len({path[position] for path in complete}) == 1
    after = [path[260] for path in complete if 260 in path]
    assert len(set(after)) > 1


def test_a_cached_system_prompt_is_computed_once(tmp_path: Path) -> None:
    """With prefix caching the incident is truly absent: rows begin at the cached position."""
    log, labels = run("fixed_system_prompt_unaligned_twin", tmp_path, duration_s=16)
    requests = set(only_label(labels)["requests"])
    found = paths(counted_rows(log["sim-000"]), requests)
    from_start = [request for request, path in found.items() if 0 in path]
    assert len(from_start) == 1
    assert len(found) > 3
    cached = {
        request: int(tokens)
        for batch, _ in log["sim-000"]
        for request, tokens in zip(batch.requests.ids, batch.requests.cached_tokens, strict=True)
    }
    assert all(cached[request] == min(path) for request, path in found.items())
    assert only_label(labels)["present"] is False


def test_concurrent_groups_share_a_document_of_their_own(tmp_path: Path) -> None:
    """A collision is between requests that run together, not between all of them."""
    log, labels = run("common_prefix_concurrency", tmp_path, duration_s=34)
    requests = set(only_label(labels)["requests"])
    found = paths(counted_rows(log["sim-000"]), requests)
    first_rows = [path[0] + path[1] + path[2] for path in found.values() if 2 in path]
    assert len(first_rows) > 16
    assert 1 < len(set(first_rows)) <= 3


def test_greedy_generations_repeat_themselves_and_the_twin_does_not(tmp_path: Path) -> None:
    """The loop is what narrows the load; the twin is as long and keeps its variety."""
    variety = {}
    for name in ("long_greedy", "long_greedy_twin"):
        log, labels = run(name, tmp_path / name, duration_s=60, traffic=LONG)
        requests = set(only_label(labels)["requests"])
        rows = [row for row in counted_rows(log["sim-000"]) if row.phase == Phase.DECODE]
        longest = max(paths(rows, requests).values(), key=len)
        late = [longest[position] for position in sorted(longest)[256:]]
        assert len(late) > 100
        variety[name] = len(set(late))
    assert variety["long_greedy"] <= 5
    assert variety["long_greedy_twin"] > 60


def test_examples_pull_the_answer_of_the_same_question(tmp_path: Path) -> None:
    """Only a paired comparison shows few-shot pull: same tasks, with and without examples."""
    answers: dict[str, dict[str, list[int]]] = {}
    for name in ("few_shot", "few_shot_twin"):
        log, labels = run(name, tmp_path / name, duration_s=30)
        shaped = set(only_label(labels)["requests"])
        tasks = {
            request: task
            for batch, _ in log["sim-000"]
            for request, task in zip(batch.requests.ids, batch.requests.tasks, strict=True)
        }
        answers[name] = defaultdict(list)
        for row in counted_rows(log["sim-000"]):
            if row.request in shaped and row.phase == Phase.DECODE:
                answers[name][tasks[row.request]] += row.ids[0].tolist()
    shared = sorted(set(answers["few_shot"]) & set(answers["few_shot_twin"]))
    assert len(shared) > 3

    def agreement(name: str) -> float:
        loads = [np.bincount(answers[name][task], minlength=SMALL_MODEL.experts) for task in shared]
        unit = [load / np.linalg.norm(load) for load in loads]
        return float(np.mean([a @ b for i, a in enumerate(unit) for b in unit[:i]]))

    assert agreement("few_shot") > agreement("few_shot_twin") + 0.05


def test_json_pulse_alternates_by_half_periods(tmp_path: Path) -> None:
    """Each second half period has another load; the twin's halves are alike."""
    distance = {}
    for name in ("json_pulse", "json_pulse_twin"):
        log, labels = run(name, tmp_path / name, duration_s=60, traffic=LONG)
        requests = set(only_label(labels)["requests"])
        starts = {
            request: int(start[Phase.DECODE])
            for batch, _ in log["sim-000"]
            for request, start in zip(batch.requests.ids, batch.requests.phase_starts, strict=True)
        }
        halves: list[list[Row]] = [[], []]
        for row in counted_rows(log["sim-000"]):
            if row.request in requests and row.phase == Phase.DECODE:
                halves[(row.position - starts[row.request]) // 64 % 2].append(row)
        distance[name] = float(np.abs(load(halves[0], 0) - load(halves[1], 0)).sum())
    assert distance["json_pulse"] > 2 * distance["json_pulse_twin"]


def test_single_domain_says_so_in_its_scene(tmp_path: Path) -> None:
    """A mix shift is told from a routing shift by the scenes, so they must change with it."""
    log, labels = run("single_domain", tmp_path, duration_s=20)
    label = only_label(labels)
    scenes = {
        request: scene
        for batch, _ in log["sim-000"]
        for request, scene in zip(batch.requests.ids, batch.requests.scenes, strict=True)
    }
    requests = [request for request in label["requests"] if request in scenes]
    assert {scenes[request] for request in requests} == {"extract"}
    assert len(set(scenes.values())) > 1


@pytest.mark.parametrize(
    ("incident", "moved"),
    [
        (
            HotExpert(name="hot", layers=(1,), expert=3),
            lambda before, after, experts: after[experts[0]] > 2 * before[experts[0]],
        ),
        (
            ColdExperts(name="cold", layers=(1,), experts=4, bias=-8.0),
            lambda _, after, experts: after[experts].sum() < 0.02,
        ),
        (
            ExpertCollapse(name="collapse", layers=(1,), survivors=6, bias=-8.0),
            lambda _, after, experts: after[experts].sum() > 0.9,
        ),
    ],
)
def test_router_faults_move_the_load_of_their_layer(
    incident: Incident,
    moved: Callable[[NDArray[np.float64], NDArray[np.float64], list[int]], bool],
    tmp_path: Path,
) -> None:
    """The load of the labelled layer moves as labelled from the incident's start on."""
    scenario = replace(SCENARIOS["healthy"], incidents=(incident,))
    _, log = simulate_small(scenario, tmp_path, duration_s=30)
    labels = json.loads((tmp_path / LABELS_FILE).read_text(encoding="utf-8"))
    label = only_label(labels)
    [layer] = label["layers"]
    place = SMALL_MODEL.layers.index(layer)
    rows = counted_rows(log["sim-000"])
    before = load([row for row in rows if row.time_us < label["start_us"]], place)
    after = load([row for row in rows if row.time_us >= label["start_us"]], place)
    assert moved(before, after, label["experts"][str(layer)])
    other = (place + 1) % len(SMALL_MODEL.layers)
    calm = load([row for row in rows if row.time_us >= label["start_us"]], other)
    assert not moved(calm, calm, label["experts"][str(layer)])


def test_a_silent_change_only_renames_experts(tmp_path: Path) -> None:
    """The twin's routes, with the labelled experts exchanged, are exactly the incident's."""
    rows = {}
    for name in ("silent_routing_change", "silent_routing_change_twin"):
        log, labels = run(name, tmp_path / name, duration_s=14)
        rows[name] = counted_rows(log["sim-000"])
        if not SCENARIOS[name].twin_of:
            label = only_label(labels)
    changed = 0
    for there, here in zip(*rows.values(), strict=True):
        for place, layer in enumerate(SMALL_MODEL.layers):
            moved = set(label["experts"][str(layer)])
            left, right = set(there.ids[place].tolist()), set(here.ids[place].tolist())
            if there.time_us < label["start_us"]:
                assert left == right
            else:
                assert left - moved == right - moved
                changed += left != right
    assert changed > 100


def test_engine_faults_spoil_their_layer_only(tmp_path: Path) -> None:
    """Zeros and duplicates are what gates look for; other layers stay valid."""
    for name in ("engine_fault_zero_layer", "engine_fault_duplicate_ids"):
        log, labels = run(name, tmp_path / name, duration_s=14)
        label = only_label(labels)
        place = SMALL_MODEL.layers.index(label["layers"][0])
        rows = counted_rows(log["sim-000"])
        ids = np.stack([row.ids for row in rows])
        duplicate = ids[..., 0] == ids[..., 1]
        inside = np.array([row.time_us >= label["start_us"] for row in rows])
        assert not duplicate[~inside].any()
        assert not np.delete(duplicate, place, axis=1).any()
        share = duplicate[inside, place].mean()
        if name == "engine_fault_zero_layer":
            assert share == 1.0
            assert (ids[inside, place] == 0).all()
        else:
            assert 0.15 < share < 0.55


@pytest.mark.parametrize(
    ("name", "phase", "flag"),
    [
        ("engine_fault_warmup_rows", Phase.WARMUP, RowFlag.NONE),
        ("engine_fault_unmarked_warmup_rows", Phase.PREFILL, RowFlag.NONE),
        ("engine_fault_padding_rows", Phase.PREFILL, RowFlag.PADDING),
    ],
)
def test_added_rows_are_identical_and_marked_as_labelled(
    name: str, phase: Phase, flag: RowFlag, tmp_path: Path
) -> None:
    """Warm-up and padding reach a log as long runs of one row."""
    log, labels = run(name, tmp_path, duration_s=4)
    added = [
        row for row in rows_of(log["sim-000"]) if row.request in set(only_label(labels)["requests"])
    ]
    assert len(added) == 2 * 256
    assert {row.phase for row in added} == {phase}
    assert all(row.flags & RowFlag.PADDING == flag for row in added)
    by_request = paths(added, {row.request for row in added})
    assert all(len(set(path.values())) == 1 for path in by_request.values())


@pytest.mark.parametrize("name", ["dropped_rows", "silent_node"])
def test_lost_rows_are_counted_exactly(name: str, tmp_path: Path) -> None:
    """What the twin has and the incident lacks is what the drop counters say."""
    _, healthy = simulate_small(SCENARIOS[f"{name}_twin"], tmp_path / "twin", nodes=2)
    totals, log = simulate_small(SCENARIOS[name], tmp_path / "incident", nodes=2)
    counted = sum(item.batch.header.drops.ring_rows for item in log["sim-000"])
    missing = len(counted_rows(healthy["sim-000"])) - len(counted_rows(log["sim-000"]))
    assert missing == counted == totals.lost_rows > 0
    assert [item.record.payload for item in log["sim-001"]] == [
        item.record.payload for item in healthy["sim-001"]
    ]
    sequences = [item.batch.header.sequence for item in log["sim-000"]]
    assert sequences == list(range(len(sequences)))


def test_a_slow_node_is_late_and_a_skewed_one_wrong(tmp_path: Path) -> None:
    """Lateness moves append times; a wrong clock moves event times against them."""
    lags = {}
    for name in ("slow_node", "clock_skew", "clock_skew_twin"):
        log, labels = run(name, tmp_path / name, duration_s=20)
        label = only_label(labels)
        lags[name] = [
            round((record.append_time_us - batch.header.watermark_us) / 1e6)
            for second, (batch, record) in enumerate(log["sim-000"])
            if label["start_us"] <= labels["start_us"] + second * 1_000_000 < label["end_us"]
        ]
    assert set(lags["clock_skew_twin"]) == {0}
    assert set(lags["clock_skew"]) == {-90}
    assert set(lags["slow_node"]) == {15}


def test_entropies_are_recorded_on_request(tmp_path: Path) -> None:
    """They are optional, since most engines cannot give them."""
    scenario = replace(SCENARIOS["healthy"], record_entropy=True)
    _, log = simulate_small(scenario, tmp_path, duration_s=4)
    routed = [item.batch.routes for item in log["sim-000"] if item.batch.routes is not None]
    assert routed
    assert all(routes.entropy is not None for routes in routed)


def test_unknown_scenarios_and_impossible_incidents_are_refused() -> None:
    """A typing error must not simulate something else."""
    with pytest.raises(SimulationError, match="no scenario 'helthy'"):
        scenario_named("helthy")
    with pytest.raises(SimulationError, match="cannot last"):
        HotExpert(name="x", begin=0.6, end=0.5)
    with pytest.raises(SimulationError, match="no domain 'poetry'"):
        SharedPrefix(name="x", domain="poetry")
