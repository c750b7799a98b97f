"""The probe around vLLM's own routers and step structures, on the CPU, without a server.

The runner of the second generation needs Triton and a GPU: here its rows are laid out in its own
data structures, and nothing of it runs.
"""

from __future__ import annotations

import logging
import warnings
from hashlib import blake2b
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.plugin_rows import Recorded, recorded
from support.rings import logged, rows_of

torch = pytest.importorskip("torch", reason="`make engines` has torch")
pytest.importorskip("vllm", reason="`make engines` has vLLM")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM imports what torch has deprecated
    from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
    from vllm.model_executor.layers.fused_moe.router.zero_expert_router import ZeroExpertRouter
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
    from vllm.v1.worker.gpu.model_runner import ExecuteModelState, sort_batch_req_ids

from moescope.core.clock import ManualClock
from moescope.core.vocabulary import Phase, RankOrder, ScoreKind
from moescope.producers import Recorder
from moescope.producers.vllm_plugin.capture import RoutingCapture, wrap_router
from moescope.producers.vllm_plugin.content import EngineContent
from moescope.producers.vllm_plugin.experts import ExpertMap
from moescope.producers.vllm_plugin.host import host_copies
from moescope.producers.vllm_plugin.probe import ERRORS_ALLOWED, EngineProbe
from moescope.producers.vllm_plugin.requests import EngineRequests
from moescope.producers.vllm_plugin.routers import model_routing
from moescope.producers.vllm_plugin.runners import LayoutV1, LayoutV2, layout_of
from moescope.producers.vllm_plugin.workers import hook_runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from moescope.core.clock import Clock

LAYERS, EXPERTS, TOP_K = 2, 8, 3
SUBJECT = "vLLM plugin"
SECRET = b"0123456789abcdef"
CPU = torch.device("cpu")


class Layer(torch.nn.Module):  # type: ignore[name-defined,misc]  # torch has no types here
    """What the probe knows a MoE layer by, with a router of vLLM's."""

    def __init__(self, layer: int, **config: Any) -> None:
        super().__init__()
        self.layer_name, self.layer_id = f"model.layers.{layer}.mlp.experts", layer
        self.router = CPURouter(TOP_K, EXPERTS, renormalize=False)
        self._quant_method = SimpleNamespace(is_monolithic=config.pop("is_monolithic", False))
        self.moe_config = SimpleNamespace(
            **{
                "num_experts": EXPERTS + 2, "num_logical_experts": EXPERTS,
                "experts_per_token": TOP_K, "is_sequence_parallel": False, "pcp_size": 1,
            }
            | config
        )  # fmt: skip


def scheduled(
    counts: dict[str, int],
    new: dict[str, tuple[int, int]] | None = None,
    computed: dict[str, int] | None = None,
    drafts: dict[str, int] | None = None,
    finished: tuple[str, ...] = (),
) -> SchedulerOutput:
    """A step: rows by request; prompt length and cached tokens of new ones, and so on."""
    cached = CachedRequestData.make_empty()
    for name, tokens in (computed or {}).items():
        cached.req_ids.append(name)
        cached.num_computed_tokens.append(tokens)
    return SchedulerOutput(
        scheduled_new_reqs=[
            NewRequestData(
                req_id=name, prompt_token_ids=[1] * prompt, mm_features=[], sampling_params=None,
                pooling_params=None, block_ids=([],), num_computed_tokens=hits, lora_request=None,
            )
            for name, (prompt, hits) in (new or {}).items()
        ],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_spec_decode_tokens={name: [-1] * many for name, many in (drafts or {}).items()},
        scheduled_encoder_inputs={},
        finished_req_ids=set(finished),
        free_encoder_mm_hashes=[],
    )  # fmt: skip


class RunnerV1:
    """Holds what the first generation's runner would."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_rank=0), speculative_config=None
        )
        self.requests: dict[str, Any] = {}
        self.input_batch: Any = None
        self.input_ids = SimpleNamespace(gpu=torch.arange(64))

    def lay_out(self, step: SchedulerOutput, computed: dict[str, int]) -> None:
        """Requests in the order of `computed`."""
        self.input_batch = SimpleNamespace(
            req_ids=[*computed], num_computed_tokens_cpu=np.array([*computed.values(), 0, 0])
        )
        assert computed.keys() == step.num_scheduled_tokens.keys()


class RunnerV2:
    """Holds what the second generation's runner would, in its structures."""

    def __init__(self, drafts: int = 0) -> None:
        self.req_states = None
        self.pcp_manager = None
        self.dp_rank = 0
        self.num_speculative_steps = drafts
        self.execute_model_state: ExecuteModelState | None = None

    def lay_out(self, step: SchedulerOutput, computed: dict[str, int], padding: int = 0) -> None:
        """Requests in the runner's own order, positions on the device."""
        order = sort_batch_req_ids(
            step.num_scheduled_tokens, step.scheduled_spec_decode_tokens,
            1 + self.num_speculative_steps,
        )  # fmt: skip
        counts = [step.num_scheduled_tokens[name] for name in order]
        rows = sum(counts)
        batch = InputBatch.make_dummy(len(order), rows, InputBuffers(8, 64, CPU))
        batch.req_ids = order
        batch.num_scheduled_tokens = np.array(counts, np.int32)
        batch.num_tokens_after_padding = rows + padding
        batch.num_computed_tokens_np = np.array([computed[name] for name in order], np.int32)
        batch.positions = torch.cat(
            [torch.arange(computed[name], computed[name] + many) for name, many in
             zip(order, counts, strict=True)] + [torch.zeros(padding, dtype=torch.int64)]
        )  # fmt: skip
        empty = dict.fromkeys(ExecuteModelState._fields)
        self.execute_model_state = ExecuteModelState(**empty | {"input_batch": batch})


class Engine:
    """Routers, a probe on them, and the recorder behind it."""

    def __init__(
        self,
        folder: Path,
        runner: Any,
        *,
        refusal: str = "",
        experts: Any = None,
        clock: Clock | None = None,
        content: EngineContent | None = None,
    ) -> None:
        self.folder, self.runner = folder, runner
        self.model = torch.nn.ModuleList([Layer(layer) for layer in range(LAYERS)])
        self.recorder = Recorder(
            model="m", revision="r", layers=range(LAYERS), experts=EXPERTS, top_k=TOP_K,
            directory=folder / "ring", ring_bytes=1 << 20, rank_order="selection_score",
            clock=clock,
        )  # fmt: skip
        self.capture = RoutingCapture(LAYERS, 32, TOP_K, CPU, is_replayed=False)
        self.unwrap = [
            wrap_router(layer.router, self.capture, index) for index, layer in enumerate(self.model)
        ]
        self.probe = EngineProbe(
            self.recorder, EngineRequests(self.recorder, "unknown", content), layout_of(runner),
            self.capture, host_copies(self.capture, with_token_ids=content is not None),
            refusal=refusal, experts=experts, content=content,
        )  # fmt: skip
        self.random = torch.Generator().manual_seed(5)

    def route(self, rows: int) -> Any:
        """One forward pass's routers; the logits [rows, L, E]."""
        logits = torch.randn((rows, LAYERS, EXPERTS), generator=self.random)
        for index, layer in enumerate(self.model):
            layer.router.select_experts(torch.zeros(rows, 1), logits[:, index])
        return logits

    def run(
        self,
        step: SchedulerOutput,
        computed: dict[str, int],
        forward: Callable[[], Any] | None = None,
        padding: int = 0,
    ) -> Any:
        """A step of the engine, with the probe around it."""
        logits = None
        if self.probe.before_pass(step, (None,), {}):
            more = {"padding": padding} if padding else {}
            self.runner.lay_out(step, computed, **more)
            logits = (forward or (lambda: self.route(step.total_num_scheduled_tokens + padding)))()
            self.probe.after_pass(step, is_complete=True)
        return logits

    def recorded(self) -> Recorded:
        """All that was recorded, after the engine's end."""
        self.probe.close()
        return recorded(self.folder / "ring", self.folder / "log")


@pytest.fixture
def v1(tmp_path: Path) -> Iterator[Engine]:
    """An engine of the first generation."""
    engine = Engine(tmp_path, RunnerV1())
    yield engine
    engine.probe.close()


@pytest.fixture
def v2(tmp_path: Path) -> Iterator[Engine]:
    """One of the second."""
    engine = Engine(tmp_path, RunnerV2())
    yield engine
    engine.probe.close()


def chosen(logits: Any) -> list[list[set[int]]]:
    """Experts of the largest logits, by row and layer."""
    order = np.argsort(-logits.numpy(), axis=-1)[..., :TOP_K]
    return [[{*layer} for layer in row] for row in order.tolist()]


def experts(recorded: Recorded, name: str) -> dict[int, list[set[int]]]:
    """By position."""
    return {
        row.position: [{*layer} for layer in row.expert_ids.tolist()]
        for row in recorded.requests[name].rows
    }


def test_v2_rows_are_those_of_their_requests(v2: Engine, verified: Any) -> None:
    """The second runner sorts its batch, decoding requests first, and pads it at the end."""
    v2.run(scheduled({"a": 3}, new={"a": (3, 0)}), {"a": 0})
    mixed = scheduled({"b": 4, "a": 1}, new={"b": (9, 2)}, computed={"a": 3})
    logits = v2.run(mixed, {"b": 2, "a": 3}, padding=3)
    found = v2.recorded()
    rows = chosen(logits)
    assert experts(found, "a")[3] == rows[0]  # one row: it comes first
    assert experts(found, "b") == {2 + index: rows[1 + index] for index in range(4)}
    assert [row.phase for row in found.requests["a"].rows] == [Phase.PREFILL] * 3 + [Phase.DECODE]
    assert (found.requests["b"].prompt_tokens, found.requests["b"].cached_tokens) == (9, 2)
    assert v2.probe.counters.refused_rows == 0
    verified(subject=SUBJECT, what="second runner's layout, in its own structures (never run)")


def test_v2_resumes_preempted_requests_as_new_ones(v2: Engine) -> None:
    """The second runner forgets what it preempts: the probe does not, and flags what is redone."""
    v2.run(scheduled({"a": 4}, new={"a": (4, 0)}), {"a": 0})
    v2.run(scheduled({"a": 1}, computed={"a": 4}), {"a": 4})
    v2.run(scheduled({"a": 6}, new={"a": (4, 0)}), {"a": 0})
    found = v2.recorded().requests["a"]
    assert [row.position for row in found.countable()] == [0, 1, 2, 3, 4, 5]
    assert len(found.rows) == 11
    assert found.rows[-1].phase is Phase.DECODE


def test_v2_positions_under_drafts_are_the_devices(tmp_path: Path) -> None:
    """The host knows only how far the request would be if all drafts had been accepted."""
    engine = Engine(tmp_path, RunnerV2(drafts=2))
    engine.run(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0})
    step = scheduled({"a": 3}, computed={"a": 2}, drafts={"a": 2})
    engine.run(step, {"a": 2})
    engine.runner.execute_model_state.input_batch.num_computed_tokens_np[:] = 99
    told = ModelRunnerOutput(req_ids=["a"], req_id_to_index={"a": 0}, sampled_token_ids=[])
    engine.probe.after_sampling(SimpleNamespace(model_runner_output=told))
    assert engine.probe.counters.passed_rows == 2  # nobody knows yet what was accepted
    told.sampled_token_ids = [[7, 8]]
    engine.run(scheduled({"a": 1}, computed={"a": 4}), {"a": 4})
    phases = {row.position: row.phase for row in engine.recorded().requests["a"].rows}
    assert phases[2] is phases[3] is Phase.DECODE
    assert len(phases) == 5


def test_v2_what_was_sampled_of_an_unseen_pass_decides_nothing_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    """The device may be so late that the next pass is over before drafts are decided."""
    engine = Engine(tmp_path, RunnerV2(drafts=2))
    engine.run(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0})
    told, later = (
        ModelRunnerOutput(req_ids=["a"], req_id_to_index={"a": 0}, sampled_token_ids=[])
        for _ in range(2)
    )
    for output, forward in ((told, None), (later, lambda: engine.route(2))):
        step = scheduled({"a": 3}, computed={"a": 2}, drafts={"a": 2})
        engine.run(step, {"a": 2}, forward)
        engine.probe.after_sampling(SimpleNamespace(model_runner_output=output))
    later.sampled_token_ids = [[7, 8, 9]]
    told.sampled_token_ids = [[7]]
    rows = engine.recorded().requests["a"].rows
    assert [(row.position, row.phase) for row in rows if row.pass_id == 2] == [
        (2, Phase.DECODE), (3, Phase.DRAFT), (4, Phase.DRAFT),
    ]  # fmt: skip


def test_v2_a_sampler_that_says_nothing_known_costs_its_own_pass_only(tmp_path: Path) -> None:
    """Which drafts were accepted stays unknown: that pass is unseen, and those behind it go on."""
    engine = Engine(tmp_path, RunnerV2(drafts=2))
    engine.run(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0})
    engine.run(scheduled({"a": 3}, computed={"a": 2}, drafts={"a": 2}), {"a": 2})
    engine.probe.after_sampling(SimpleNamespace(sampled_token_ids=[[7, 8]]))  # of which request?
    engine.run(scheduled({"a": 1}, computed={"a": 4}), {"a": 4})
    assert engine.probe.counters.errors == 1
    assert engine.recorder.counters().unseen_rows == 3
    assert [row.position for row in engine.recorded().requests["a"].rows] == [0, 1, 4]


def test_v2_tells_dummy_runs(v2: Engine) -> None:
    """Warm-up, profiling and waiting for other ranks go through the same call."""
    layout = LayoutV2(v2.runner)
    assert layout.is_dummy((None, True), {})
    assert layout.is_dummy((), {"dummy_run": True})
    assert not layout.is_dummy((None,), {})
    assert not v2.probe.before_pass(scheduled({"x": 4}, new={"x": (4, 0)}), (), {"dummy_run": True})
    v2.route(4)
    assert v2.recorded().requests == {}


def test_v2_refuses_what_it_cannot_tell_apart(v2: Engine) -> None:
    """Drafts that the device chooses among: rows are not those of the schedule."""
    step = scheduled({"a": 4}, new={"a": (4, 0)})

    def fewer_rows() -> None:
        v2.runner.execute_model_state.input_batch.num_tokens = 3
        v2.route(3)

    v2.run(step, {"a": 0}, fewer_rows)
    v2.runner.pcp_manager = object()
    v2.run(scheduled({"a": 1}, computed={"a": 4}), {"a": 4})
    assert v2.recorder.counters().unseen_rows == 5
    assert v2.recorded().requests == {}


def test_runners_are_told_by_what_they_have() -> None:
    """An unknown runner has no layout: its passes are refused, not guessed."""
    assert isinstance(layout_of(RunnerV1()), LayoutV1)
    assert isinstance(layout_of(RunnerV2()), LayoutV2)
    assert layout_of(object()) is None


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("missing", "a layer's router was not called"),
        ("twice", "a layer was routed twice"),
        ("more", "rows captured are not the rows scheduled"),
        ("uneven", "layers were routed with different rows"),
        ("blank", "a layer's ids are all the same number"),
        ("wide", "a layer's router was not called"),
    ],
)
def test_passes_that_were_not_seen_as_they_were_are_refused(
    v1: Engine, fault: str, reason: str, caplog: pytest.LogCaptureFixture, verified: Any
) -> None:
    """Nothing is recorded of such a pass, its rows are counted as unseen, and said once."""
    first, second = (layer.router for layer in v1.model)

    def call(router: Any, rows: int) -> None:
        router.select_experts(torch.zeros(rows, 1), torch.randn(rows, EXPERTS))

    def forward() -> None:
        call(first, 5 if fault == "more" else 4)
        if fault == "missing":
            return
        if fault == "blank":
            zeros = torch.zeros((4, TOP_K), dtype=torch.int32)
            v1.capture.observe(1, zeros, zeros.float())
        elif fault == "wide":
            wide = torch.zeros((4, TOP_K + 1), dtype=torch.int32)
            v1.capture.observe(1, wide, wide.float())
        else:
            call(second, 5 if fault == "more" else 3 if fault == "uneven" else 4)
        if fault == "twice":
            call(first, 4)

    caplog.set_level(logging.WARNING, "moescope.producers")
    v1.run(scheduled({"a": 4}, new={"a": (9, 0)}), {"a": 0}, forward)
    v1.run(scheduled({"a": 4}, computed={"a": 4}), {"a": 4}, forward)
    logits = v1.run(scheduled({"a": 1}, computed={"a": 8}), {"a": 8})
    assert v1.recorder.counters().unseen_rows == 8
    found = v1.recorded()
    assert experts(found, "a") == {8: chosen(logits)[0]}
    assert [record.getMessage() for record in caplog.records if reason in record.getMessage()] != []
    assert len([record for record in caplog.records if reason in record.getMessage()]) == 1
    assert {header.labels.get("unseen_reason") for header in found.headers} == {reason}
    assert sum(header.drops.lost_rows for header in found.headers) == 8
    verified(subject=SUBJECT, what=f"refused: {reason}")


def test_a_refused_model_is_counted_pass_by_pass(tmp_path: Path) -> None:
    """A kernel that routes by itself: coverage 0 with a reason, in place of silence."""
    engine = Engine(tmp_path, RunnerV1(), refusal="monolithic kernel, which routes by itself")
    engine.run(scheduled({"a": 4}, new={"a": (4, 0)}), {"a": 0})
    assert engine.probe.counters.refused_rows == 4
    found = engine.recorded()
    assert found.requests == {}
    assert sum(header.drops.unseen_rows for header in found.headers) == 4


def test_routing_that_cannot_be_captured_is_refused_by_name() -> None:
    """Each reason is one that an operator can look up."""

    def of(*layers: Layer) -> str:
        return model_routing(torch.nn.ModuleList(layers)).refusal

    assert of(Layer(0), Layer(1)) == ""
    assert "monolithic" in of(Layer(0), Layer(1, is_monolithic=True))
    assert "sequence parallelism" in of(Layer(0, is_sequence_parallel=True))
    assert "context parallelism" in of(Layer(0, pcp_size=2))
    assert "different numbers" in of(Layer(0), Layer(1, num_logical_experts=4))
    assert "twice" in of(Layer(0), Layer(0))
    zero = Layer(0)
    zero.router = ZeroExpertRouter.__new__(ZeroExpertRouter)
    assert "zero experts" in of(zero)
    unknown = Layer(0)
    unknown.router = SimpleNamespace(select_experts=None)
    assert "unknown router" in of(unknown)
    assert model_routing(torch.nn.Linear(2, 2)).layers == ()


def test_a_models_routing_is_read_from_its_layers() -> None:
    """Logical experts (not their copies), decoder-layer numbers, and the scoring family."""
    layers = [Layer(5), Layer(3)]
    found = model_routing(torch.nn.ModuleList(layers))
    assert [one.layer for one in found.layers] == [3, 5]
    assert (found.experts, found.top_k) == (EXPERTS, TOP_K)
    assert (found.score_kind, found.rank_order) == (ScoreKind.SOFTMAX, RankOrder.SELECTION_SCORE)
    bias = torch.zeros(EXPERTS)
    layers[1].router = CPURouter(
        TOP_K, EXPERTS, use_grouped_topk=True, num_expert_group=2, topk_group=1,
        scoring_func="sigmoid", e_score_correction_bias=bias,
    )  # fmt: skip
    found = model_routing(torch.nn.ModuleList(layers))
    assert (found.score_kind, found.rank_order) == (ScoreKind.GROUPED, RankOrder.WEIGHT)


def test_wrappers_chain_and_come_off(v1: Engine) -> None:
    """Who wrapped the router before is called as before, and the engine's own slot is free."""
    router = CPURouter(TOP_K, EXPERTS)
    calls: list[str] = []
    own = router._compute_routing

    def earlier(*args: Any, **kwargs: Any) -> Any:
        calls.append("earlier")
        return own(*args, **kwargs)

    router._compute_routing = earlier
    router.set_capture_fn(lambda _ids: calls.append("slot"))
    unwrap = wrap_router(router, v1.capture, 0)
    v1.capture.arm()
    _, ids = router.select_experts(torch.zeros(2, 1), torch.randn(2, EXPERTS))
    assert calls == ["earlier", "slot"]
    assert v1.capture.ids[:2, 0].tolist() == ids.tolist()
    unwrap()
    assert router._compute_routing is earlier
    v1.unwrap[0]()
    assert "_compute_routing" not in vars(v1.model[0].router)


def test_compiled_routers_report_only_inside_a_pass(v1: Engine, verified: Any) -> None:
    """Dynamo traces the wrapper: the operation stays in the graph, and heeds the arming."""
    router = v1.model[1].router

    def forward(logits: Any) -> Any:
        return router.select_experts(logits, logits)

    compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)
    compiled(torch.randn(4, EXPERTS))
    assert v1.capture.ids.count_nonzero() == 0
    step = scheduled({"a": 4}, new={"a": (4, 0)})
    logits = torch.randn(4, EXPERTS)

    def one_pass() -> None:
        v1.model[0].router.select_experts(torch.zeros(4, 1), logits)
        compiled(logits)

    v1.run(step, {"a": 0}, one_pass)
    compiled(torch.randn(4, EXPERTS))
    wanted = chosen(torch.stack([logits, logits], 1))
    assert experts(v1.recorded(), "a") == dict(enumerate(wanted))
    verified(subject=SUBJECT, what="opaque operation under torch.compile")


def test_repeated_errors_switch_the_probe_off_and_nothing_else(
    v1: Engine, caplog: pytest.LogCaptureFixture, verified: Any
) -> None:
    """Each error's rows are unseen; after eight of them one line, and no work any more."""
    caplog.set_level(logging.WARNING, "moescope.producers")
    v1.run(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0})
    for number in range(ERRORS_ALLOWED + 3):

        def broken() -> None:
            v1.route(1)
            v1.runner.input_batch = None  # what a change of vLLM would look like

        v1.run(scheduled({"a": 1}, computed={"a": 2 + number}), {"a": 2 + number}, broken)
    assert v1.probe.counters.errors == ERRORS_ALLOWED
    assert v1.recorder.counters().unseen_rows == ERRORS_ALLOWED + 3
    assert [one.levelno for one in caplog.records].count(logging.ERROR) == 1
    assert len(caplog.records) <= 5
    verified(subject=SUBJECT, what="errors never propagate; eight switch the probe off")


def test_a_probe_that_gave_up_ends_requests_and_counts_no_dummy_passes(v2: Engine) -> None:
    """No window waits for rows that never come, and idle data-parallel ranks lose no coverage."""

    def broken() -> None:
        v2.runner.execute_model_state = object()  # what a change of vLLM would look like

    v2.run(scheduled({"a": 2, "b": 2}, new={"a": (2, 0), "b": (2, 0)}), {"a": 0, "b": 0})
    for at in range(2, 2 + ERRORS_ALLOWED):
        v2.run(scheduled({"a": 1}, computed={"a": at}), {"a": at}, broken)
    assert v2.probe.counters.errors == ERRORS_ALLOWED
    dummy = scheduled({"x": 4}, new={"x": (4, 0)})
    assert not v2.probe.before_pass(dummy, (None, True), {})
    assert v2.recorder.counters().unseen_rows == ERRORS_ALLOWED
    v2.run(scheduled({"b": 1}, computed={"b": 2}, finished=("a",)), {"b": 2})
    assert v2.recorder.counters().unseen_rows == ERRORS_ALLOWED + 1
    found = recorded(v2.folder / "ring", v2.folder / "log").requests
    assert {name: request.has_ended for name, request in found.items()} == {"a": True, "b": False}


def test_requests_that_began_before_the_probe_are_unseen(tmp_path: Path) -> None:
    """A model that is loaded again amid requests: those are refused, others recorded."""
    v1 = Engine(tmp_path, RunnerV1())
    for at in range(ERRORS_ALLOWED + 1):
        v1.run(scheduled({"a": 2}, computed={"a": 2 * at}), {"a": 2 * at})
    new = scheduled({"a": 1, "b": 3}, new={"b": (3, 0)}, computed={"a": 18})
    logits = v1.run(new, {"a": 18, "b": 0})

    def not_a_number() -> None:
        logits = torch.randn(3, LAYERS, EXPERTS)
        logits[:2] = torch.nan
        for index, layer in enumerate(v1.model):
            layer.router.select_experts(torch.zeros(3, 1), logits[:, index])

    v1.run(scheduled({"b": 2, "a": 1}, computed={"a": 19, "b": 3}), {"b": 3, "a": 19}, not_a_number)
    assert v1.recorder.set_fidelity("counts")
    v1.run(scheduled({"a": 1}, computed={"a": 20}), {"a": 20})
    assert v1.recorder.set_fidelity("full")
    again = v1.run(scheduled({"a": 2}, new={"a": (4, 2)}), {"a": 2})  # after preemption
    counters = v1.recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows) == (5, 2 * (ERRORS_ALLOWED + 1) + 5)
    assert (v1.probe.counters.passed_rows, v1.probe.counters.errors) == (5, 0)
    found = v1.recorded()
    assert experts(found, "b") == dict(enumerate(chosen(logits)[1:]))
    assert experts(found, "a") == dict(enumerate(chosen(again), 2))
    unseen = dict[str, int]()
    for header in found.headers:
        reason = header.labels.get("unseen_reason", "")
        unseen[reason] = unseen.get(reason, 0) + header.drops.unseen_rows
    assert unseen.pop("", 0) == 0
    assert unseen == {
        "a request that began unseen": 2 * (ERRORS_ALLOWED + 1) + 3,
        "a token's routing weights are not numbers": 2,
    }


def test_requests_begin_also_where_an_earlier_pass_cannot_be_recorded(tmp_path: Path) -> None:
    """The scheduler tells once of a beginning: missed, all of the request would be unseen."""
    placements = Placements(None)
    engine = Engine(tmp_path, RunnerV2(drafts=2), experts=placements)
    engine.run(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0})
    placements.now = object()  # type: ignore[assignment]  # what a change of vLLM would look like
    engine.run(scheduled({"a": 3}, computed={"a": 2}, drafts={"a": 2}), {"a": 2})
    placements.now = None
    told = ModelRunnerOutput(req_ids=["a"], req_id_to_index={"a": 0}, sampled_token_ids=[])
    engine.probe.after_sampling(SimpleNamespace(model_runner_output=told))
    told.sampled_token_ids = [[7]]
    engine.run(scheduled({"b": 2}, new={"b": (3, 0)}, finished=("a",)), {"b": 0})
    engine.run(scheduled({"b": 1}, computed={"b": 2}), {"b": 2})
    assert engine.probe.counters.errors == 1
    assert engine.recorder.counters().unseen_rows == 3
    engine.probe.flush()
    found = recorded(tmp_path / "ring", tmp_path / "log").requests
    engine.probe.close()
    assert [row.position for row in found["b"].rows] == [0, 1, 2]
    assert found["a"].has_ended


def test_requests_end_also_where_the_last_pass_cannot_be_recorded(tmp_path: Path) -> None:
    """An engine that ends ends them, whatever became of the pass that was under way."""
    placements = Placements(None)
    engine = Engine(tmp_path, RunnerV2(drafts=2), experts=placements)
    engine.run(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0})
    placements.now = object()  # type: ignore[assignment]  # what a change of vLLM would look like
    engine.run(scheduled({"a": 3}, computed={"a": 2}, drafts={"a": 2}), {"a": 2})
    found = engine.recorded().requests
    assert engine.probe.counters.errors == 1
    assert found["a"].has_ended


def test_an_engines_own_failure_stays_its_own(v1: Engine) -> None:
    """What `execute_model` raises reaches the engine unchanged, and nothing of it is recorded."""

    class BrokenError(RuntimeError):
        pass

    def execute_model(scheduler_output: SchedulerOutput) -> None:
        assert scheduler_output.num_scheduled_tokens
        v1.route(4)
        raise BrokenError

    runner = v1.runner
    runner.execute_model, runner.sample_tokens = execute_model, lambda: None
    hook_runner(runner, v1.probe)
    with pytest.raises(BrokenError):
        runner.execute_model(scheduled({"a": 4}, new={"a": (4, 0)}))
    with pytest.raises(BrokenError):
        runner.execute_model(scheduler_output=scheduled({"a": 4}, computed={"a": 4}))
    assert not v1.capture.is_armed
    assert v1.recorded().requests == {}


def test_passes_of_warm_up_are_not_seen(v1: Engine) -> None:
    """The second runner warms up with requests of its own."""
    v1.probe.is_warming_up = True
    v1.run(scheduled({"_warmup_0_": 4}, new={"_warmup_0_": (4, 0)}), {"_warmup_0_": 0})
    v1.probe.is_warming_up = False
    assert v1.probe.counters.passes == 0
    assert v1.recorded().requests == {}


def test_a_switched_off_recorder_costs_no_copies(tmp_path: Path) -> None:
    """The file `disable` switches recording off while the engine runs; rows are unseen then."""
    clock = ManualClock(1_700_000_000_000_000)
    v1 = Engine(tmp_path, RunnerV1(), clock=clock)
    switch = tmp_path / "ring" / "disable"
    switch.touch()
    clock.sleep(2)  # it is looked for once a second
    v1.capture.ids.fill_(-9)
    v1.capture.weights.fill_(-9)
    v1.run(scheduled({"a": 4}, new={"a": (4, 0)}), {"a": 0})
    assert (v1.capture.ids == -9).all()
    assert (v1.capture.weights == -9).all()
    assert v1.probe.counters.refused_rows == 4
    switch.unlink()
    clock.sleep(2)
    logits = v1.run(scheduled({"a": 1}, computed={"a": 4}), {"a": 4})
    counters = v1.recorder.counters()
    assert (counters.recorded_rows, counters.unseen_rows) == (1, 4)
    found = v1.recorded()
    assert experts(found, "a") == {4: chosen(logits)[0]}
    assert {header.labels["unseen_reason"] for header in found.headers} == {
        "the file 'disable' is there"
    }


def test_routers_report_only_inside_a_pass(v1: Engine) -> None:
    """Profiling and warm-up call the model beside `execute_model`: nothing of that is copied."""
    v1.capture.ids.fill_(-9)
    v1.route(4)
    assert (v1.capture.ids == -9).all()
    logits = v1.run(scheduled({"a": 3}, new={"a": (4, 0)}), {"a": 0})
    copied = v1.capture.ids.clone()
    v1.route(4)
    assert (v1.capture.ids == copied).all()
    assert {*v1.capture.rows_seen()} == {3}
    assert v1.probe.before_pass(scheduled({}, finished=("b",)), (None,), {}) is False
    v1.route(4)  # what idle data-parallel ranks compute
    assert (v1.capture.ids == copied).all()
    assert v1.recorder.counters().unseen_rows == 0
    assert experts(v1.recorded(), "a") == dict(enumerate(chosen(logits)))


def test_out_of_range_ids_are_rejected(v1: Engine) -> None:
    """Ids that no expert has: the recorder rejects their row, and keeps the other one."""

    def forward() -> None:
        good = torch.arange(TOP_K, dtype=torch.int32).repeat(2, 1)
        bad = good.clone()
        bad[0, 0] = EXPERTS + 5
        for layer, ids in enumerate((good, bad)):
            v1.capture.observe(layer, ids, torch.rand(2, TOP_K))

    v1.run(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0}, forward)
    assert v1.recorder.counters().rejected_rows == 1
    assert [*experts(v1.recorded(), "a")] == [1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_whose_weights_are_not_numbers_are_unseen(
    v1: Engine, value: float, verified: Any
) -> None:
    """Their ids are whatever a comparison with NaN left; rows of the same pass are recorded."""

    def forward() -> None:
        logits = torch.randn(6, LAYERS, EXPERTS)
        logits[[1, 2], 0] = value
        logits[5, 1, 3] = value
        seen.append(logits)
        for index, layer in enumerate(v1.model):
            layer.router.select_experts(torch.zeros(6, 1), logits[:, index])

    seen: list[Any] = []
    new = {"a": (2, 0), "b": (1, 0), "c": (3, 0)}
    v1.run(scheduled({"a": 2, "b": 1, "c": 3}, new=new), dict.fromkeys("abc", 0), forward)
    counters = v1.recorder.counters()
    assert (counters.recorded_rows, counters.rejected_rows, counters.unseen_rows) == (3, 0, 3)
    assert (v1.probe.counters.passed_rows, v1.probe.counters.refused_rows) == (3, 3)
    found = v1.recorded()
    rows = chosen(seen[0].nan_to_num(0, 0, 0))
    assert experts(found, "a") == {0: rows[0]}
    assert "b" not in found.requests
    assert experts(found, "c") == {0: rows[3], 1: rows[4]}
    assert found.headers[-1].labels["unseen_reason"] == "a token's routing weights are not numbers"
    verified(subject=SUBJECT, what="refused by row: a token's routing weights are not numbers")


def test_a_pass_of_nothing_but_nan_is_unseen(v1: Engine) -> None:
    """One decoding row each, none of them a number: nothing is recorded, nothing fails."""

    def forward() -> None:
        for layer in v1.model:
            layer.router.select_experts(torch.zeros(2, 1), torch.full((2, EXPERTS), torch.nan))

    step = scheduled({"a": 1, "b": 1}, new={"a": (1, 0), "b": (1, 0)})
    v1.run(step, {"a": 0, "b": 0}, forward)
    assert v1.recorder.counters().unseen_rows == 2
    assert (v1.recorder.counters().recorded_rows, v1.probe.counters.errors) == (0, 0)


class Placements:
    """Says what it is told to say."""

    def __init__(self, first: ExpertMap | None) -> None:
        self.now = first

    def placed(self) -> ExpertMap | None:
        """See `Experts`."""
        return self.now


def test_rows_have_the_placement_under_which_they_were_computed(tmp_path: Path) -> None:
    """A map that changes behind a pass holds for the next one; unknown ones hold for none."""
    maps = [ExpertMap(version, np.arange(EXPERTS) // version % 2, 2) for version in (1, 4)]
    placements = Placements(maps[0])
    engine = Engine(tmp_path, RunnerV1(), experts=placements)

    def rearranged() -> None:
        engine.route(2)
        placements.now = maps[1]  # as EPLB does it, when the forward pass is over

    engine.run(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0}, rearranged)
    engine.run(scheduled({"b": 3}, new={"b": (3, 0)}), {"b": 0})
    placements.now = None
    engine.run(scheduled({"c": 4}, new={"c": (4, 0)}), {"c": 0})
    assert engine.recorder.counters().unseen_rows == 4
    found = engine.recorded()
    by_version = {
        header.expert_map_version: header.placement.rank_of[0].tolist()
        for header in found.headers
        if header.placement is not None
    }
    assert by_version == {one.version: one.rank_of.tolist() for one in maps}
    rows = [
        (one.batch.header.expert_map_version, row.request, row.position)
        for one in logged(tmp_path / "log", engine.recorder.node)
        for row in rows_of([one])
        if not row.is_context
    ]
    assert sorted(rows) == [(1, "a", 0), (1, "a", 1), (4, "b", 0), (4, "b", 1), (4, "b", 2)]


class KeyedEngine(Engine):
    """One that records content keys; token 1 is what all prompts consist of."""

    def __init__(self, folder: Path, runner: Any, clock: Clock | None = None) -> None:
        super().__init__(folder, runner, clock=clock, content=EngineContent(SECRET))

    def give(
        self,
        step: SchedulerOutput,
        computed: dict[str, int],
        tokens: list[int],
        forward: Callable[[], Any] | None = None,
    ) -> Any:
        """A step whose rows the device has these tokens for, in the order of the rows."""

        def with_tokens() -> Any:
            runner = self.runner
            state = getattr(runner, "execute_model_state", None)
            there = runner.input_ids.gpu if state is None else state.input_batch.input_ids
            there[: len(tokens)] = torch.tensor(tokens)
            return (forward or (lambda: self.route(len(tokens))))()

        return self.run(step, computed, with_tokens)

    def keys(self) -> dict[str, dict[int, int | None]]:
        """By request and position, rejected drafts left out, after the engine's end."""
        self.recorded()
        found: dict[str, dict[int, int | None]] = {}
        for batch, *_ in logged(self.folder / "log", self.recorder.node):
            tokens = batch.tokens
            for at in range(0 if tokens is None else len(tokens)):
                assert tokens is not None
                assert tokens.token_id is None  # keys come without the tokens
                if tokens.phase[at] == Phase.DRAFT:
                    continue
                of_request = found.setdefault(batch.requests.ids[tokens.request[at]], {})
                key = None if tokens.content_key is None else int(tokens.content_key[at])
                assert of_request.setdefault(int(tokens.position[at]), key) == key
        return found


def keys_of(tokens: list[int]) -> dict[int, int]:
    """By position, as the definition of content keys says."""
    keys = {}
    for at in range(len(tokens)):
        text = b"".join(token.to_bytes(4, "little") for token in tokens[: at + 1])
        digest = blake2b(text, key=SECRET, digest_size=8, person=b"moescope content").digest()
        keys[at] = int.from_bytes(digest, "little")
    return keys


def test_keys_are_of_the_tokens_that_the_device_has(tmp_path: Path, verified: Any) -> None:
    """Under asynchronous scheduling no host knows what was sampled: the pass's own input does."""
    engine = KeyedEngine(tmp_path, RunnerV1())
    new = {"a": (3, 0), "b": (5, 4)}
    engine.give(scheduled({"a": 3, "b": 1}, new=new), {"a": 0, "b": 4}, [1, 1, 1, 1])
    step = scheduled({"a": 1, "b": 1}, computed={"a": 3, "b": 5})
    engine.give(step, {"b": 5, "a": 3}, [8, 7])

    def not_a_number() -> None:
        logits = torch.randn(2, LAYERS, EXPERTS)
        logits[0] = torch.nan
        for index, layer in enumerate(engine.model):
            layer.router.select_experts(torch.zeros(2, 1), logits[:, index])

    step = scheduled({"a": 1, "b": 1}, computed={"a": 4, "b": 6})
    engine.give(step, {"a": 4, "b": 6}, [9, 10], not_a_number)
    engine.give(scheduled({"a": 1}, computed={"a": 5}), {"a": 5}, [11])
    found = engine.keys()
    whole = keys_of([1, 1, 1, 7, 9, 11])
    assert found["a"] == {at: key for at, key in whole.items() if at != 4}
    whole = keys_of([1, 1, 1, 1, 1, 8, 10])
    assert found["b"] == {at: key for at, key in whole.items() if at > 3}
    verified(subject=SUBJECT, what="content keys: tokens as the device has them (V1's structures)")


def test_v2_keys_leave_rejected_drafts_out(tmp_path: Path, verified: Any) -> None:
    """The device knows the positions, and later what was accepted; a resumed one begins anew."""
    engine = KeyedEngine(tmp_path, RunnerV2(drafts=2))
    engine.give(scheduled({"a": 2}, new={"a": (2, 0)}), {"a": 0}, [1, 1])
    step = scheduled({"a": 3}, computed={"a": 2}, drafts={"a": 2})
    engine.give(step, {"a": 2}, [5, 6, 90])
    told = ModelRunnerOutput(req_ids=["a"], req_id_to_index={"a": 0}, sampled_token_ids=[[6, 7]])
    engine.probe.after_sampling(SimpleNamespace(model_runner_output=told))
    engine.give(scheduled({"a": 1}, computed={"a": 4}), {"a": 4}, [7])
    again = [1, 1, 5, 6, 7, 8]
    engine.give(scheduled({"a": 6}, new={"a": (2, 0)}), {"a": 0}, again)
    assert engine.keys()["a"] == keys_of(again)
    verified(subject=SUBJECT, what="content keys: V2's structures (never run)")


@pytest.mark.parametrize("how", ["switched off", "counts", "refused"])
def test_behind_what_was_not_seen_there_are_no_keys(tmp_path: Path, how: str) -> None:
    """What was generated meanwhile nobody knows; a prompt is known also where it was not seen."""
    clock = ManualClock(1_700_000_000_000_000)
    engine = KeyedEngine(tmp_path, RunnerV1(), clock=clock)
    switch = tmp_path / "ring" / "disable"
    new = {"a": (2, 0), "b": (9, 0), "c": (1, 0)}
    engine.give(scheduled({"a": 2, "b": 3, "c": 1}, new=new), dict.fromkeys("abc", 0), [1] * 6)
    engine.give(scheduled({"c": 1}, computed={"c": 1}), {"c": 1}, [90])
    forward = None
    if how == "switched off":
        switch.touch()
    elif how == "counts":
        assert engine.recorder.set_fidelity("counts")
    else:
        forward = lambda: engine.route(3)  # noqa: E731 - not the rows that were scheduled
    # Meanwhile the engine takes a token of c back, and puts another in its place.
    clock.sleep(2)
    step = scheduled({"a": 1, "b": 3, "c": 1}, computed={"a": 2, "b": 3, "c": 1})
    engine.give(step, {"a": 2, "b": 3, "c": 1}, [5, 1, 1, 1, 4], forward)
    switch.unlink(missing_ok=True)
    assert engine.recorder.set_fidelity("full")
    clock.sleep(2)
    step = scheduled({"a": 1, "b": 2, "c": 1}, computed={"a": 3, "b": 6, "c": 2})
    engine.give(step, {"a": 3, "b": 6, "c": 2}, [6, 1, 1, 7])
    step = scheduled({"a": 1, "b": 1}, computed={"a": 4, "b": 8})
    engine.give(step, {"a": 4, "b": 8}, [7, 1])
    assert engine.probe.counters.errors == 0
    found = engine.keys()
    assert (found["a"][3], found["a"][4], found["c"][2]) == (None, None, None)
    whole = keys_of([1] * 9)
    assert {at: found["b"][at] for at in (6, 7, 8)} == {at: whole[at] for at in (6, 7, 8)}


def test_rows_beside_those_of_an_unknown_request_have_keys(tmp_path: Path) -> None:
    """A request that began unseen takes no keys from the others of its passes."""
    engine = KeyedEngine(tmp_path, RunnerV1())
    step = scheduled({"a": 1, "b": 2}, new={"b": (2, 0)}, computed={"a": 5})
    engine.give(step, {"a": 5, "b": 0}, [9, 1, 1])
    step = scheduled({"a": 1, "b": 1}, computed={"a": 6, "b": 2})
    engine.give(step, {"b": 2, "a": 6}, [7, 8])
    assert engine.keys() == {"b": keys_of([1, 1, 7])}
    assert (engine.probe.counters.errors, engine.probe.counters.refused_rows) == (0, 2)


def test_rows_without_keys_keep_their_routes(tmp_path: Path) -> None:
    """They are recorded apart from the others of their pass, with what belongs to them."""
    engine = KeyedEngine(tmp_path, RunnerV1())
    step = scheduled({"a": 3, "b": 2, "c": 1}, new={"a": (3, 0), "b": (2, 0), "c": (1, 0)})
    step.scheduled_new_reqs[1].prompt_embeds = torch.zeros(2, 4)
    logits = engine.give(step, {"c": 0, "b": 0, "a": 0}, [1, 0, 0, 1, 1, 1])
    step = scheduled({"b": 1}, computed={"b": 2})
    engine.give(step, {"b": 2}, [5])
    rows = chosen(logits)
    found = engine.recorded()
    assert experts(found, "c") == {0: rows[0]}
    assert [experts(found, "b")[at] for at in (0, 1)] == rows[1:3]
    assert experts(found, "a") == dict(enumerate(rows[3:]))
    passes = {row.pass_id for one in "abc" for row in found.requests[one].rows if row.position < 2}
    assert passes == {1}
    keys = engine.keys()
    assert keys == {
        "a": keys_of([1, 1, 1]), "b": dict.fromkeys(range(3)), "c": keys_of([1]),
    }  # fmt: skip
