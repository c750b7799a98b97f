"""The fleet simulator: real batches of a made-up fleet, with planted incidents and their truth."""

from moescope.producers.simulator.engine import EngineSpec
from moescope.producers.simulator.fleet import DEFAULT_START_US, simulate
from moescope.producers.simulator.labels import LABELS_FILE
from moescope.producers.simulator.model import ModelSpec, RouterSpec, SimulationError
from moescope.producers.simulator.scenario import Scenario, Scene, TrafficSpec, TrainingSpec
from moescope.producers.simulator.scenarios import SCENARIOS, scenario_named
from moescope.producers.simulator.totals import SimulationTotals

__all__ = [
    "DEFAULT_START_US",
    "LABELS_FILE",
    "SCENARIOS",
    "EngineSpec",
    "ModelSpec",
    "RouterSpec",
    "Scenario",
    "Scene",
    "SimulationError",
    "SimulationTotals",
    "TrafficSpec",
    "TrainingSpec",
    "scenario_named",
    "simulate",
]
