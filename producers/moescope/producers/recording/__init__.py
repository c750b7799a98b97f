"""The parts of the recorder: checking a call, running requests, and its folder."""
