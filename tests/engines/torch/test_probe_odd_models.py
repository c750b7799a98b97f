from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import Recording, make_model

from moescope.core.batchlog import BatchLogReader
from moescope.core.errors import InputError
from moescope.core.wire import decode_batch
from moescope.producers import attach
from moescope.producers.torch_probe import RouterAdapter, probe_of, register_family
from moescope.producers.torch_probe.unrecorded import ERRORS_ALLOWED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Module: Any = torch.nn.Module
HIDDEN = 8
EXPERTS = 6
TOP_K = 2
IDS = torch.tensor([[3, 1, 4]])


class PlainRouter(Module):  # type: ignore[misc] # torch is untyped here
    """Top-k of given logits: there is nothing to learn in it."""

    num_experts, top_k = EXPERTS, TOP_K

    def forward(self, logits: Any) -> Any:
        """(logits, weights, ids)."""
        weights, ids = logits.softmax(-1).topk(TOP_K, dim=-1)
        return logits, weights, ids


class SecretiveRouter(PlainRouter):
    """Says nothing that a probe can read."""

    def forward(self, logits: Any) -> Any:
        """A dictionary under the name of a declared tuple."""
        logits, weights, ids = super().forward(logits)
        return {"logits": logits, "weights": weights, "ids": ids}


class Layer(Module):  # type: ignore[misc] # torch is untyped here
    """Logits, then a router."""

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.ways = torch.nn.Linear(HIDDEN, EXPERTS)
        self.router = router

    def forward(self, rows: Any) -> Any:
        """Its output depends on the choice."""
        said = self.router(self.ways(rows.reshape(-1, HIDDEN)))
        weights = said["weights"] if isinstance(said, dict) else said[1]
        return rows + weights.sum(-1).view(*rows.shape[:2], 1)


class OddModel(Module):  # type: ignore[misc] # torch is untyped here
    """Takes arguments of any kind, as custom models do."""

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, HIDDEN)
        self.layers = torch.nn.ModuleList([Layer(router), Layer(router.__class__())])
        self.config = SimpleNamespace(
            num_experts=EXPERTS, num_experts_per_tok=TOP_K, model_type="odd"
        )

    def forward(
        self,
        input_ids: Any,
        cache: Any = None,
        position_ids: Any = None,
        attention_mask: Any = None,
    ) -> Any:
        """Nothing but the ids is used."""
        del cache, position_ids, attention_mask
        rows = self.embed(input_ids)
        for layer in self.layers:
            rows = layer(rows)
        return rows


@pytest.fixture(scope="module", autouse=True)
def _declared() -> None:
    register_family(RouterAdapter("odd", sites=("PlainRouter", "SecretiveRouter")))


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "strange",
    [
        {"cache": {}},
        {"cache": [1, 2]},
        {"position_ids": [[0, 1, 2]]},
        {"position_ids": "all"},
        {"attention_mask": [[1, 1, 1]]},
        {"attention_mask": "causal"},
    ],
    ids=["cache dict", "cache list", "positions list", "positions text", "mask list", "mask text"],
)
def test_arguments_of_any_kind_reach_the_model(
    tmp_path: Path,
    strange: dict[str, Any],
    is_compiled: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """What the probe cannot read is refused and told, with its rows; the model never notices."""
    model = OddModel(PlainRouter()).eval()
    plain = model(IDS)
    recording = Recording(model, tmp_path)
    with attach(model, recording.recorder) as probe, torch.no_grad():
        called = torch.compile(model, backend="eager") if is_compiled else model
        with probe.request("one"):
            watched = called(IDS, **strange)
        assert (probe.counters.refused_passes, probe.counters.errors) == (1, 0)
    assert torch.equal(plain, watched)
    assert recording.recorder.counters().unseen_rows == IDS.numel()


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_routers_that_cannot_be_read_lower_the_coverage(
    tmp_path: Path,
    is_compiled: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """An output unlike the declared one is no routing; it is told once per pass."""
    model = OddModel(SecretiveRouter()).eval()
    plain = model(IDS)
    recording = Recording(model, tmp_path)
    with attach(model, recording.recorder) as probe, torch.no_grad():
        called = torch.compile(model, backend="eager") if is_compiled else model
        with probe.request("one"):
            watched = called(IDS)
        assert probe.counters.passed_rows == 0
    assert torch.equal(plain, watched)
    assert recording.recorder.counters().unseen_rows == IDS.numel()


def test_a_router_without_parameters_is_watched(tmp_path: Path) -> None:
    """Nothing is needed of a router but its output."""
    model = OddModel(PlainRouter()).eval()
    recording = Recording(model, tmp_path)
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        model(IDS)
        assert probe.counters.passed_rows == IDS.numel()


def test_rows_after_the_probe_gave_up_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither failing nor being switched off makes the coverage look full."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)

    def fail(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("no such luck")

    passes = ERRORS_ALLOWED + 3
    with attach(model, recording.recorder) as probe, torch.no_grad():
        monkeypatch.setattr(recording.recorder, "begin_request", fail)
        for number in range(passes):
            with probe.request(f"{number}"):
                model(IDS)
        assert probe.counters.errors == ERRORS_ALLOWED
    assert recording.recorder.counters().unseen_rows == passes * IDS.numel()


def test_a_paused_recorder_gives_the_reason_that_every_probe_gives(tmp_path: Path) -> None:
    """One switch has one text, in a model of transformers as in a vLLM server."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    (tmp_path / "rings" / "disable").touch()
    with attach(model, recording.recorder) as probe, torch.no_grad(), probe.request("one"):
        model(IDS)
    assert recording.rows() == []
    with BatchLogReader(tmp_path / "log", "node") as reader:
        headers = [decode_batch(record.payload).header for record in reader.read(0).records]
    told = {each.labels["unseen_reason"]: each.drops.unseen_rows for each in headers}
    assert told == {"the file 'disable' is there": IDS.numel()}


def test_a_lost_probe_is_found_again(tmp_path: Path) -> None:
    """Who let go of the probe gets it back from the model, as the refusal says."""
    model = make_model("olmoe")
    recording = Recording(model, tmp_path)
    assert probe_of(model) is None
    attach(model, recording.recorder)
    gc.collect()
    with pytest.raises(InputError, match="probe_of"):
        attach(model, recording.recorder)
    lost = probe_of(model)
    assert lost is not None
    lost.detach()
    assert probe_of(model) is None
    attach(model, recording.recorder).detach()
