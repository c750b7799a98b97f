"""Training runs: optimizer steps, micro-batches and data sources beside the routing.

`TrainingLoop` is for a loop of your own, `RoutingCallback` for transformers' `Trainer`. Both label
the passes of a probe (`moescope.producers.attach`); the rows are of phase `train`, and fall into
step windows.
"""

from moescope.producers.training.loop import TrainingLoop
from moescope.producers.training.trainer import RoutingCallback

__all__ = ["RoutingCallback", "TrainingLoop"]
