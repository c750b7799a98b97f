"""OLMo-core's Triton kernels without a GPU: Triton interprets them where this is said in time."""

from __future__ import annotations

import os

# Read while the kernels' module is imported, hence before any test.
os.environ.setdefault("TRITON_INTERPRET", "1")
