"""Compare the routing of the same tokens: two revisions, precisions or engines, or repeats.

Metrics of counts cannot see what a comparison token by token sees: routes of bfloat16 and float32
differ for a good part of the tokens while their counts agree to the fifth digit.
"""

from moescope.jobs.reports.comparison.build import FEWEST_PAIRS, Limits, compare
from moescope.jobs.reports.comparison.schema import ComparisonReport
from moescope.jobs.reports.comparison.sides import KEYS, Side, find_side

__all__ = [
    "FEWEST_PAIRS",
    "KEYS",
    "ComparisonReport",
    "Limits",
    "Side",
    "compare",
    "find_side",
]
