"""How often a rule would have paged in a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moescope.core.exceedance import SLOT_US
from moescope.jobs.paging.alert_course import AlertState, Verdict, begin, observe

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moescope.core.thresholds import PagingRule


def pages_in(values: NDArray[np.float64], rule: PagingRule) -> int:
    """Alerts that fire while the slots with data of one block go by.

    Args:
        values: float64 [slots with data, in order]; in spreads past the red line.
        rule: Line and k-of-n.
    """
    over = np.asarray(values) > rule.line
    if int(over.sum()) < rule.needed:
        return 0
    pages = 0
    course = None
    for index, is_over in enumerate(over.tolist()):
        slot_us = index * SLOT_US
        if course is not None:
            verdict = Verdict.OVER if is_over else Verdict.UNDER
            was_fired = course.fired_us is not None
            course, _ = observe(course, slot_us, verdict, rule)
            pages += course.fired_us is not None and not was_fired
            course = course if course.state is not AlertState.RESOLVED else None
        elif is_over:
            course, _ = begin(slot_us, rule)
            pages += course.fired_us is not None
    return pages
