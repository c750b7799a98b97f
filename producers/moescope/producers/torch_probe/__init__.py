"""A probe for models of transformers: forward hooks on the routers, rows into a recorder.

torch is imported only when a probe records: this package imports without it.
"""

from moescope.producers.torch_probe.probe import Probe, ProbeCounters, attach
from moescope.producers.torch_probe.requests import RequestFacts, RoutingSink
from moescope.producers.torch_probe.routers import RouterShape, router_shape

__all__ = [
    "Probe",
    "ProbeCounters",
    "RequestFacts",
    "RouterShape",
    "RoutingSink",
    "attach",
    "router_shape",
]
