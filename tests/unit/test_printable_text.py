from __future__ import annotations

import pytest

from moescope.core.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("chat/de", "chat/de"),
        ("größe 漢字", "größe 漢字"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("txt.\u202eexe", "txt.\\u202eexe"),
        ("one\u2028two", "one\\u2028two"),
    ],
)
def test_what_a_terminal_obeys_is_shown_as_text(text: str, shown: str) -> None:
    """A name from a producer cannot clear the screen, break a row or turn the writing round."""
    assert printable(text) == shown
