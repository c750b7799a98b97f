"""One palette and one Vega configuration for every chart, on light and on dark ground."""

from __future__ import annotations

from typing import Any

VEGA_LITE = "6.4"
"""Vega-Lite that charts are drawn with, in pages and in exported images alike."""

BASELINE = "#2f7fc1"
"""Healthy values: blue. At least 3:1 against both grounds, like the two below."""
WARN = "#b98300"
"""Warn lines: gold."""
RED = "#cc3d1f"
"""Red lines: vermillion; darker than gold, so that the two differ without colour as well."""
MUTED = "#7d8590"
"""Nominal values and other context."""

_LIGHT = {"ink": "#1d2330", "faint": "#5b6472", "grid": "#e3e6eb"}
_DARK = {"ink": "#e6e9ef", "faint": "#a3acba", "grid": "#343b47"}

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def vega_config(*, dark: bool = False) -> dict[str, Any]:
    """Vega-Lite's configuration for one of the two grounds; the ground itself stays transparent."""
    shades = _DARK if dark else _LIGHT
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            "labelColor": shades["faint"],
            "titleColor": shades["ink"],
            "titleFontWeight": 500,
            "titlePadding": 8,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "gridColor": shades["grid"],
            "domainColor": shades["grid"],
            "tickColor": shades["grid"],
            "labelOverlap": "greedy",
            "labelSeparation": 8,
        },
        "axisQuantitative": {"tickCount": 6},
        "axisTemporal": {"tickCount": 6, "format": "%d %b %H:%M", "grid": False},
        "legend": {
            "labelColor": shades["ink"],
            "titleColor": shades["ink"],
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": 500,
            "symbolOpacity": 1,
            "orient": "top",
            "direction": "horizontal",
        },
        "title": {
            "color": shades["ink"],
            "subtitleColor": shades["faint"],
            "fontSize": 13,
            "fontWeight": 600,
            "subtitleFontSize": 12,
            "anchor": "start",
            "offset": 8,
        },
        "text": {"color": shades["ink"], "fontSize": 11},
    }
