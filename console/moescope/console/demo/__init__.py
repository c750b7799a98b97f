"""The demo: recorded and simulated traffic through the whole of moescope, and a scorecard."""
