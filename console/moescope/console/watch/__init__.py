"""Watching moescope itself: metrics and health over HTTP, a health file, and what reads it."""

from moescope.console.watch.health import Health, HealthStatus
from moescope.console.watch.serving import Watch, serving

__all__ = ["Health", "HealthStatus", "Watch", "serving"]
