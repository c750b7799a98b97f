"""Text from outside, made safe to show on a terminal."""

from __future__ import annotations

import unicodedata
from typing import Final

_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HIDDEN_CATEGORIES: Final = {"Cc", "Zl", "Zp", "Cs"}
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    r"""The text on one line, with what a terminal would obey written as an escape.

    Control characters, line breaks and marks that turn the direction of writing become `\n`,
    `\x1b` or `\u202e`; everything else stays as it is.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if unicodedata.category(character) in _HIDDEN_CATEGORIES or character in _BIDI:
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - two hexadecimal digits
    return character
