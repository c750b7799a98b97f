"""Imported once by the fork server: everything that a fleet's processes need, compiled."""

from __future__ import annotations

import duckdb  # noqa: F401 (slow to import)
import kafka  # noqa: F401 - slow to import
import polars as pl  # noqa: F401 - slow to import
from support.rolled_up import roll_up
from support.small_windows import CONFIG
from support.streams import NATURAL, Plan, cut_stream, make_stream, source_records

import moescope.console.owner
import moescope.console.run_work  # noqa: F401 - slow to import

roll_up(source_records(cut_stream(make_stream(Plan(seed=1, passes=8)), NATURAL)), CONFIG)
