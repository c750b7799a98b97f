from __future__ import annotations

import json
import struct
import zlib
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np
import polars as pl
import pytest

from moescope.jobs.charts import (
    Field,
    chart_html_parts,
    chart_png,
    chart_svg,
    distribution_chart,
    exceedance_timeline,
    false_alarm_chart,
    heatmap_chart,
    layer_lines_chart,
)
from moescope.jobs.charts.indexed_png import indexed_png
from moescope.jobs.charts.theme import BASELINE, RED, WARN

if TYPE_CHECKING:
    import altair as alt

MIDNIGHT = datetime(2026, 1, 1)  # noqa: DTZ001 (columns are UTC without a zone)
LINES = pl.DataFrame(
    {
        "line": ["warn line", "red line"], "quantile": ["P90", "P99"], "value": [0.4, 0.6],
        "low": [0.35, None], "high": [0.45, None],
    }
)  # fmt: skip
FIELD = Field(
    shares=np.array([[0.1, 1.4, np.nan], [0.2, 0.8, 0.3]]),
    levels=np.array([[0, 2, 0], [0, 1, 0]], np.int8),
    layers=(2, 5),
    closed=("a", "b", "c'\"\\"),
)


def every_chart() -> dict[str, alt.TopLevelMixin]:
    """One of each."""
    layered = LINES.with_columns(layer=pl.lit(3)).drop("quantile")
    slots = pl.DataFrame(
        {"slot": [MIDNIGHT + timedelta(seconds=5 * n) for n in range(3)], "value": [0.1, None, 2.0]}
    )
    rates = pl.DataFrame(
        {"metric": ["gini", "js_uniform"], "rate": [0.01, 0.05], "nominal": [0.01, 0.01],
         "low": [0.0, None], "high": [0.02, None]}
    )  # fmt: skip
    values = pl.DataFrame({"value": [0.1, 0.5], "share": [0.5, 1.0]})
    return {
        "distribution": distribution_chart(values, LINES, metric="gini", title="t"),
        "layers": layer_lines_chart(layered, metric="js_uniform", title="t"),
        "heat": heatmap_chart(FIELD, title="t"),
        "timeline": exceedance_timeline(slots, line=1.0, needed=2, of_slots=3, title="t"),
        "rates": false_alarm_chart(rates, title="t"),
    }


@pytest.mark.parametrize("name", sorted(every_chart()))
def test_chart_is_valid_and_draws_without_a_browser(name: str) -> None:
    """Pages and notifications show the same charts: each one is valid Vega-Lite, and draws."""
    chart = every_chart()[name]
    assert chart.to_dict(validate=True)["layer"]
    root = ET.fromstring(chart_svg(chart, dark=True))  # noqa: S314 (our own)
    assert root.tag.endswith("svg")


def test_chart_becomes_an_image() -> None:
    """Notifications carry images."""
    assert chart_png(every_chart()["layers"], width=200, scale=1).startswith(b"\x89PNG")


def test_axes_carry_title_and_unit_of_the_registry() -> None:
    """A number without unit says nothing."""
    assert "Gini coefficient (1)" in json.dumps(every_chart()["distribution"].to_dict())
    assert '"Bits"' in json.dumps(every_chart()["layers"].to_dict())


def test_indexed_png_holds_the_cells() -> None:
    """A heatmap's image is read back cell by cell."""
    cells = np.arange(6, dtype=np.uint8).reshape(2, 3)
    png = indexed_png(cells, [(n, n, n) for n in range(6)], transparent=5)
    parts, place = {}, 8
    while place < len(png):
        (length,) = struct.unpack_from(">I", png, place)
        kind, body = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        (check,) = struct.unpack_from(">I", png, place + 8 + length)
        assert check == zlib.crc32(kind + body)
        parts[kind], place = body, place + 12 + length
    assert struct.unpack_from(">IIBB", parts[b"IHDR"]) == (3, 2, 8, 3)
    assert parts[b"tRNS"] == bytes([255] * 5 + [0])
    assert zlib.decompress(parts[b"IDAT"]) == b"\0\0\1\2\0\3\4\5"


def test_dense_fields_keep_the_worst_of_each_column() -> None:
    """Pooling may hide where exactly a red window was, and never that there was one."""
    rng = np.random.default_rng(7)
    shares = rng.normal(size=(2, 2501))
    shares[0, :3] = np.nan
    levels = np.where(shares > 2, 2, 0).astype(np.int8)
    field = Field(shares=shares, levels=levels, layers=(0, 1), closed=[str(n) for n in range(2501)])
    pooled = field.pooled(1000)
    assert pooled.per_column == 3
    assert pooled.shares.shape == (2, 834)
    assert list(pooled.closed[:2]) == ["0", "3"]
    assert np.isnan(pooled.shares[0, 0])
    for column in range(1, 834):
        part = slice(3 * column, 3 * column + 3)
        assert (pooled.shares[:, column] == shares[:, part].max(axis=1)).all()
        assert (pooled.levels[:, column] == levels[:, part].max(axis=1)).all()
    assert "each column is the worst of 3" in json.dumps(heatmap_chart(field, title="t").to_dict())


def test_long_timelines_keep_their_peaks() -> None:
    """A day of 5 s slots is drawn with fewer points, and its one peak stays."""
    values = [0.0] * 5000
    values[3210] = 9.0
    slots = pl.DataFrame(
        {"slot": [MIDNIGHT + timedelta(seconds=5 * n) for n in range(5000)], "value": values}
    )
    spec = exceedance_timeline(slots, line=1.0, needed=2, of_slots=3, title="t").to_dict()
    drawn = max(spec["datasets"].values(), key=len)
    assert len(drawn) <= 1001
    assert max(row["value"] for row in drawn) == 9.0
    assert "each point is the worst of" in json.dumps(spec)


def test_names_cannot_leave_the_data_of_a_page() -> None:
    """Titles hold names of producers; a closing tag inside of one must not end the data."""
    hostile = "</script><script>alert(1)</script>"
    chart = heatmap_chart(FIELD, title=hostile)
    parts = chart_html_parts({"one": (chart, hostile)})
    assert "<script>alert" not in parts.scripts
    assert "<script>" not in parts.figures["one"]
    assert parts.scripts.count("</script>") == 4
    assert len(parts.script_hashes) == 2


def test_colours_stand_out_on_both_grounds() -> None:
    """Marks have at least the contrast that WCAG asks of graphics (3:1), light and dark."""
    for colour in (BASELINE, WARN, RED):
        for ground in ("#ffffff", "#14171d"):
            lighter, darker = sorted((_luminance(colour), _luminance(ground)), reverse=True)
            assert (lighter + 0.05) / (darker + 0.05) >= 3.0


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
