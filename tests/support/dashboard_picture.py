"""Draw a dashboard from its JSON and the replies of a Prometheus.

It shows each panel's title, place, queries and legends as the JSON asks for them. It is not
Grafana's own drawing, which looks different in detail.
"""

from __future__ import annotations

import html
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from playwright.sync_api import Browser
from support.first_screens import few_colours

WIDTH, ROW = 1280, 30
"""Pixels of the page, and of one row of Grafana's grid."""
COLUMNS = 24
DEFAULTS = {"window": "20s", "fell": "0.8", "outlier": "0.85"}
"""Values of the dashboards' variables that are not labels."""
_POINTS = 240
_TICKS = {"percentunit": ".0%", "short": ".3~g", "ops": ".3~g"}
_STYLE = """
body { margin: 0; padding: 8px; background: #111217; color: #ccccdc; font: 13px sans-serif }
h1 { font-size: 18px; font-weight: 500; margin: 4px 4px 10px }
main { position: relative }
section { position: absolute; background: #181b1f; border: 1px solid #2c3235; overflow: hidden;
  border-radius: 2px; box-sizing: border-box }
h2 { font-size: 13px; font-weight: 500; margin: 7px 10px 0 }
p { text-align: center; color: #8e8e9a; margin-top: 22% }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A Prometheus, and the Unix times between which it is asked."""

    url: str
    begin_s: float
    end_s: float

    @property
    def step_s(self) -> float:
        """Seconds between two points."""
        return max(1.0, (self.end_s - self.begin_s) / _POINTS)

    def series(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of an expression. Raises OSError for a refused expression."""
        query = urllib.parse.urlencode(
            {"query": expr, "start": self.begin_s, "end": self.end_s, "step": self.step_s}
        )
        with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{query}", timeout=30) as reply:
            return list(json.load(reply)["data"]["result"])


def picture(browser: Browser, dashboard: Mapping[str, Any], window: Window, path: Path) -> int:
    """Write the picture of a dashboard to `path`; return how many of its panels have data."""
    panels = dashboard["panels"]
    lines = [list(_lines(panel, window)) for panel in panels]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    page = browser.new_page(viewport={"width": WIDTH, "height": rows * ROW + 60})
    page.set_content(_page(dashboard, lines, window))
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
    page.wait_for_timeout(500)
    path.write_bytes(few_colours(page.screenshot(full_page=True)))
    page.close()
    return sum(bool(line) for line in lines)


def _lines(panel: Mapping[str, Any], window: Window) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield legend, times and values of each series of a panel; every choice is "all"."""
    for target in panel["targets"]:
        expr = re.sub(r"\$(job|model|drafter|instance)\b", ".*", target["expr"])
        for name, value in DEFAULTS.items():
            expr = expr.replace(f"${name}", value)
        for found in window.series(expr):
            legend = _legend(target["legendFormat"], found["metric"])
            points = _with_gaps(found["values"], window.step_s)
            yield legend, [at * 1000 for at, _ in points], [value for _, value in points]


def _with_gaps(values: list[Any], step_s: float) -> list[tuple[float, float | None]]:
    """Return times and values, with a value of None where the series has no sample."""
    out: list[tuple[float, float | None]] = []
    for at, value in values:
        if out and at - out[-1][0] > 1.5 * step_s:
            out.append((out[-1][0] + step_s, None))
        out.append((at, float(value)))
    return out


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


def _page(dashboard: Mapping[str, Any], lines: list[list[Any]], window: Window) -> str:
    unit = (WIDTH - 16) / COLUMNS
    sections = []
    for panel, drawn in zip(dashboard["panels"], lines, strict=True):
        at = panel["gridPos"]
        width, height = int(at["w"] * unit) - 6, at["h"] * ROW - 6
        place = f"left: {at['x'] * unit:.0f}px; top: {at['y'] * ROW}px"
        chart = _figure(panel, drawn, (window.begin_s * 1000, window.end_s * 1000))
        chart.update_layout(width=width, height=height - 30)
        inner = _html(chart) if drawn else "<p>No data</p>"
        sections.append(
            f'<section style="{place}; width: {width}px; height: {height}px">'
            f"<h2>{html.escape(panel['title'])}</h2>{inner}</section>"
        )
    rows = max(item["gridPos"]["y"] + item["gridPos"]["h"] for item in dashboard["panels"])
    script = plotly.offline.get_plotlyjs()
    return (
        f"<html><head><style>{_STYLE}</style><script>{script}</script></head><body>"
        f"<h1>{html.escape(dashboard['title'])}</h1>"
        f'<main style="height: {rows * ROW}px">{"".join(sections)}</main></body></html>'
    )


def _figure(panel: Mapping[str, Any], lines: list[Any], span_ms: tuple[float, float]) -> go.Figure:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return go.Figure(
        [
            go.Scatter(x=times, y=values, name=name, mode="lines", line={"width": 1.5})
            for name, times, values in lines
        ],
        layout={
            "template": "plotly_dark",
            "margin": {"l": 55, "r": 12, "t": 6, "b": 4},
            "paper_bgcolor": "#181b1f",
            "plot_bgcolor": "#181b1f",
            "font": {"size": 11},
            "showlegend": True,
            "legend": {"orientation": "h", "y": -0.14, "x": 0},
            "xaxis": {
                "type": "date",
                "range": span_ms,
                "tickformat": "%H:%M",
                "dtick": 60_000,
                "gridcolor": "#2c3235",
            },
            "yaxis": {
                "tickformat": _TICKS.get(unit, ".3~s"),
                "ticksuffix": "s" if unit == "s" else "",
                "gridcolor": "#2c3235",
                "zeroline": False,
            },
        },
    )


def _html(figure: go.Figure) -> str:
    return str(
        plotly.io.to_html(
            figure, full_html=False, include_plotlyjs=False, config={"displayModeBar": False}
        )
    )
