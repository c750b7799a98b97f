"""Counts by domain arrive exactly, one task per model and domain."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.decoded_logs import log_of

from moescope.core.vocabulary import Fidelity, Phase, RowFlag
from moescope.producers.importers import ImportFormatError, import_files

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = {"top_k": "olmoe-sft=8,olmoe-dpo=8"}
Counts = dict[tuple[str, str], dict[int, list[int]]]


def found_counts(root: Path) -> Counts:
    """Counts of all batches by model and domain."""
    found: Counts = {}
    for batches in log_of(root).values():
        for batch, _ in batches:
            blocks = batch.token_blocks
            assert blocks is not None
            assert len(blocks) == 1
            found[batch.header.model, batch.requests.scenes[0]] = {
                int(layer): counts.tolist()
                for layer, counts in zip(batch.header.layers, blocks.counts[0], strict=True)
            }
    return found


def test_real_counts_arrive_exactly(repository_root: Path, tmp_path: Path) -> None:
    """Every number of the real file is in the log, for every model, domain and layer."""
    path = repository_root / "tests" / "data" / "olmoe_mixtral_expert_counts.json"
    report = import_files("counts-json", [path], tmp_path, {**GIVEN, "section": "all"})
    document = json.loads(path.read_text(encoding="utf-8"))
    expected = {
        (model + ("-top1" if section.endswith("top1") else ""), domain): {
            int(layer): counts for layer, counts in by_layer.items()
        }
        for model, sections in document.items()
        for section, domains in sections.items()
        for domain, by_layer in domains.items()
    }
    assert found_counts(tmp_path) == expected
    assert report.rejected == 0
    assert report.summary()["requests"] == len(expected)


def test_each_group_is_one_task_with_all_of_its_tokens(
    repository_root: Path, tmp_path: Path
) -> None:
    """One task window per model and domain: no positions are made up, no token window forms."""
    path = repository_root / "tests" / "data" / "olmoe_mixtral_expert_counts.json"
    import_files("counts-json", [path], tmp_path, GIVEN)
    top_k = {}
    for batches in log_of(tmp_path).values():
        for batch, _ in batches:
            blocks, header = batch.token_blocks, batch.header
            assert blocks is not None
            assert header.fidelity is Fidelity.COUNTS
            assert batch.requests.tasks == (f"{header.model}/{batch.requests.scenes[0]}",)
            assert blocks.flags[0] == RowFlag.LAST_OF_REQUEST | RowFlag.LAST_OF_TASK
            assert blocks.first_time_us is None
            assert blocks.phase[0] == Phase.EVAL
            assert batch.requests.phase_starts[0, Phase.EVAL] == -1
            assert int(blocks.tokens[0]) * header.top_k == int(blocks.counts[0, 0].sum())
            top_k[header.model] = header.top_k
            expected = 205_243 if batch.requests.scenes[0] == "tulu" else 208_896
            assert int(blocks.tokens[0]) == expected
    assert top_k == {"mistral": 2, "olmoe": 8, "olmoe-sft": 8, "olmoe-dpo": 8}


def test_a_model_without_known_top_k_is_rejected_by_name(
    repository_root: Path, tmp_path: Path
) -> None:
    """The number of tokens depends on k: it is asked for, not guessed."""
    path = repository_root / "tests" / "data" / "olmoe_mixtral_expert_counts.json"
    report = import_files("counts-json", [path], tmp_path)
    assert report.files[0].rejected == {"unknown top-k": 2}
    details = {reject.detail.split(":")[0] for reject in report.files[0].first_rejects}
    assert details == {"olmoe-dpo", "olmoe-sft"}
    assert {model for model, _ in found_counts(tmp_path)} == {"mistral", "olmoe"}


def test_a_general_top_k_does_not_overrule_the_file(repository_root: Path, tmp_path: Path) -> None:
    """`top_k=8` is for models whose k the file does not tell; Mixtral's stays 2."""
    path = repository_root / "tests" / "data" / "olmoe_mixtral_expert_counts.json"
    import_files("counts-json", [path], tmp_path, {"top_k": "8"})
    found = {
        batch.header.model: batch.header.top_k
        for batches in log_of(tmp_path).values()
        for batch, _ in batches
    }
    assert found == {"mistral": 2, "olmoe": 8, "olmoe-sft": 8, "olmoe-dpo": 8}


@pytest.mark.parametrize(
    ("by_layer", "reason"),
    [
        ({"0": [3, 2]}, "counts that are no whole number of tokens"),
        ({"0": [0, 0]}, "counts that are no whole number of tokens"),
        ({"0": [4, 0]}, "an expert selected more often than there are tokens"),
        ({"0": [2, 2], "1": [2, 4]}, "layers with different totals"),
        ({"0": [2, 2], "1": [2, 2, 0]}, "layers with different numbers of experts"),
        ({"0": [2, 2], "00": [2, 2]}, "the same layer twice"),
        ({"x": [2, 2]}, "a layer that is no index"),
        ({"0": [2.0, 2]}, "a count that is no whole number"),
        ({"0": [True, 1]}, "a count that is no whole number"),
        ({"0": [2**32, 2]}, "a count that is no whole number"),
        ({"0": []}, "a layer without a list of counts"),
        ({"0": None}, "a layer without a list of counts"),
        ({}, "a domain without layers"),
        (7, "a domain without layers"),
    ],
)
def test_impossible_groups_are_rejected_alone(
    by_layer: Any,
    reason: str,
    tmp_path: Path,
) -> None:
    """One bad group does not cost the others."""
    path = tmp_path / "counts.json"
    sections = {"expert_counts": {"bad": by_layer, "good": {"4": [2, 2, 2]}}}
    path.write_text(json.dumps({"m": sections}), encoding="utf-8")
    report = import_files("counts-json", [path], tmp_path / "log", {"top_k": "2"})
    assert report.files[0].rejected == {reason: 1}
    assert "m/expert_counts/bad" in report.files[0].first_rejects[0].detail
    assert found_counts(tmp_path / "log") == {("m", "good"): {4: [2, 2, 2]}}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}", '{"m": 3}', '{"m": {"expert_counts": []}}', "[" * 100_000]
)
def test_what_is_no_file_of_counts_is_an_error(text: str, tmp_path: Path) -> None:
    """The message names the file, and what the format looks like."""
    path = tmp_path / "counts.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ImportFormatError, match=r"counts\.json"):
        import_files("counts-json", [path], tmp_path / "log", {"top_k": "2"})
    assert log_of(tmp_path / "log") == {}
