"""Charts as SVG, plotly and tables, against files that were looked at."""

from __future__ import annotations

import json
from pathlib import Path

from driftscope_reports.drawing.chart import Axis, Chart, Kind, Mark, Series, Unit, span, ticks
from driftscope_reports.drawing.palette import DARK, LIGHT, scale_colour
from driftscope_reports.drawing.plotly_figure import figure, painted
from driftscope_reports.drawing.svg import svg
from driftscope_reports.html.parts.tables import of_chart

DATA = Path(__file__).parent / "data"
"""Made by `python tests/unit/reports/drawing/test_drawing.py`; look at them before committing."""

MASSES = Chart(
    series=(
        Series(name="own", kind=Kind.AREA, x=(1, 2, 3), y=(0.0, 0.25, 0.5), pattern="/"),
        Series(name="rest", kind=Kind.AREA, x=(1, 2, 3), y=(1.0, 0.75, 0.5), colour="run-1"),
        Series(name="expected", kind=Kind.DASHED, x=(1, 2, 3), y=(0.0, 0.1, 0.2), colour="ink"),
    ),
    x_title="depth",
    y_title="share",
    unit=Unit.SHARE,
)
RATES = Chart(
    series=(
        Series(
            name="<a>", x=(1, 2, 3), y=(0.8, 0.5, None), low=(0.7, 0.4, None), high=(0.9, 0.6, None)
        ),
        Series(name="b", x=(1, 2), y=(0.9, 0.7), colour="run-1", style=1),
    ),
    x_title="depth",
    y_title="rate",
    unit=Unit.SHARE,
    marks=(Mark(x=2, text="here"),),
)
CHANGES = Chart(
    series=(
        Series(
            name="worse",
            kind=Kind.STACK,
            x=(1, 2),
            y=(None, -0.2),
            low=(None, -0.3),
            high=(None, -0.1),
            colour="worse",
        ),
        Series(name="better", kind=Kind.STACK, x=(1, 2), y=(0.1, None), colour="better"),
    ),
    x_title="depth",
    y_title="difference",
    unit=Unit.SHARE,
    level=0.0,
    from_zero=False,
)
CHARTS = {"masses": MASSES, "rates": RATES, "changes": CHANGES}


def _files() -> dict[str, str]:
    out = {f"{name}.svg": f"{svg(chart, id=name)}\n" for name, chart in CHARTS.items()}
    figures = {name: figure(chart) for name, chart in CHARTS.items()}
    return {**out, "figures.json": json.dumps(figures, indent=1, sort_keys=True) + "\n"}


def test_golden_bytes() -> None:
    for name, content in _files().items():
        assert content == (DATA / name).read_text(), name


def test_every_colour_has_a_light_and_a_dark_one() -> None:
    assert set(LIGHT) == set(DARK)
    for name, chart in CHARTS.items():
        for colours in (LIGHT, DARK):
            assert '"@' not in json.dumps(painted(figure(chart), colours)), name


def test_what_is_missing_is_a_gap_and_a_dash() -> None:
    drawn = str(svg(RATES, id="x"))
    assert "nan" not in drawn
    assert "None" not in drawn
    table = str(of_chart(RATES, "rates"))
    assert "<td>–</td>" in table
    assert "0.700 to 0.900" in table
    assert "&lt;a&gt;" in table
    assert 'data-axis="depth"' in table


def test_negative_bars_hang_from_zero() -> None:
    ends = span(CHANGES).y
    assert ends[0] < -0.3
    assert ends[1] > 0.1


def test_ticks_are_round_and_inside() -> None:
    for low, high in ((0.0, 1.02), (0.0, 10.8), (-0.3, 0.2), (0.0, 3e-4), (49.6, 50.5)):
        steps = ticks(low, high)
        assert 3 <= len(steps) <= 12
        assert all(low - 1e-9 <= step <= high + 1e-9 for step in steps)
    assert ticks(2.0, 2.0) == [2.0]


def test_an_empty_picture_is_drawn() -> None:
    empty = Chart(series=(), x_title="x", y_title="y", axis=Axis.CATEGORY)
    assert "<svg" in svg(empty, id="x")
    assert figure(empty)["data"] == []


def test_the_scale_gets_brighter() -> None:
    colours = [scale_colour(i / 10) for i in range(11)]
    light = [sum(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in colours]
    assert light == sorted(light)
    assert scale_colour(-1) == colours[0]
    assert scale_colour(9) == colours[-1]


if __name__ == "__main__":
    for file, content in _files().items():
        (DATA / file).write_text(content)
