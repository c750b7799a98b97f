"""Roll-up of routing batches into windows: sources, gates, kernels, metric arithmetic."""
