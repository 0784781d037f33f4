"""Whose prompt goes on, told from schedules."""

from __future__ import annotations

import pytest
from support.schedules import new_request, schedule

from driftscope_probes import prefills as module
from driftscope_probes.prefills import Prefills


def test_a_prompt_in_one_step_does_not_go_on() -> None:
    prefills = Prefills()
    assert prefills.step(schedule({"a": 9}, new={"a": (9,)})) == set()
    assert prefills.step(schedule({"a": 4}, going_on={"a": 9})) == set()


def test_a_prompt_in_chunks_goes_on_until_its_last() -> None:
    prefills = Prefills()
    assert prefills.step(schedule({"a": 9, "b": 4}, new={"a": (9,), "b": (10, 2)})) == {"b"}
    assert prefills.step(schedule({"a": 4, "b": 3}, going_on={"a": 9, "b": 6})) == {"b"}
    assert prefills.step(schedule({"a": 4}, going_on={"a": 10})) == set(), "b has to wait"
    assert prefills.step(schedule({"a": 4, "b": 1}, going_on={"a": 11, "b": 9})) == set()
    assert prefills.step(schedule({"b": 1}, going_on={"b": 10})) == set()


def test_after_a_preemption_its_output_is_computed_again_too() -> None:
    prefills = Prefills()
    prefills.step(schedule({"a": 9}, new={"a": (9,)}))
    resumed = schedule({"a": 9}, going_on={"a": 0}, resumed={"a": 3})
    assert prefills.step(resumed) == {"a"}
    assert prefills.step(schedule({"a": 3}, going_on={"a": 9})) == set()


def test_after_a_preemption_on_the_v2_runner() -> None:
    prefills, again = Prefills(), schedule({"a": 9}, new={"a": (9,)})
    again.scheduled_new_reqs = [new_request("a", 9, prefill_token_ids=[0] * 12)]
    assert prefills.step(again) == {"a"}
    assert prefills.step(schedule({"a": 3}, going_on={"a": 9})) == set()


def test_a_prompt_of_embeddings_has_a_length() -> None:
    prefills, step = Prefills(), schedule({"a": 3}, new={"a": (0,)})
    step.scheduled_new_reqs[0].prompt_token_ids = None
    step.scheduled_new_reqs[0].prompt_embeds = [[0.0]] * 4
    assert prefills.step(step) == {"a"}


def test_a_name_that_is_used_again_is_another_request() -> None:
    prefills = Prefills()
    assert prefills.step(schedule({"a": 4}, new={"a": (9,)})) == {"a"}
    again = schedule({"a": 5}, new={"a": (5,)}, finished=("a",))
    assert prefills.step(again) == set()


def test_whoever_is_aborted_in_its_prompt_is_forgotten() -> None:
    prefills = Prefills()
    assert prefills.step(schedule({"a": 4}, new={"a": (9,)})) == {"a"}
    assert prefills.step(schedule(new={"b": (1,)}, finished=("a",))) == set()
    assert not prefills._incomplete
    assert list(prefills._prompts) == ["b"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_REQUESTS", 2)
    prefills = Prefills()
    for number in range(5):
        prefills.step(schedule(new={str(number): (9,)}))
    assert list(prefills._prompts) == list(prefills._incomplete) == ["3", "4"]
