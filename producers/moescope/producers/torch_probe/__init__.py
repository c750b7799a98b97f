"""A probe for torch models: watches the routers, gives rows to a recorder.

torch is imported only when a probe records: this package imports without it.
"""

from moescope.producers.torch_probe.attaching import attach, probe_of
from moescope.producers.torch_probe.counters import ProbeCounters
from moescope.producers.torch_probe.families import (
    RouterAdapter,
    RouterShape,
    register_family,
    router_shape,
)
from moescope.producers.torch_probe.probe import Probe
from moescope.producers.torch_probe.requests import RequestFacts, RoutingSink

__all__ = [
    "Probe",
    "ProbeCounters",
    "RequestFacts",
    "RouterAdapter",
    "RouterShape",
    "RoutingSink",
    "attach",
    "probe_of",
    "register_family",
    "router_shape",
]
