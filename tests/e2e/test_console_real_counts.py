from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from oracles.metrics_plain import count_metrics, divergence, smoothed
from support.command_line import moescope, query

from moescope.core.metrics import METRICS

if TYPE_CHECKING:
    from pathlib import Path

TOP_K = {"olmoe": 8, "olmoe-sft": 8, "olmoe-dpo": 8, "mistral": 2}
"""As the models are published: OLMoE selects 8 of 64 experts, Mixtral 2 of 8."""

NOT_IN_COUNTS = frozenset(
    {
        "router_entropy", "router_margin", "topk_overlap", "top1_switches", "positional_agreement",
        "request_similarity", "rank_imbalance", "pass_imbalance", "pass_imbalance_max",
    }
)  # fmt: skip
"""Metrics of scores, tokens in a row, requests, passes and placements, which sums do not have."""

NEED_A_BASELINE = frozenset({"routing_shift", "mix_shift"})

# The file tells k itself for the two models that have both sections.
OPTIONS = ("-o", "section=all", "-o", "top_k=olmoe-sft=8,olmoe-dpo=8")


def published(root: Path) -> dict[tuple[str, str, int], tuple[int, list[int]]]:
    """(model, domain, layer) → k and counts, read from the file without moescope."""
    document = json.loads((root / "tests/data/olmoe_mixtral_expert_counts.json").read_text())
    found = {}
    for model, sections in document.items():
        for section, domains in sections.items():
            first_choices = section == "expert_counts_top1"
            name, k = (f"{model}-top1", 1) if first_choices else (model, TOP_K[model])
            for domain, layers in domains.items():
                for layer, counts in layers.items():
                    found[name, domain, int(layer)] = (k, counts)
    return found


@pytest.fixture(scope="module")
def real_data(repository_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that holds the published counts, imported by the command."""
    data = tmp_path_factory.mktemp("real") / "data"
    path = repository_root / "tests/data/olmoe_mixtral_expert_counts.json"
    printed = moescope(
        "import", "counts-json", path, *OPTIONS, "--data", data, "--json", folder=data.parent
    )
    report = json.loads(printed.stdout)
    assert report["processed"] is True
    assert report["rejected"] == 0
    assert report["requests"] == len({key[:2] for key in published(repository_root)})
    return data


Key = tuple[str, str, int]

SUMS = (
    "SELECT (SELECT count(*) FROM batches) AS batches,"
    " (SELECT count(*) FROM metric_histograms) AS histograms,"
    " * EXCLUDE (commit_id) FROM windows"
)


def rows_of(data: Path) -> dict[Key, dict[str, Any]]:
    """(model, domain, layer) → its row of `windows`, and how much else is stored."""
    rows = query(data, SUMS)
    found = {(row["model"], row["task"].split("/")[1], row["layer"]): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture(scope="module")
def stored(real_data: Path) -> dict[Key, dict[str, Any]]:
    """What `moescope sql` prints of the import."""
    return rows_of(real_data)


def test_every_count_is_the_published_one(
    stored: dict[Key, dict[str, Any]], repository_root: Path
) -> None:
    """Each expert of each model, domain and layer keeps its count from the file to SQL."""
    assert {key: (row["top_k"], row["counts"]) for key, row in stored.items()} == published(
        repository_root
    )
    for row in stored.values():
        assert row["window_kind"] == "task"
        tokens = sum(row["counts"]) // row["top_k"]
        assert (row["tokens"], row["seen"], row["expected"]) == (tokens, tokens, tokens)
        # No calibrated threshold exists, so nothing may be called healthy.
        assert (row["level"], row["level_reason"]) == ("insufficient", "no calibrated threshold")


def test_every_metric_follows_from_the_published_counts(
    stored: dict[Key, dict[str, Any]], repository_root: Path
) -> None:
    """Metric values in SQL equal plain-Python fractions of the file's counts."""
    checked: set[str] = set()
    for key, (k, counts) in published(repository_root).items():
        expected: dict[str, float | None] = dict(count_metrics(counts, k))
        uniform = smoothed([0] * len(counts))
        expected["js_uniform"], expected["kl_uniform"] = divergence(counts, uniform)
        expected["overlap_chance"] = k * sum((count / sum(counts)) ** 2 for count in counts)
        for name, value in expected.items():
            assert stored[key][name] == pytest.approx(value, rel=1e-9, abs=1e-12), (key, name)
        checked |= expected.keys()
    # Nobody told of drops; there is no time, so there is no trailing reference; floors have
    # tests of their own.
    untold = {"drop_rate", "js_trailing", "kl_trailing", *NOT_IN_COUNTS, *NEED_A_BASELINE}
    floors = {metric.name for metric in METRICS if metric.name.endswith("_floor")}
    assert checked | untold | floors == {metric.name for metric in METRICS}
    for row in stored.values():
        assert {row[name] for name in (*untold, "dropped")} == {None}
        assert 0 < row["js_uniform_floor"] < row["js_uniform"]


def test_a_second_import_changes_nothing(
    real_data: Path, stored: dict[Key, dict[str, Any]], repository_root: Path
) -> None:
    """The same file again adds no row, no batch and no histogram."""
    path = repository_root / "tests/data/olmoe_mixtral_expert_counts.json"
    again = moescope(
        "import", "counts-json", path, *OPTIONS, "--data", real_data, "--json",
        folder=real_data.parent,
    )  # fmt: skip
    assert json.loads(again.stdout)["already_imported"] == [str(path)]
    assert rows_of(real_data) == stored
