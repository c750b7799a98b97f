"""Router families: what each kind of router returns and how it scores, declared.

`register_family(RouterAdapter(…))` makes a router of one's own known.
"""

from moescope.producers.torch_probe.families.adapter import RouterAdapter
from moescope.producers.torch_probe.families.contract import (
    LayerRouter,
    RouterFamily,
    RouterShape,
    Routing,
)
from moescope.producers.torch_probe.families.finding import find_routers, router_shape
from moescope.producers.torch_probe.families.forms import (
    BARE,
    IDS_WEIGHTS_INPUT,
    PROBABILITIES_TRIPLE,
    TRIPLE,
    Form,
    Linear,
)
from moescope.producers.torch_probe.families.registry import register_family
from moescope.producers.torch_probe.families.scoring import Groups, Scoring
from moescope.producers.torch_probe.families.weighting import (
    ScoreWeights,
    SoftmaxOfSelected,
    Weighting,
)

__all__ = [
    "BARE",
    "IDS_WEIGHTS_INPUT",
    "PROBABILITIES_TRIPLE",
    "TRIPLE",
    "Form",
    "Groups",
    "LayerRouter",
    "Linear",
    "RouterAdapter",
    "RouterFamily",
    "RouterShape",
    "Routing",
    "ScoreWeights",
    "Scoring",
    "SoftmaxOfSelected",
    "Weighting",
    "find_routers",
    "register_family",
    "router_shape",
]
