"""What an agent lost before it reached the batch log, as a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moescope.core.self_metrics import SelfMetrics
    from moescope.producers.agent import Agent


class AgentFigures:
    """Follows the counters of an agent of this process."""

    def __init__(self, agent: Agent, metrics: SelfMetrics) -> None:
        self._agent = agent
        self._metrics = metrics
        self._dropped = 0

    def take(self) -> None:
        """Add what was lost since the last call."""
        shipped = self._agent.counters().shipped
        dropped = shipped.lost_rows + shipped.unencodable_rows
        self._metrics.add("moescope_agent_dropped_rows_total", dropped - self._dropped)
        self._dropped = dropped
