"""What a probe does with what a program tells it wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("transformers", reason="`make engines` has transformers")

from support.torch_models import EXPERTS, TOP_K, Recording, make_model

from moescope.core.errors import InputError
from moescope.producers import Recorder, attach
from moescope.producers.torch_probe import RequestFacts
from moescope.producers.torch_probe.requests import NO_COUNT, NO_ID, SAME_ID

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines
IDS = torch.tensor([[5, 9, 41], [7, 3, 2]])


@pytest.fixture
def model() -> Any:
    """A tiny OLMoE."""
    return make_model("olmoe")


@pytest.fixture
def recording(model: Any, tmp_path: Path) -> Recording:
    """Its recorder."""
    return Recording(model, tmp_path)


def facts(**told: Any) -> RequestFacts:
    """Of one request."""
    return RequestFacts(**{"id": "a", **told})


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([facts(), facts()], SAME_ID),
        ([facts(), facts(id="")], NO_ID),
        ([facts(), facts(id=None)], NO_ID),
        ([facts(), facts(id=7)], NO_ID),
        ([facts(), facts(id="b", prompt_tokens="3")], NO_COUNT),
        ([facts(), facts(id="b", prompt_tokens=-1)], NO_COUNT),
        ([facts(), facts(id="b", cached_tokens=0.5)], NO_COUNT),
    ],
)
def test_requests_that_cannot_be_told_are_counted_and_fail_no_server(
    model: Any, recording: Recording, requests: list[RequestFacts], reason: str
) -> None:
    """Ids and lengths come from clients: no row vanishes by a wrong one, and nothing raises."""
    with torch.no_grad():
        plain = model(IDS).logits
        with attach(model, recording.recorder) as probe, probe.batch(requests):
            assert torch.equal(model(IDS).logits, plain)
    assert probe.counters.errors == probe.counters.passed_rows == 0
    assert recording.positions() == {}
    assert recording.unseen() == {reason: IDS.numel()}


def test_counts_may_be_numpys(model: Any, recording: Recording) -> None:
    """Lengths are often sums of a mask."""
    requests = [facts(prompt_tokens=np.int64(3)), facts(id="b", prompt_tokens=torch.tensor(3))]
    with attach(model, recording.recorder) as probe, probe.batch(requests), torch.no_grad():
        model(IDS)
    assert recording.positions() == {"a": [0, 1, 2], "b": [0, 1, 2]}


@pytest.mark.parametrize("given", [["a", "b"], facts(), None, [facts(), "b"]])
def test_what_is_no_list_of_requests_is_refused_with_a_way_out(
    model: Any, recording: Recording, given: Any
) -> None:
    """A program that is wrong each time is told at once, where it is wrong."""
    with (
        attach(model, recording.recorder) as probe,
        pytest.raises(InputError, match=r"RequestFacts\(id="),
        probe.batch(given),
    ):
        pass


@pytest.mark.parametrize("given", ["</s>", 2, [2.5], [2**80]])
def test_what_are_no_token_ids_is_refused_with_a_way_out(
    model: Any, recording: Recording, given: Any
) -> None:
    """An end that is text would end nothing."""
    with (
        attach(model, recording.recorder) as probe,
        pytest.raises(InputError, match="list of whole numbers"),
        probe.batch([facts()], end_tokens=given),
    ):
        pass


def test_a_pass_of_no_request_is_said_once(
    model: Any, recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever attaches, and opens no request, records nothing: the log says what to do."""
    with attach(model, recording.recorder) as probe, torch.no_grad():
        model(IDS)
        model(IDS)
    assert probe.counters.unattributed_rows == 2 * IDS.numel()
    assert recording.unseen() == {}
    assert [record.message.count("probe.request(") for record in caplog.records] == [1]


def test_a_recorder_of_another_model_is_told_apart_by_what_differs(
    model: Any, tmp_path: Path
) -> None:
    """Only that is named, with both values."""
    recorder = Recorder(
        model="tiny", revision="r1", layers=range(2), experts=EXPERTS, top_k=TOP_K - 1,
        directory=tmp_path / "rings", node="node", ring_bytes=1 << 20,
        rank_order="selection_score", score_kind="softmax",
    )  # fmt: skip
    with pytest.raises(InputError) as refused:
        attach(model, recorder)
    recorder.close()
    assert f"The model has top_k {TOP_K} (the recorder was told {TOP_K - 1})." in str(refused.value)
