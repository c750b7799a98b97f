"""Speed of moescope, each figure beside its target and beside what one would use otherwise.

Importing this package settles what has to be settled before numpy is loaded: it runs as on a
plain installation, whatever kernel of OpenBLAS the environment asks for.
"""

from __future__ import annotations

import os

SLOWING_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

UNSET = tuple(name for name in SLOWING_VARIABLES if os.environ.pop(name, None) is not None)
