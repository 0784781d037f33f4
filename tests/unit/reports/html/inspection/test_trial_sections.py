"""Pictures hold the figures by depth, and the table every hypothesis that was or was not tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.inspections import K, broken

from driftscope.analysis.statistics.intervals import Interval
from driftscope.inspect.trial.trial_result import NotApplicable, Trial, TriedRendering
from driftscope_reports.html.inspection.trial_sections import interval_words, sections


def _trial(folder: Path) -> Trial:
    trial = broken(folder).trial
    assert trial is not None
    return trial


def test_the_rates_are_drawn_with_their_intervals(tmp_path: Path) -> None:
    trial = _trial(tmp_path)
    (series,) = sections(trial)[0].pictures[0].chart.series
    assert series.y == trial.as_is.marginal
    assert series.x == tuple(range(1, K + 1))
    assert series.low == tuple(each.low if each else None for each in trial.as_is.marginal_interval)


def test_masses_of_all_classes_are_drawn(tmp_path: Path) -> None:
    trial = _trial(tmp_path)
    drawn = {each.name: each.y for each in sections(trial)[0].pictures[1].chart.series}
    assert drawn["sink"] == trial.figures["sink_mass"]
    assert len(drawn) == 4


def test_renderings_and_what_could_not_be_tried_are_listed(tmp_path: Path) -> None:
    trial = _trial(tmp_path)
    first = trial.tried[0]
    rendered = TriedRendering(
        rendering=replace(first.repair, change="no first token"),
        acceptance=first.acceptance,
        gain=first.gain,
        prompts=first.prompts,
        surer=0.1,
        surer_interval=None,
    )
    left_out = NotApplicable(id="drafters_template", reason="none was saved")
    made = replace(trial, renderings=(rendered,), not_applicable=(left_out,))
    body = sections(made)[1].body
    assert body is not None
    assert "no first token" in body
    assert "Not tried: drafters_template: none was saved." in body


def test_an_interval_is_in_brackets_or_left_out() -> None:
    assert interval_words(Interval(low=1, high=2)) == " (95% interval 1.00 to 2.00)"
    assert not interval_words(None)
