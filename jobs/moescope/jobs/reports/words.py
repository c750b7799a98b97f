"""Numbers, spans of time and kinds of windows as people say them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

NOTHING = "–"
_UNITS = ((86_400, "day"), (3_600, "h"), (60, "min"), (1, "s"))


def figure(value: float | None) -> str:
    """Three significant digits."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value and abs(value) < 1e-4:  # noqa: PLR2004 (four zeros after the point are the most one reads)
        return f"{value:.2e}".replace("e-0", "e-")
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in text or abs(value) >= 1000 else text  # noqa: PLR2004 - more than three digits


def count(value: float) -> str:
    """A whole number with thousands apart."""
    return f"{value:,.0f}"


def counted(value: float, thing: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{count(value)} {thing}{'' if value == 1 else 's'}"


def percent(share: float | None) -> str:
    """A share in percent, small ones with more digits."""
    if share is None or not math.isfinite(share):
        return NOTHING
    value = 100 * share
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.2g} %"  # noqa: PLR2004 - two digits


def span(seconds: float) -> str:
    """A length of time in its two largest units."""
    left, parts = round(seconds), []
    for size, name in _UNITS:
        number, left = divmod(left, size)
        if number:
            plural = "s" if name == "day" and number > 1 else ""
            parts.append(f"{number} {name}{plural}")
        if len(parts) == 2:  # noqa: PLR2004 (two units are precise enough)
            break
    return " ".join(parts) or f"{seconds:.3g} s"


def moment(time: datetime | None) -> str | None:
    """A time of the store, in ISO 8601."""
    return None if time is None else time.isoformat(timespec="seconds") + "Z"


def spoken_moment(iso: str | None) -> str:
    """The same for people."""
    return NOTHING if iso is None else iso.replace("T", " ").removesuffix("Z") + " UTC"


def windows_words(kind: str, size: int, stride: int) -> str:
    """What kind of windows."""
    if kind == "token":
        every = "" if stride in {0, size} else f", a new one every {count(stride)}"
        return f"Token windows of {count(size)} positions of one request{every}"
    if kind == "time":
        every = "" if stride in {0, size} else f", a new one every {span(stride / 1e6)}"
        return f"Time windows of {span(size / 1e6)}{every}"
    if kind == "step":
        return f"Step windows of {count(size)} optimizer steps"
    return "Task windows"


def scope_words(scope_kind: str) -> str:
    """Over what the windows are taken."""
    return {"all": "whole fleet", "node": "each node", "scene": "each scene"}.get(
        scope_kind, scope_kind
    )


def band_words(band: str) -> str:
    """What a volume band holds: powers of two of requests and tokens."""
    requests, colon, tokens = band.partition(":")
    if not (colon and requests.isdigit() and tokens.isdigit()):
        return band
    return f"{_power(int(requests), 'request')} with {_power(int(tokens), 'token')}"


def _power(exponent: int, thing: str) -> str:
    low, high = 2**exponent, 2 ** (exponent + 1) - 1
    return counted(low, thing) if low == high else f"{count(low)}–{count(high)} {thing}s"


def key_words(key: Mapping[str, object]) -> str:
    """Which of the windows of a kind: scope, scene and volume."""
    parts = [scope_words(str(key["scope_kind"]))]
    if key["scene"]:
        parts.append(f"scene {key['scene']}")
    elif key["window_kind"] != "token" and key["scope_kind"] != "scene":
        parts.append("any scenes")
    if key["band"]:
        parts.append(band_words(str(key["band"])))
    return ", ".join(parts)


def command_word(text: str) -> str:
    """A word that a shell reads as it stands, or quoted."""
    plain = text and all(letter.isalnum() or letter in "-_.:/" for letter in text)
    return text if plain and text.isascii() else "'" + text.replace("'", "'\\''") + "'"


def printable(text: str) -> str:
    """Text whose control and formatting characters are shown as escapes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
