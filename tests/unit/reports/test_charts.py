"""Figures as plotly draws them, and their numbers as tables."""

from __future__ import annotations

import json
import re

from driftscope.analysis.statistics.intervals import Interval
from driftscope_reports.charts import (
    Axis,
    Mark,
    Unit,
    area,
    bars,
    expectation,
    figure,
    has_values,
    heat_rows,
    legend,
    line,
    plain,
    points,
)
from driftscope_reports.model import number_rows
from driftscope_reports.page import asset, colours

BETWEEN = [Interval(low=0.7, high=0.9), Interval(low=0.4, high=0.6), None]
MASSES = figure(
    [
        area("own", [0.0, 0.25, 0.5], colour="class-self", pattern="/"),
        area("rest", [1.0, 0.75, 0.5], colour="class-prompt", pattern="."),
        expectation("expected", [0.0, 0.1, 0.2]),
    ],
    x_title="depth",
    y_title="share",
    unit=Unit.SHARE,
)
RATES = figure(
    [line("<a>", [0.8, 0.5, None], intervals=BETWEEN), line("b", [0.9, 0.7], run=1)],
    x_title="depth",
    y_title="rate",
    unit=Unit.SHARE,
    marks=[Mark(x=2, text="<here>")],
)
CHANGES = figure(
    [
        bars("worse", [1, 2], [None, -0.2], intervals=[None, Interval(low=-0.3, high=-0.1)]),
        bars("better", [1, 2], [0.1, None], colours="good", pattern="x"),
    ],
    x_title="depth",
    y_title="difference",
    unit=Unit.SHARE,
    stacked=True,
    level=0.0,
    from_zero=False,
)
HEADS = figure(
    heat_rows(["head 0", "head 1"], [[0.1, 0.2], [0.3, float("nan")]], ["0", "1"]),
    x_title="depth",
    y_title="head",
    unit=Unit.SHARE,
)
FIGURES = {"masses": MASSES, "rates": RATES, "changes": CHANGES, "heads": HEADS}


def test_every_colour_is_in_both_palettes_and_a_notebook_gets_the_light_one() -> None:
    css = asset("report.css")
    dark = re.findall(r"--([\w-]+): #", css.partition("@media")[2].partition("* {")[0])
    assert list(colours()) == dark
    for made in FIGURES.values():
        text = json.dumps(plain(made))
        assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= set(dark)
        assert "var(" not in json.dumps(plain(made, colours()))


def test_what_is_missing_is_a_gap_and_a_dash() -> None:
    drawn = plain(RATES)["data"][0]
    assert drawn["y"] == [0.8, 0.5, None]
    assert drawn["error_y"]["array"] == [0.1, 0.1, None]
    head, rows, _ = number_rows(RATES)
    assert head == ["depth", "<a>", "b"]
    assert rows[:2] == [
        ["1", "0.800 (0.700 to 0.900)", "0.900"],
        ["2", "0.500 (0.400 to 0.600)", "0.700"],
    ]
    assert len(rows) == 2, "a depth at which every series has a gap says nothing"
    assert "NaN" not in json.dumps([plain(made) for made in FIGURES.values()])


def test_names_are_escaped_for_plotly_and_clipped() -> None:
    made = plain(RATES)
    assert made["data"][0]["name"] == "&lt;a&gt;"
    assert made["layout"]["annotations"][0]["text"] == "&lt;here&gt;"
    long = plain(figure([line("n" * 90, [1.0])], x_title="x", y_title="y"))
    assert len(long["data"][0]["name"]) == 28


def test_axes_show_every_value_and_do_not_let_wide_intervals_hide_it() -> None:
    low, high = CHANGES.layout.yaxis.range
    assert low < -0.3
    assert high > 0.1
    assert MASSES.layout.yaxis.range == RATES.layout.yaxis.range == (0.0, 1.02)
    wide = line("a", [1.0, 2.0], intervals=[Interval(low=0.0, high=90.0)] * 2)
    assert figure([wide], x_title="x", y_title="y").layout.yaxis.range[1] < 4
    assert HEADS.layout.yaxis.range == (-0.5, 1.5)
    assert all(made.layout.xaxis.range[0] == 0.5 for made in FIGURES.values())


def test_series_differ_by_more_than_colour() -> None:
    runs = figure([line(str(n), [1.0], run=n) for n in range(6)], x_title="x", y_title="y")
    assert len({(sign.dash, sign.marker) for sign in legend(runs)}) == 6
    assert [sign.pattern for sign in legend(CHANGES)] == ["", "x"]
    assert [sign.name for sign in legend(HEADS)] == ["0%", "15%", "30%"]
    assert not legend(figure([line("alone", [1.0])], x_title="x", y_title="y"))


def test_many_values_are_rows_of_a_table_and_each_point_has_its_note() -> None:
    xs = [float(x) for x in range(30)]
    many = figure([points("a", xs, xs)], x_title="K", y_title="ms", axis=Axis.NUMBER, unit=Unit.MS)
    head, rows, words = number_rows(many)
    assert (head, words) == (["K", "a"], 1)
    assert rows[1] == ["1", "1.00"]
    noted = [points(name, [1.0], [2.0], notes=["of 3"]) for name in "ab"]
    noted += [points("c", [4.0], [5.0])]
    head, rows, words = number_rows(figure(noted, x_title="K", y_title="y", axis=Axis.NUMBER))
    assert (head, words) == (["run", "about", "K", "y"], 2)
    assert rows[0] == ["a", "of 3", "1", "2.000"]


def test_an_empty_picture_is_drawn() -> None:
    empty = figure([], x_title="x", y_title="y", axis=Axis.CATEGORY)
    assert plain(empty)["data"] == []
    assert number_rows(empty) == (["x"], [], 1)


def test_a_picture_has_values_only_if_a_run_has_one() -> None:
    """What runs are compared with is none of them."""
    alone = expectation("baseline", [1.0, 1.0])
    gaps = line("run", [None, float("nan")])
    assert not has_values(figure([alone, gaps], x_title="K", y_title="ms"))
    assert has_values(figure([alone, line("run", [None, 2.0])], x_title="K", y_title="ms"))
