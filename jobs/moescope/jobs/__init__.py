"""What works on stored windows: calibration, thresholds, red lines, alerts and reports."""
