"""Interactive charts inside one HTML file that works without a network."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import TYPE_CHECKING

import vl_convert

from moescope.jobs.charts.export import chart_spec
from moescope.jobs.charts.theme import VEGA_LITE, vega_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    import altair as alt

_DRAW = """
"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const themes = read("chart-themes");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = () => (dark.matches && !printing ? themes.dark : themes.light);
  const drawn = new Map();
  let printing = false;
  const draw = async (figure) => {
    const spec = read(figure.dataset.spec);
    const old = drawn.get(figure);
    drawn.set(figure, null);
    if (old) old.finalize();
    const options = {mode: "vega-lite", renderer: "svg", actions: false, ast: true,
                     config: theme(), tooltip: {theme: dark.matches ? "dark" : "light"}};
    drawn.set(figure, await vegaEmbed(figure.querySelector(".chart-place"), spec, options));
    figure.dataset.drawn = "yes";
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries)
      if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
  }, {rootMargin: "400px"});
  const figures = [...document.querySelectorAll("figure[data-spec]")];
  figures.forEach((figure) => seen.observe(figure));
  dark.addEventListener("change", () => [...drawn.keys()].forEach(draw));
  window.addEventListener("beforeprint", () => { printing = true; figures.forEach(draw); });
  window.addEventListener("afterprint", () => { printing = false; figures.forEach(draw); });
})();
"""


@dataclass(frozen=True, slots=True)
class ChartScripts:
    """What draws the charts of a page.

    Attributes:
        html: Drawing library, themes, and what draws charts as they come into view. Goes to the
            end of the body, once, after the charts' data.
        hashes: For a content security policy's `script-src`.
    """

    html: str
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChartParts:
    """What a page needs to show charts.

    Attributes:
        figures: HTML of each chart's place, by the name it was given.
        scripts: Data of all charts, and what draws them. Goes to the end of the body.
        script_hashes: For a content security policy's `script-src`.
    """

    figures: Mapping[str, str]
    scripts: str
    script_hashes: tuple[str, ...]


def chart_html_parts(charts: Mapping[str, tuple[alt.TopLevelMixin, str]]) -> ChartParts:
    """Turn charts into parts of a self-contained page.

    Args:
        charts: By name (letters, digits and dashes): the chart, and what it shows in words, for
            those who do not see it.
    """
    scripts = chart_scripts()
    blocks = [chart_block(name, chart) for name, (chart, _) in charts.items()]
    return ChartParts(
        figures={name: chart_figure(name, words) for name, (_, words) in charts.items()},
        scripts="\n".join((*blocks, scripts.html)),
        script_hashes=scripts.hashes,
    )


@cache
def chart_scripts() -> ChartScripts:
    """Vega, Vega-Lite and Vega-Embed from vl-convert's own bundle, and what draws with them."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)
    # A script ends at its first closing tag, wherever that stands.
    library = bundle.replace("</script", "<\\/script")
    themes = _json_block("chart-themes", {"light": vega_config(), "dark": vega_config(dark=True)})
    html = f"{themes}\n<script>{library}</script>\n<script>{_DRAW}</script>"
    return ChartScripts(html, (_hash(library), _hash(_DRAW)))


def chart_figure(name: str, words: str) -> str:
    """The place where a chart appears."""
    return (
        f'<figure class="chart" data-spec="spec-{escape(name)}" role="img" '
        f'aria-label="{escape(words)}"><div class="chart-place"></div></figure>'
    )


def chart_block(name: str, chart: alt.TopLevelMixin) -> str:
    """A chart's data as a block of the page that nothing executes."""
    return _json_block(f"spec-{name}", chart_spec(chart))


def _json_block(name: str, value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" id="{escape(name)}">{safe}</script>'


def _hash(script: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"
