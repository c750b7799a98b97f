"""Returned routes: records the routing that an engine's responses carry, on the client's side."""

from moescope.producers.returned_routes.counters import ReturnedRoutesCounters
from moescope.producers.returned_routes.routes import ReturnedRoutes

__all__ = ["ReturnedRoutes", "ReturnedRoutesCounters"]
