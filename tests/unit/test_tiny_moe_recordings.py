from __future__ import annotations

import json
from collections import defaultdict
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from support.decoded_logs import logged_batches

from moescope.core.batchlog import partition_names
from moescope.core.vocabulary import Phase, RankOrder, RowFlag, ScoreKind

if TYPE_CHECKING:
    from pathlib import Path

ROOT = "examples/tiny_moe/recordings"
LARGEST_BYTES = 30_000_000
FEWEST_OCCASIONS = 20
INCIDENTS = {
    "fixed_system_prompt_aligned", "fixed_system_prompt_unaligned", "fixed_system_prompt_cached",
    "common_prefix_concurrency", "common_prefix_concurrency_cached", "single_domain",
    "long_greedy", "few_shot_with", "json_pulse", "training_sorted",
}  # fmt: skip
HEALTHY = {
    "healthy_prefill", "healthy_prefill_held_out", "healthy_aligned", "healthy_decode",
    "healthy_decode_held_out", "long_sampled", "few_shot_without", "json_ordinary",
    "training_shuffled",
}  # fmt: skip


class Rows(NamedTuple):
    """Countable rows of one recording, in batch order.

    Attributes:
        requests: Request ids, scenes and cached tokens by request id.
        request: Index into `requests`, per row.
    """

    requests: dict[str, tuple[str, int]]
    request: np.ndarray
    position: np.ndarray
    time_us: np.ndarray
    phases: set[int]
    has_scores: bool


@pytest.fixture(scope="module")
def root(repository_root: Path) -> Path:
    """The log root of the recordings."""
    return repository_root / ROOT


@pytest.fixture(scope="module")
def manifest(root: Path) -> dict[str, Any]:
    """What the manifest says."""
    read: dict[str, Any] = json.loads((root / "manifest.json").read_text())
    return read


@pytest.fixture(scope="module")
def recorded(root: Path, manifest: dict[str, Any]) -> dict[str, Rows]:
    """Every frame of every recording, decoded."""
    return {name: read_rows(root, name, manifest) for name in manifest["recordings"]}


def read_rows(root: Path, name: str, manifest: dict[str, Any]) -> Rows:
    """Decode a recording, checking what holds for each batch."""
    requests: dict[str, tuple[str, int]] = {}
    numbers: dict[str, int] = {}
    parts = defaultdict(list)
    phases: set[int] = set()
    has_scores = True
    for sequence, (batch, _) in enumerate(logged_batches(root, name)):
        header = batch.header
        assert (header.node, header.sequence) == (name, sequence)
        assert (header.model, header.revision) == (manifest["model"], manifest["revision"])
        assert header.rank_order is RankOrder.SELECTION_SCORE
        assert header.score_kind is ScoreKind.SOFTMAX
        if batch.tokens is None or batch.routes is None:
            continue
        tokens, routes = batch.tokens, batch.routes
        assert routes.shape[1:] == (manifest["layers"], manifest["top_k"])
        assert routes.largest_rank < manifest["experts"]
        assert (routes.gaps[1:] > 0).all()
        assert tokens.token_id is None
        assert tokens.event_time_us is not None
        counted = (tokens.flags & RowFlag.CONTEXT) == 0
        assert not (tokens.flags & (RowFlag.PADDING | RowFlag.RECOMPUTED)).any()
        for request, scene, cached in zip(
            batch.requests.ids, batch.requests.scenes, batch.requests.cached_tokens, strict=True
        ):
            requests[request] = (scene, int(cached))
            numbers.setdefault(request, len(numbers))
        table = np.array([numbers[request] for request in batch.requests.ids])
        parts["request"].append(table[tokens.request[counted]])
        parts["position"].append(tokens.position[counted])
        parts["time"].append(tokens.event_time_us[counted])
        phases |= set(np.unique(tokens.phase[counted]).tolist())
        has_scores &= routes.entropy is not None and routes.margin is not None
    columns = {key: np.concatenate(value) for key, value in parts.items()}
    return Rows(
        requests, columns["request"], columns["position"], columns["time"], phases, has_scores
    )


def test_every_promised_recording_is_there(root: Path, manifest: dict[str, Any]) -> None:
    """Incidents, their healthy twins, and nothing that the manifest does not describe."""
    recordings = manifest["recordings"]
    assert set(recordings) == INCIDENTS | HEALTHY == set(partition_names(root))
    for name, entry in recordings.items():
        assert (entry["shows"] == "healthy") == (name in HEALTHY), name
        assert (entry["healthy_twin"] in HEALTHY) == (name in INCIDENTS), name


def test_files_are_those_of_the_manifest(root: Path, manifest: dict[str, Any]) -> None:
    """A recording that was changed after it was described proves nothing."""
    total = 0
    for name, entry in manifest["recordings"].items():
        files = {path.name: path.read_bytes() for path in (root / name).iterdir()}
        found = {file: sha256(data).hexdigest() for file, data in files.items()}
        found.pop("writer.lock", None)  # whoever opens a partition for writing makes one
        assert found == entry["sha256"], name
        total += sum(map(len, files.values()))
    assert total <= LARGEST_BYTES


def test_counts_are_those_of_the_manifest(
    recorded: dict[str, Rows], manifest: dict[str, Any]
) -> None:
    """Tokens, requests, phases and times are what the rows themselves say."""
    for name, rows in recorded.items():
        entry = manifest["recordings"][name]
        assert len(rows.position) == entry["tokens"], name
        assert len(rows.requests) == entry["requests"], name
        assert {Phase(phase).name.lower() for phase in rows.phases} == set(entry["phases"]), name
        assert (int(rows.time_us.min()), int(rows.time_us.max())) == (
            entry["first_event_us"],
            entry["last_event_us"],
        ), name
        assert entry["first_event_us"] - manifest["start_us"] < manifest["tick_us"], name
        assert {scene for scene, _ in rows.requests.values()} <= {"code", "prose", "json"}, name


def test_requests_are_whole_and_in_one_block(
    recorded: dict[str, Rows], manifest: dict[str, Any]
) -> None:
    """Blocks share no request, and a request has every position from its cached tokens on."""
    for name, rows in recorded.items():
        block = (rows.time_us - manifest["start_us"]) // manifest["block_us"]
        assert len(np.unique(block)) == manifest["recordings"][name]["blocks"], name
        order = np.lexsort((rows.position, rows.request))
        request, position, block = rows.request[order], rows.position[order], block[order]
        first = np.flatnonzero(np.append(True, request[1:] != request[:-1]))
        same = request[1:] == request[:-1]
        assert (np.diff(position)[same] == 1).all(), name
        assert (np.diff(block)[same] == 0).all(), name
        cached = [cached for _, cached in rows.requests.values()]
        assert position[first].tolist() == [cached[number] for number in request[first]], name


@pytest.mark.parametrize(
    "name", ["healthy_prefill", "healthy_aligned", "fixed_system_prompt_unaligned",
             "fixed_system_prompt_cached", "common_prefix_concurrency",
             "common_prefix_concurrency_cached", "single_domain"]
)  # fmt: skip
def test_prefill_windows_hold_16_chunks_of_64(
    recorded: dict[str, Rows], manifest: dict[str, Any], name: str
) -> None:
    """Incidents and healthy traffic differ in what is computed, never in how much."""
    rows = recorded[name]
    tick = (rows.time_us - manifest["start_us"]) // manifest["tick_us"]
    tokens = np.bincount(tick)
    assert set(tokens[tokens > 0].tolist()) == {16 * 64}
    pairs = np.unique(tick * len(rows.requests) + rows.request)
    assert set(np.bincount(pairs // len(rows.requests))[tokens > 0].tolist()) == {16}


def test_incidents_have_enough_occasions(manifest: dict[str, Any]) -> None:
    """One prefix or prompt would prove something about that text only."""
    for name in INCIDENTS - {"single_domain", "training_sorted"}:
        prefixes = manifest["recordings"][name]["prefixes"]
        assert len(set(prefixes)) == len(prefixes) >= FEWEST_OCCASIONS, name
    assert manifest["recordings"]["single_domain"]["blocks"] >= FEWEST_OCCASIONS


def test_prefixes_are_computed_once_with_a_cache(recorded: dict[str, Rows]) -> None:
    """With prefix caching on, most requests of an incident begin behind the prefix."""
    for name in ("fixed_system_prompt_cached", "common_prefix_concurrency_cached"):
        cached = [cached for _, cached in recorded[name].requests.values() if cached]
        assert len(cached) == 20 * 15, name
    for name in ("fixed_system_prompt_aligned", "common_prefix_concurrency"):
        assert not any(cached for _, cached in recorded[name].requests.values()), name


def test_pairs_join_by_request(recorded: dict[str, Rows]) -> None:
    """A question with examples and the same one without have one id and one scene."""
    assert {key: scene for key, (scene, _) in recorded["few_shot_with"].requests.items()} == {
        key: scene for key, (scene, _) in recorded["few_shot_without"].requests.items()
    }
    greedy, sampled = (
        {key.partition(".")[2]: facts for key, facts in recorded[name].requests.items()}
        for name in ("long_greedy", "long_sampled")
    )
    assert greedy == sampled


def test_request_ids_are_unique_among_recordings(recorded: dict[str, Rows]) -> None:
    """Recordings can go into one store: only the paired questions share their ids."""
    names = [name for name in recorded if name != "few_shot_without"]
    ids = [request for name in names for request in recorded[name].requests]
    assert len(set(ids)) == len(ids)


def test_generation_has_entropy_and_margin(recorded: dict[str, Rows]) -> None:
    """What late convergence is told by is recorded where it is looked for."""
    for name in ("healthy_decode", "healthy_decode_held_out", "long_greedy", "long_sampled"):
        assert recorded[name].has_scores, name
