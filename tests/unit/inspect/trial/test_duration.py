"""The estimated duration of a trial adds up its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftscope.inspect.trial.duration import Rehearsal, Workload, duration

TIMED = Rehearsal(prompt_s=3, token_s=0.5, states_s=0.25, build_s=2, draft_s=0.125)
PLAIN = Workload(prompts=20, batch=16, answer_tokens=11)


def test_the_drafter_as_it_is_takes_the_answers_and_one_pass_of_all_prompts() -> None:
    found = duration(TIMED, PLAIN)
    # Two batches of 3 s and ten more tokens, 20 states, one drafter, 20 drafts.
    assert found.least_s == found.most_s == 2 * (3 + 10 * 0.5) + 20 * 0.25 + 2 + 20 * 0.125


def test_repairs_take_between_the_screened_prompts_and_all() -> None:
    plain, found = duration(TIMED, PLAIN), duration(TIMED, replace(PLAIN, repairs=4, screened=8))
    assert found.least_s - plain.least_s == 4 * (2 + 8 * 0.125)
    assert found.most_s - plain.most_s == 4 * (2 + 20 * 0.125)


def test_no_repair_takes_more_prompts_than_there_are() -> None:
    found = duration(TIMED, replace(PLAIN, prompts=5, repairs=4, screened=8))
    assert found.least_s == found.most_s


def test_another_way_of_writing_asks_the_target_again_and_drafts_both_ways() -> None:
    plain, found = duration(TIMED, PLAIN), duration(TIMED, replace(PLAIN, renderings=1))
    again = 2 * (3 + 10 * 0.5) + 20 * 0.25
    assert found.least_s - plain.least_s == pytest.approx(again + 2 * (2 + 20 * 0.125))


def test_two_drafters_take_one_more_pass() -> None:
    plain, found = duration(TIMED, PLAIN), duration(TIMED, replace(PLAIN, drafters=2))
    assert found.most_s - plain.most_s == 2 + 20 * 0.125
