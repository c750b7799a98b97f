from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RENDER = """
import sys
from pathlib import Path
from benchmarks.report import load_results, page
print(page(load_results(Path(sys.argv[1]))))
"""


def result(**changes: object) -> dict[str, object]:
    """One benchmark's result as its JSON file holds it."""
    figure = {
        "what": "counting", "unit": "M/s", "values": [90.0, 120.0, 95.0], "better": "higher",
        "target": 100.0, "note": "so it is",
        "baselines": [{"name": "other", "values": [30.0, 40.0, 19.0], "target": 4.0}],
    }  # fmt: skip
    machine = {
        "time": "2026-01-01 00:00 UTC", "commit": "abc123", "cpu": "a processor", "cores": 2,
        "memory_gib": 8.0, "system": "Linux 1", "python": "3.11", "packages": {"numpy": "2.4"},
        "load_before": [1.5, 1.0, 1.0], "load_after": [0.5, 1.0, 1.0], "unset": ["OPENBLAS_X"],
    }  # fmt: skip
    stage = {"name": "counting itself", "calls": 1234, "cpu_s": 0.25, "wall_s": 0.5}
    base: dict[str, object] = {
        "topic": "a", "title": "First", "text": "How it was measured.", "order": 1,
        "figures": [figure], "machine": machine, "quick": False,
        "profiles": [{"title": "Where", "note": "", "stages": [stage]}],
    }  # fmt: skip
    return base | changes


def rendered(folder: Path, root: Path, *results: dict[str, object]) -> str:
    """The page that these results give."""
    for each in results:
        (folder / f"{each['topic']}.json").write_text(json.dumps(each))
    return subprocess.run(
        [sys.executable, "-c", RENDER, str(folder)],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def test_page_shows_figures_baselines_and_what_is_missed(
    tmp_path: Path, repository_root: Path
) -> None:
    """Medians decide, ratios are of neighbouring repetitions, and misses are listed."""
    text = rendered(tmp_path, repository_root, result())
    assert "| counting (M/s) | ≥ 100 | 95.0 | 120 |  | best run only |" in text
    assert "| ↳ other | ≥ 4.00 × | 30.0 | 40.0 | 3.00 × | best run only |" in text
    assert "- First: counting (M/s): 95.0, target ≥ 100" in text
    assert "- First: counting (M/s), against other: 3.00 ×, target ≥ 4.00 ×" in text
    assert "| counting itself | 1,234 | 0.250 s | 100% | 0.500 s |" in text
    assert "1.5 → 0.5 (busy)" in text
    assert "commit: abc123" in text
    assert "`OPENBLAS_X`" in text
    assert "- counting: so it is" in text


def test_quick_results_are_marked(tmp_path: Path, repository_root: Path) -> None:
    """Nobody takes a trial run's numbers for figures; sections keep their order."""
    second = result(topic="0", title="Second", order=2, quick=True)
    text = rendered(tmp_path, repository_root, result(), second)
    assert "these are no figures" in text
    assert text.index("## First") < text.index("## Second")


def test_section_that_was_left_out_says_so_without_a_table(
    tmp_path: Path, repository_root: Path
) -> None:
    """A benchmark that the machine could not run is named, and shows no empty table."""
    left_out = result(text="Left out: no broker.", figures=[], profiles=[])
    text = rendered(tmp_path, repository_root, left_out)
    section = text[text.index("## First") :]
    assert "Left out: no broker." in section
    assert "|" not in section
