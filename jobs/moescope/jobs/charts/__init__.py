"""Charts for reports, dashboards and notifications: pure functions from frames to Altair charts.

Colours come from one palette that is readable with colour-blind eyes, on light and dark ground.
Titles and units come from the metric registry.
"""

from moescope.jobs.charts.distribution import distribution_chart
from moescope.jobs.charts.export import chart_png, chart_svg
from moescope.jobs.charts.heatmap import Field, heatmap_chart
from moescope.jobs.charts.layers import layer_lines_chart
from moescope.jobs.charts.page import ChartParts, chart_html_parts
from moescope.jobs.charts.rates import false_alarm_chart
from moescope.jobs.charts.timeline import exceedance_timeline

__all__ = [
    "ChartParts",
    "Field",
    "chart_html_parts",
    "chart_png",
    "chart_svg",
    "distribution_chart",
    "exceedance_timeline",
    "false_alarm_chart",
    "heatmap_chart",
    "layer_lines_chart",
]
