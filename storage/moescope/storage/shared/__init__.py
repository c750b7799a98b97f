"""Shared windows: which are due, what their panes add up to, and what they are compared with.

Nothing in here knows a database: panes come from whoever calls.
"""

from moescope.storage.shared.clocks import DomainClock, advance_clock
from moescope.storage.shared.grouping import ClosedWindow, group_windows
from moescope.storage.shared.panes import PaneSums, add_panes, is_without_rows
from moescope.storage.shared.plan import Accepted, SharedWindows
from moescope.storage.shared.spans import Series, WindowShapes, WindowSpan
from moescope.storage.shared.trailing import TrailingReferences

__all__ = [
    "Accepted",
    "ClosedWindow",
    "DomainClock",
    "PaneSums",
    "Series",
    "SharedWindows",
    "TrailingReferences",
    "WindowShapes",
    "WindowSpan",
    "add_panes",
    "advance_clock",
    "group_windows",
    "is_without_rows",
]
