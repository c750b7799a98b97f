"""When exceedances page: rules solved for an alarm budget, and the states that follow from them."""

from moescope.jobs.paging.alert_course import (
    AlertState,
    Change,
    Course,
    Verdict,
    begin,
    lose,
    observe,
    retire,
    silence_deadline,
    slots_to_recover,
)
from moescope.jobs.paging.poisson import poisson_rate_bound
from moescope.jobs.paging.replay import pages_in
from moescope.jobs.paging.series import PagingSeries
from moescope.jobs.paging.solve import MINIMUM_BLOCKS, equal_shares, solve_all, solve_paging

__all__ = [
    "MINIMUM_BLOCKS",
    "AlertState",
    "Change",
    "Course",
    "PagingSeries",
    "Verdict",
    "begin",
    "equal_shares",
    "lose",
    "observe",
    "pages_in",
    "poisson_rate_bound",
    "retire",
    "silence_deadline",
    "slots_to_recover",
    "solve_all",
    "solve_paging",
]
