"""Plain values to bytes and back: a JSON head for what is small, raw arrays and bytes behind it.

Nothing in the bytes names code: a reader constructs the classes that it was given, and those
only. Classes travel with the names of their fields, so that a field with a default can be added.
"""

from moescope.core.plain_codec.errors import PlainFormatError, PlainVersionError
from moescope.core.plain_codec.kinds import Kinds
from moescope.core.plain_codec.layout import DEFAULT_LIMITS, PlainLimits
from moescope.core.plain_codec.packing import pack
from moescope.core.plain_codec.unpacking import unpack

__all__ = [
    "DEFAULT_LIMITS",
    "Kinds",
    "PlainFormatError",
    "PlainLimits",
    "PlainVersionError",
    "pack",
    "unpack",
]
