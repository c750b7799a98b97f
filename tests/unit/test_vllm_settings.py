from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moescope.core.errors import SettingsError
from moescope.core.vocabulary import Fidelity, TokenIdKind
from moescope.producers.vllm_plugin.settings import VARIABLES, PluginSettings, plugin_settings


def test_a_folder_is_enough() -> None:
    """Everything else has a default, and other variables are none of the plugin's business."""
    found = plugin_settings({"MOESCOPE_DIR": "/dev/shm/m", "MOESCOPE_DATA_DIRECTORY": "x"})  # noqa: S108 - a mere name
    assert found == PluginSettings(directory="/dev/shm/m")  # noqa: S108 - a mere name


def test_each_variable_sets_its_field() -> None:
    """The table is what operators read: each line of it has to work."""
    values = {
        "MOESCOPE_DIR": "ring", "MOESCOPE_NODE": "n1", "MOESCOPE_MODEL": "m",
        "MOESCOPE_REVISION": "r2", "MOESCOPE_FIDELITY": "sampled",
        "MOESCOPE_SAMPLING_RATIO": "0.25", "MOESCOPE_WEIGHTS": "yes", "MOESCOPE_SCENE": "chat",
        "MOESCOPE_TOKEN_IDS": "keyed_hash", "MOESCOPE_TOKEN_KEY_FILE": "key",
        "MOESCOPE_CONTENT_KEY_FILE": "secret", "MOESCOPE_CPU_BUDGET": "0.01",
        "MOESCOPE_RING_MIB": "3", "MOESCOPE_HELD_PASSES": "1",
    }  # fmt: skip
    assert plugin_settings(values) == PluginSettings(
        directory="ring", node="n1", model="m", revision="r2", fidelity=Fidelity.SAMPLED,
        sampling_ratio=0.25, weights=True, scene="chat", token_ids=TokenIdKind.KEYED_HASH,
        token_key_file="key", content_key_file="secret", cpu_budget=0.01, ring_bytes=3 * 2**20,
        held_passes=1,
    )  # fmt: skip
    assert values.keys() == {variable.name for variable in VARIABLES}


@pytest.mark.parametrize(
    "wrong",
    [
        {"MOESCOPE_DIR": " "},
        {"MOESCOPE_FIDELITY": "most"},
        {"MOESCOPE_FIDELITY": "sampled"},
        {"MOESCOPE_SAMPLING_RATIO": "0.5"},
        {"MOESCOPE_SAMPLING_RATIO": "nan"},
        {"MOESCOPE_SAMPLING_RATIO": "0"},
        {"MOESCOPE_WEIGHTS": "maybe"},
        {"MOESCOPE_TOKEN_IDS": "keyed_hash"},
        {"MOESCOPE_RING_MIB": "0"},
        {"MOESCOPE_RING_MIB": "1.5"},
        {"MOESCOPE_RING_MIB": "1_0"},
        {"MOESCOPE_RING_MIB": "65537"},
        {"MOESCOPE_RING_MIB": "9" * 5_000},
        {"MOESCOPE_HELD_PASSES": "0"},
        {"MOESCOPE_HELD_PASSES": "65"},
        {"MOESCOPE_SCENE": "x" * 5_000},
        {"MOESCOPE_SCENE": "\udcff"},
        {"MOESCOPE_NODE": "\udcff"},
        {"MOESCOPE_MODEL": "\udcff"},
        {"MOESCOPE_REVISION": "x" * 513},
    ],
)
def test_wrong_values_are_refused_by_name(wrong: dict[str, str]) -> None:
    """An operator's slip is told at the start, with the variable's name and what to do."""
    with pytest.raises(SettingsError) as caught:
        plugin_settings({"MOESCOPE_DIR": "ring"} | wrong)
    assert "MOESCOPE_" in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "sys." not in str(caught.value.why)
    assert caught.value.next_step


def test_without_its_folder_the_plugin_imports_nothing() -> None:
    """It is called in each process of vLLM: one that does not record must not notice."""
    script = (
        "import sys; from moescope.producers.vllm_plugin import register; register();"
        "heavy = {'torch', 'vllm', 'kafka', 'moescope.producers.vllm_plugin.workers'};"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    assert (
        subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == 0
    )


def test_without_vllm_the_plugin_complains_and_goes_on() -> None:
    """Whatever is wrong with an engine, loading the plugin does not end it."""
    script = "from moescope.producers.vllm_plugin import register; register(); print('went on')"
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "MOESCOPE_DIR": "x"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout == "went on\n"
    assert "The engine is not watched" in done.stderr


def test_the_guide_names_every_variable() -> None:
    """Operators read the guide's table: none is left out, and none is made up."""
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "watch-vllm.md").read_text("utf-8")
    rows = {line.split("`")[1] for line in guide.splitlines() if line.startswith("| `MOESCOPE_")}
    assert rows == {variable.name for variable in VARIABLES}
