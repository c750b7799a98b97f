"""bfloat16 against float32 of the trained small MoE: what agreement sees and counts do not."""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
transformers = pytest.importorskip("transformers", reason="`make engines` has transformers")

from moescope.producers import Recorder, attach
from moescope.producers.agent import Agent
from moescope.producers.torch_probe import router_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "examples/tiny_moe/weights"
MOESCOPE = ROOT / ".venv/bin/moescope"
"""The command of the project's own environment: an engine's has no server packages."""

LENGTH = 512
REQUESTS_PER_SCENE = 20
SECRET = b"canaries of the tests"

pytestmark = pytest.mark.skipif(not MOESCOPE.exists(), reason="`make setup-dev` installs moescope")


class Verified(Protocol):
    """The fixture `verified`."""

    def __call__(self, *, subject: str, what: str) -> None:
        """Note what the test verifies."""


@pytest.fixture(scope="module")
def texts() -> dict[str, NDArray[np.int64]]:
    """Token ids of requests: code, prose, and JSON."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    sources = {
        "code": inspect.getsource(argparse),
        "prose": " ".join(filter(None, map(inspect.getdoc, vars(np).values()))),
        "json": json.dumps(
            [{"id": n, "name": f"item {n * n}", "ok": n % 3 == 0} for n in range(999)]
        ),
    }
    streams = {
        scene: np.array(tokenizer(text[:100_000]).input_ids) for scene, text in sources.items()
    }
    return {
        f"{scene}-{number}": stream[number * 1_013 :][:LENGTH].astype(np.int64)
        for scene, stream in streams.items()
        for number in range(REQUESTS_PER_SCENE)
    }


def recorded(folder: Path, texts: dict[str, NDArray[np.int64]], dtype: Any, revision: str) -> None:
    """Run the prompts through the model in one precision; a data directory."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype).eval()
    shape = router_shape(model)
    recorder = Recorder(
        model="tiny-moe",
        revision=revision,
        layers=shape.layers,
        experts=shape.experts,
        top_k=shape.top_k,
        rank_order="selection_score",
        score_kind="softmax",
        directory=folder / "ring",
        node=revision,
    )
    with torch.inference_mode(), attach(model, recorder, content_key=SECRET) as probe:
        for name, tokens in texts.items():
            with probe.request(name):
                model(torch.from_numpy(tokens)[None])
    with Agent(folder / "ring", folder / "log") as agent:
        agent.drain()
    recorder.close()


def compared(*arguments: str | Path) -> dict[str, Any]:
    """What `moescope report compare --json` prints."""
    printed = subprocess.run(
        [MOESCOPE, "report", "compare", *arguments, "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    report: dict[str, Any] = json.loads(printed.stdout)
    return report


@pytest.fixture(scope="module")
def logs(
    tmp_path_factory: pytest.TempPathFactory, texts: dict[str, NDArray[np.int64]]
) -> dict[str, Path]:
    """Data directories of both precisions."""
    folder = tmp_path_factory.mktemp("precisions")
    for dtype, revision in ((torch.float32, "fp32"), (torch.bfloat16, "bf16")):
        recorded(folder / revision, texts, dtype, revision)
    return {revision: folder / revision for revision in ("fp32", "bf16")}


def test_agreement_sees_a_precision_that_counts_do_not(
    logs: dict[str, Path], texts: dict[str, NDArray[np.int64]], verified: Verified
) -> None:
    """A gate on numerics has to use agreement: the counts of the same tokens are all but equal."""
    report = compared(logs["fp32"], logs["bf16"])
    # Some texts begin alike: such rows have one key, and the first sighting counts.
    assert report["tokens"] + report["a"]["duplicates"] == len(texts) * LENGTH
    assert report["a"]["duplicates"] == report["b"]["duplicates"] < LENGTH
    whole = report["overall"]
    assert whole["largest_js_divergence"] < 2e-5
    assert all(layer["js_divergence"] < layer["noise_floor"] for layer in report["layers"])
    assert all(0.992 < layer["overlap"]["value"] < 0.998 for layer in report["layers"])
    assert 0.87 < whole["all_layers"]["low"] < whole["all_layers"]["high"] < 0.91
    assert whole["all_layers"]["value"] < min(
        layer["same_set"]["value"] for layer in report["layers"]
    )
    closest, *_, widest = report["by_margin"]
    assert closest["same_set"]["value"] < widest["same_set"]["value"]
    verified(subject="olmoe", what="bfloat16 against float32, by content key")


def test_one_precision_agrees_with_itself(
    tmp_path: Path, logs: dict[str, Path], texts: dict[str, NDArray[np.int64]]
) -> None:
    """The same model run again has the same routes: neither recording nor joining differs."""
    few = dict(list(texts.items())[:: len(texts) // 3])
    recorded(tmp_path, few, torch.float32, "again")
    report = compared(logs["fp32"], tmp_path)
    assert report["tokens"] + report["b"]["duplicates"] == len(few) * LENGTH
    assert report["overall"]["all_layers"]["value"] == 1.0
    assert report["overall"]["top1"]["value"] == 1.0
    assert report["overall"]["largest_js_divergence"] == 0.0
