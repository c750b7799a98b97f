"""Charts as images, without a browser: for notifications and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vl_convert

from moescope.jobs.charts.theme import VEGA_LITE, vega_config

if TYPE_CHECKING:
    import altair as alt

WIDTH = 720
LIGHT_GROUND, DARK_GROUND = "#ffffff", "#14171d"


def chart_spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """The chart as Vega-Lite; without the address of its schema, which nobody needs to fetch."""
    spec: dict[str, Any] = chart.to_dict(validate=False)
    spec.pop("$schema", None)
    spec.pop("config", None)
    return spec


def chart_png(
    chart: alt.TopLevelMixin, *, width: int = WIDTH, scale: float = 2.0, dark: bool = False
) -> bytes:
    """The chart as PNG.

    Args:
        chart: Any chart of this package.
        width: Of the plot, in points; axes come on top.
        scale: Pixels per point.
        dark: For dark ground.
    """
    png: bytes = vl_convert.vegalite_to_png(
        _sized(chart, width),
        vl_version=VEGA_LITE,
        scale=scale,
        config=_grounded(dark=dark),
        allowed_base_urls=[],
    )
    return png


def chart_svg(chart: alt.TopLevelMixin, *, width: int = WIDTH, dark: bool = False) -> str:
    """The chart as SVG text; arguments as for `chart_png`."""
    svg: str = vl_convert.vegalite_to_svg(
        _sized(chart, width),
        vl_version=VEGA_LITE,
        config=_grounded(dark=dark),
        allowed_base_urls=[],
    )
    return svg


def _sized(chart: alt.TopLevelMixin, width: int) -> dict[str, Any]:
    return chart_spec(chart) | {"width": width}


def _grounded(*, dark: bool) -> dict[str, Any]:
    return vega_config(dark=dark) | {
        "background": DARK_GROUND if dark else LIGHT_GROUND,
        "padding": 12,
    }
