"""The agent: ring → group → encode → number → batch log, in a process of its own."""

from moescope.producers.agent.loop import Agent, AgentCounters, AgentLockedError
from moescope.producers.agent.settings import AgentSettings

__all__ = ["Agent", "AgentCounters", "AgentLockedError", "AgentSettings"]
