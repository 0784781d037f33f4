"""Whose prompt goes on, told from schedules."""

from __future__ import annotations

from typing import Any

import pytest
from support.schedules import new_request, schedule

from driftscope_probes.vllm import schedule as module
from driftscope_probes.vllm.schedule import PromptTracker, prompt_lengths


def _step(prefills: PromptTracker, scheduled: Any) -> frozenset[str]:
    return prefills.step(scheduled, prompt_lengths(scheduled.scheduled_new_reqs))


def test_a_prompt_in_one_step_does_not_go_on() -> None:
    prefills = PromptTracker()
    assert _step(prefills, schedule({"a": 9}, new={"a": (9,)})) == set()
    assert _step(prefills, schedule({"a": 4}, going_on={"a": 9})) == set()


def test_a_prompt_in_chunks_goes_on_until_its_last() -> None:
    prefills = PromptTracker()
    assert _step(prefills, schedule({"a": 9, "b": 4}, new={"a": (9,), "b": (10, 2)})) == {"b"}
    assert _step(prefills, schedule({"a": 4, "b": 3}, going_on={"a": 9, "b": 6})) == {"b"}
    assert _step(prefills, schedule({"a": 4}, going_on={"a": 10})) == set(), "b has to wait"
    assert _step(prefills, schedule({"a": 4, "b": 1}, going_on={"a": 11, "b": 9})) == set()
    assert _step(prefills, schedule({"b": 1}, going_on={"b": 10})) == set()


def test_after_a_preemption_its_output_is_computed_again_too() -> None:
    prefills = PromptTracker()
    _step(prefills, schedule({"a": 9}, new={"a": (9,)}))
    resumed = schedule({"a": 9}, going_on={"a": 0}, resumed={"a": 3})
    assert _step(prefills, resumed) == {"a"}
    assert _step(prefills, schedule({"a": 3}, going_on={"a": 9})) == set()


def test_after_a_preemption_on_the_v2_runner() -> None:
    prefills, again = PromptTracker(), schedule({"a": 9}, new={"a": (9,)})
    again.scheduled_new_reqs = [new_request("a", 9, prefill_token_ids=[0] * 12)]
    assert _step(prefills, again) == {"a"}
    assert _step(prefills, schedule({"a": 3}, going_on={"a": 9})) == set()


def test_a_list_that_grows_has_the_length_of_then() -> None:
    prefills, scheduled = PromptTracker(), schedule({"a": 9}, new={"a": (9,)})
    lengths = prompt_lengths(scheduled.scheduled_new_reqs)
    scheduled.scheduled_new_reqs[0].prompt_token_ids.append(0)
    assert prefills.step(scheduled, lengths) == set()


def test_a_prompt_of_embeddings_has_a_length() -> None:
    prefills, step = PromptTracker(), schedule({"a": 3}, new={"a": (0,)})
    step.scheduled_new_reqs[0].prompt_token_ids = None
    step.scheduled_new_reqs[0].prompt_embeds = [[0.0]] * 4
    assert _step(prefills, step) == {"a"}


def test_a_name_that_is_used_again_is_another_request() -> None:
    prefills = PromptTracker()
    assert _step(prefills, schedule({"a": 4}, new={"a": (9,)})) == {"a"}
    again = schedule({"a": 5}, new={"a": (5,)}, finished=("a",))
    assert _step(prefills, again) == set()


def test_whoever_is_aborted_in_its_prompt_is_forgotten() -> None:
    prefills = PromptTracker()
    assert _step(prefills, schedule({"a": 4}, new={"a": (9,)})) == {"a"}
    assert _step(prefills, schedule(new={"b": (1,)}, finished=("a",))) == set()
    assert not prefills._incomplete
    assert list(prefills._prompts) == ["b"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_REQUESTS", 2)
    prefills = PromptTracker()
    for number in range(5):
        _step(prefills, schedule(new={str(number): (9,)}))
    assert list(prefills._prompts) == list(prefills._incomplete) == ["3", "4"]
