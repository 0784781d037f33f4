"""The difference is drawn with its intervals, and called worse only if it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.inspections import PROMPTS, ROUNDS, K, pair, rounds

from driftscope.inspect.trial.acceptance import acceptance_of
from driftscope.inspect.trial.paired_positions import PairTrial, compare_positions
from driftscope_reports.html.inspection.pair_section import section


def _equal() -> PairTrial:
    drafts = rounds(0.6, 1), rounds(0.6, 2)
    return PairTrial(
        prompts=PROMPTS,
        k=K,
        positions=PROMPTS * ROUNDS,
        as_served=(acceptance_of(drafts[0], K), acceptance_of(drafts[1], K)),
        comparison=compare_positions(*drafts, K, ("old", "new")),
    )


def test_a_worse_drafter_is_called_worse(tmp_path: Path) -> None:
    trial = pair(tmp_path).trial
    assert trial is not None
    made = section(trial)
    assert [each.name for each in made.pictures[1].chart.series] == ["▼ worse"]
    assert made.lead is not None and made.lead.startswith("old accepts more from depth 1 on")


def test_the_page_says_that_no_repair_was_tried_and_what_ctrl_c_left_out() -> None:
    trial = _equal()
    whole, cut = section(trial).lead, section(replace(trial, stopped=True)).lead
    assert whole is not None and cut is not None
    assert "No repair was tried" in whole and "Ctrl-C" not in whole
    assert "Ctrl-C stopped the trial: the other prompts are left out." in cut


def test_equal_drafters_show_no_difference() -> None:
    made = section(_equal())
    assert [each.name for each in made.pictures[1].chart.series] == ["= no clear difference"]
    assert made.body is not None and "differs" not in made.body


def test_both_drafters_are_drawn_by_depth(tmp_path: Path) -> None:
    trial = pair(tmp_path).trial
    assert trial is not None
    first, second = section(trial).pictures[0].chart.series
    assert (first.name, second.name) == ("old", "new")
    assert len(first.y) == len(second.y) == K
