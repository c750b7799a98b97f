"""Who an engine is in a deployment of several ranks, and which of them record.

Configurations have the attributes of vLLM's; kernels route by themselves, so that no torch is
needed: what such an engine computes is counted as unseen, in headers that say whose it was.
"""

from __future__ import annotations

import logging
import platform
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.plugin_rows import recorded
from support.rings import small_recorder

from moescope.core.batch import Ranks
from moescope.producers.recording.switch import DISABLE_FILE
from moescope.producers.vllm_plugin.identity import engine_ranks, execution_mode
from moescope.producers.vllm_plugin.settings import PluginSettings
from moescope.producers.vllm_plugin.start_line import start_line
from moescope.producers.vllm_plugin.workers import attach_probe, watch_worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from moescope.core.batch import BatchHeader
    from moescope.producers.vllm_plugin.probe import EngineProbe

ROWS = 5
LAYERS = 4


def parallel(**given: object) -> SimpleNamespace:
    """The shape of vLLM's `ParallelConfig`: one rank of everything."""
    defaults = {
        "data_parallel_size": 1, "data_parallel_rank": 0, "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1, "enable_expert_parallel": False, "enable_eplb": False,
    }  # fmt: skip
    return SimpleNamespace(**defaults | given)


def groups(tp: int = 0, pp: int = 0, ep: int = 0, experts_on: int = 1) -> SimpleNamespace:
    """The shape of `vllm.distributed.parallel_state`, in one worker."""

    def group(rank: int, size: int) -> Callable[[], SimpleNamespace]:
        return lambda: SimpleNamespace(rank_in_group=rank, world_size=size)

    return SimpleNamespace(
        get_tp_group=group(tp, 2), get_pp_group=group(pp, 2), get_ep_group=group(ep, experts_on)
    )


class Model:
    """MoE layers whose kernels route by themselves.

    Args:
        layers: Decoder-layer indices that this worker has.
    """

    def __init__(self, layers: range) -> None:
        self._layers = [self._layer(layer) for layer in layers]

    @staticmethod
    def _layer(layer: int) -> SimpleNamespace:
        return SimpleNamespace(
            layer_name=f"model.layers.{layer}.mlp.experts",
            layer_id=layer,
            router=SimpleNamespace(select_experts=None, _compute_routing=None),
            moe_config=SimpleNamespace(num_experts=8, experts_per_token=2),
            expert_placement_strategy="linear",
            _quant_method=SimpleNamespace(is_monolithic=True),
        )

    def modules(self) -> list[SimpleNamespace]:
        """As torch has it: other modules, too."""
        return [SimpleNamespace(), *self._layers]


class Runner:
    """A worker's model runner that computes nothing."""

    def __init__(self, parallel_config: SimpleNamespace, layers: range) -> None:
        self.vllm_config = SimpleNamespace(
            parallel_config=parallel_config,
            speculative_config=None,
            model_config=SimpleNamespace(served_model_name=["served"], revision=None),
            compilation_config=SimpleNamespace(mode=0, cudagraph_mode=None),
        )
        self.get_model = lambda: Model(layers)

    def execute_model(self, scheduled: object) -> None:
        """A forward pass."""

    def sample_tokens(self) -> None:
        """What follows it."""


class Deployment:
    """Workers that record to one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))

    def serve(
        self,
        config: SimpleNamespace,
        ranks: SimpleNamespace,
        layers: range = range(LAYERS),
        node: str | None = "n",
    ) -> EngineProbe | None:
        """Attach to one worker, and let it compute a pass."""
        self._patch.setitem(sys.modules, "vllm.distributed.parallel_state", ranks)
        runner = Runner(config, layers)
        settings = PluginSettings(
            directory=str(self.folder / "ring"), node=node, ring_bytes=1 << 20
        )
        probe = attach_probe(runner, settings)
        runner.execute_model(
            SimpleNamespace(
                total_num_scheduled_tokens=ROWS, finished_req_ids=(), scheduled_new_reqs=()
            )
        )
        if probe is not None:
            probe.close()
        return probe

    def headers(self) -> dict[str, BatchHeader]:
        """Of each node's one batch."""
        found = recorded(self.folder / "ring", self.folder / "log").headers
        assert [header.drops.unseen_rows for header in found] == [ROWS] * len(found)
        by_node = {header.node: header for header in found}
        assert len(by_node) == len(found)
        return by_node


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """No worker yet."""
    return Deployment(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        ({}, Ranks()),
        ({"tensor_parallel_size": 2}, Ranks(tensor_parallel=1)),
        ({"pipeline_parallel_size": 2}, Ranks(pipeline_parallel=2)),
        ({"enable_expert_parallel": True}, Ranks(expert_parallel=3)),
        ({"data_parallel_size": 8, "data_parallel_rank": 7}, Ranks(data_parallel=7)),
        ({"data_parallel_size": 1, "data_parallel_rank": 7}, Ranks()),
        (
            {"data_parallel_size": 8, "data_parallel_rank": 7, "tensor_parallel_size": 2,
             "pipeline_parallel_size": 2, "enable_expert_parallel": True},
            Ranks(data_parallel=7, tensor_parallel=1, pipeline_parallel=2, expert_parallel=3),
        ),
    ],
)  # fmt: skip
def test_ranks_are_those_of_the_groups_there_are(config: dict[str, Any], ranks: Ranks) -> None:
    """Each kind from its own group; a group of one is no rank 0, but none."""
    assert engine_ranks(parallel(**config), groups(tp=1, pp=2, ep=3)) == ranks


def test_of_tensor_parallel_ranks_the_first_records(deployment: Deployment) -> None:
    """The others see the same rows: they make no ring, so that no row counts twice."""
    config = parallel(tensor_parallel_size=2)
    assert deployment.serve(config, groups(tp=1)) is None
    assert not (deployment.folder / "ring").exists()
    assert deployment.serve(config, groups(tp=0)) is not None
    [(node, header)] = deployment.headers().items()
    assert (node, header.ranks) == ("n", Ranks(tensor_parallel=0))


def test_pipeline_stages_record_their_own_layers(deployment: Deployment) -> None:
    """Each is a node of its own, under its first tensor-parallel rank."""
    config = parallel(tensor_parallel_size=2, pipeline_parallel_size=2)
    for stage, layers in enumerate((range(2), range(2, LAYERS))):
        for tp in range(2):
            deployment.serve(config, groups(tp=tp, pp=stage), layers)
    headers = deployment.headers()
    assert {node: header.layers.tolist() for node, header in headers.items()} == {
        "n-pp0": [0, 1],
        "n-pp1": [2, 3],
    }
    assert [headers[f"n-pp{stage}"].ranks for stage in range(2)] == [
        Ranks(tensor_parallel=0, pipeline_parallel=stage) for stage in range(2)
    ]


def test_data_parallel_engines_are_nodes_of_their_own(deployment: Deployment) -> None:
    """They compute different requests: all record, under the expert rank that each has."""
    for rank in range(3):
        config = parallel(
            data_parallel_size=3, data_parallel_rank=rank, enable_expert_parallel=True
        )
        deployment.serve(config, groups(ep=rank, experts_on=3))
    headers = deployment.headers()
    assert {node: header.ranks for node, header in headers.items()} == {
        f"n-dp{rank}": Ranks(data_parallel=rank, expert_parallel=rank) for rank in range(3)
    }


def test_expert_parallel_ranks_of_one_engine_record_once(deployment: Deployment) -> None:
    """Without data parallelism experts are spread over tensor-parallel ranks."""
    config = parallel(tensor_parallel_size=2, enable_expert_parallel=True)
    probes = [deployment.serve(config, groups(tp=rank, ep=rank)) for rank in range(2)]
    assert [probe is not None for probe in probes] == [True, False]
    assert [header.ranks for header in deployment.headers().values()] == [
        Ranks(tensor_parallel=0, expert_parallel=0)
    ]


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Lines that the plugin wrote where vLLM shows them."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "vllm.moescope" and record.levelno == level
    ]


def test_an_engine_that_cannot_be_seen_says_so_as_it_starts(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """Who looks for `moescope` in its log is not told that something is recorded."""
    with caplog.at_level(logging.INFO):
        deployment.serve(parallel(), groups())
    (line,) = said(caplog, logging.INFO)
    assert line.startswith("moescope: routing of model served, revision unknown (4 layers, ")
    assert "is not recorded: monolithic kernel" in line


def test_a_refused_setting_is_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine's log gets what is wrong and what to do, not below a traceback; others keep it."""
    monkeypatch.setitem(sys.modules, "vllm.distributed.parallel_state", groups())
    monkeypatch.setenv("MOESCOPE_DIR", "ring")
    monkeypatch.setenv("MOESCOPE_FIDELITY", "sampled")
    worker = SimpleNamespace(
        load_model=lambda: "loaded",
        compile_or_warm_up_model=None,
        shutdown=None,
        model_runner=Runner(parallel(), range(LAYERS)),
    )
    watch_worker(worker)
    assert worker.load_model() == "loaded"
    worker.model_runner = None
    assert worker.load_model() == "loaded"
    refusal, fault = caplog.records
    told = refusal.getMessage()
    assert told.startswith("The engine is not watched by moescope: MOESCOPE_FIDELITY is sampled")
    assert " Why: Every request would be recorded. Next: Set MOESCOPE_SAMPLING_RATIO" in told
    assert "\n" not in told
    assert refusal.exc_info is None
    assert fault.exc_info is not None


def test_a_slip_in_a_variable_is_told_once_by_the_rank_that_records(
    deployment: Deployment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is ignored in silence, and everything is shipped in place of a sample."""
    monkeypatch.setenv("MOESCOPE_FIDELTY", "sampled")
    config = parallel(tensor_parallel_size=2)
    for rank in range(2):
        deployment.serve(config, groups(tp=rank))
    (line,) = said(caplog, logging.WARNING)
    assert line == (
        "moescope: MOESCOPE_FIDELTY is not a setting and has no effect; "
        "did you mean MOESCOPE_FIDELITY?"
    )


@pytest.mark.parametrize(
    ("settings", "has_keys", "parts"),
    [
        (
            {"token_id_kind": "off"}, False,
            ("fidelity full, token ids off, content keys no.", "is recorded as node n in"),
        ),
        (
            {"fidelity": "sampled", "sampling_ratio": 0.25, "token_id_kind": "plain"}, True,
            ("fidelity sampled (0.25 of the requests), token ids plain, content keys yes.",),
        ),
    ],
)  # fmt: skip
def test_the_start_line_tells_what_is_in_force(
    tmp_path: Path, settings: dict[str, Any], has_keys: bool, parts: tuple[str, ...]
) -> None:
    """Operators compare it with what they set."""
    with small_recorder(tmp_path, node="n", revision="r7", **settings) as recorder:
        line = start_line(recorder, str(tmp_path), "", has_keys=has_keys)
        for part in ("moescope: routing of model ", "revision r7 ", str(tmp_path), *parts):
            assert part in line
    (tmp_path / DISABLE_FILE).touch()
    with small_recorder(tmp_path, node="n", **settings) as recorder:
        paused = start_line(recorder, str(tmp_path), "", has_keys=has_keys)
    assert "is not recorded: the file 'disable' is there; as node n" in paused


def test_a_node_without_a_name_has_that_of_its_host(deployment: Deployment) -> None:
    """Ranks of one host have to differ, whether somebody named the node or not."""
    config = parallel(data_parallel_size=2, data_parallel_rank=1, pipeline_parallel_size=2)
    deployment.serve(config, groups(pp=0), node=None)
    deployment.serve(config, groups(pp=1), node=None)
    host = platform.node()
    assert [*sorted(deployment.headers())] == [f"{host}-dp1-pp0", f"{host}-dp1-pp1"]


@pytest.mark.parametrize(
    ("mode", "graphs", "name"),
    [(0, None, "eager"), (None, "NONE", "eager"), (3, "NONE", "compiled"), (3, "FULL", "cudagraph"),
     (0, "PIECEWISE", "cudagraph")],
)  # fmt: skip
def test_execution_modes_are_told_apart(mode: int | None, graphs: str | None, name: str) -> None:
    """A graph replays what Python does not see, compiled or not."""
    graph_mode = None if graphs is None else SimpleNamespace(name=graphs)
    config = SimpleNamespace(mode=mode, cudagraph_mode=graph_mode)
    assert execution_mode(config) == name
