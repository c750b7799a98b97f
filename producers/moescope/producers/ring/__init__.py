"""The ring: a memory-mapped file between the engine and the agent, bounded and drop-oldest."""
