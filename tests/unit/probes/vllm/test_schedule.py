"""Whose slots in the drafter's cache are in doubt on vLLM's V1 runner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.answers import WordTokenizer
from support.schedules import new_request, schedule

from driftscope.vocabulary import Region
from driftscope_probes.vllm import schedule as module
from driftscope_probes.vllm.schedule import (
    KEPT_STEPS,
    CacheFaultTracker,
    PromptTracker,
    RequestRegions,
    prompt_lengths,
)


def _step(
    *,
    new: dict[str, int] | None = None,
    going_on: dict[str, int] | None = None,
    resumed: tuple[str, ...] = (),
) -> Any:
    """Requests with the tokens that they have computed when the step begins."""
    return schedule(
        new={name: (1, computed) for name, computed in (new or {}).items()},
        going_on=going_on,
        resumed=dict.fromkeys(resumed, 0),
    )


def _drafted(cache: CacheFaultTracker, scheduled: Any, *, chunked: bool = False) -> set[str]:
    return set(cache.step(scheduled, drafted=True, chunked=chunked))


def test_a_hit_is_in_no_doubt_while_nothing_is_wrong() -> None:
    cache = CacheFaultTracker()
    assert _drafted(cache, _step(new={"a": 0, "b": 64})) == set()
    assert _drafted(cache, _step(going_on={"a": 64}, resumed=("a",))) == set()


def test_after_a_chunk_every_hit_is_in_doubt() -> None:
    cache = CacheFaultTracker()
    assert _drafted(cache, _step(new={"a": 0}), chunked=True) == set()
    assert _drafted(cache, _step(new={"b": 64, "c": 0}, going_on={"a": 90})) == {"b"}
    resumed = _step(going_on={"a": 32, "b": 0, "c": 70}, resumed=("a", "b"))
    assert _drafted(cache, resumed) == {"a"}, "b begins from nothing"
    assert _drafted(cache, _step(going_on={"a": 40, "c": 71})) == set(), "said once"


def test_whoever_ran_without_the_drafter_has_holes() -> None:
    cache = CacheFaultTracker()
    assert _drafted(cache, _step(new={"a": 0, "b": 64})) == set()
    assert cache.step(_step(going_on={"a": 60, "b": 90}), drafted=False, chunked=False) == ()
    assert _drafted(cache, _step(going_on={"b": 91}, new={"c": 0, "d": 64})) == {"a", "b", "d"}


def test_memory_is_bounded_where_the_drafter_never_runs() -> None:
    cache = CacheFaultTracker()
    for number in range(KEPT_STEPS + 9):
        cache.step(_step(going_on={str(number): 1}), drafted=False, chunked=False)
    assert len(_drafted(cache, _step())) == KEPT_STEPS - 1


def _prefill_step(prefills: PromptTracker, scheduled: Any) -> frozenset[str]:
    return prefills.step(scheduled, prompt_lengths(scheduled.scheduled_new_reqs))


def test_a_prompt_in_one_step_does_not_go_on() -> None:
    prefills = PromptTracker()
    assert _prefill_step(prefills, schedule({"a": 9}, new={"a": (9,)})) == set()
    assert _prefill_step(prefills, schedule({"a": 4}, going_on={"a": 9})) == set()


def test_a_prompt_in_chunks_goes_on_until_its_last() -> None:
    prefills = PromptTracker()
    assert _prefill_step(prefills, schedule({"a": 9, "b": 4}, new={"a": (9,), "b": (10, 2)})) == {
        "b"
    }
    assert _prefill_step(prefills, schedule({"a": 4, "b": 3}, going_on={"a": 9, "b": 6})) == {"b"}
    assert _prefill_step(prefills, schedule({"a": 4}, going_on={"a": 10})) == set(), "b has to wait"
    assert _prefill_step(prefills, schedule({"a": 4, "b": 1}, going_on={"a": 11, "b": 9})) == set()
    assert _prefill_step(prefills, schedule({"b": 1}, going_on={"b": 10})) == set()


def test_after_a_preemption_its_output_is_computed_again_too() -> None:
    prefills = PromptTracker()
    _prefill_step(prefills, schedule({"a": 9}, new={"a": (9,)}))
    resumed = schedule({"a": 9}, going_on={"a": 0}, resumed={"a": 3})
    assert _prefill_step(prefills, resumed) == {"a"}
    assert _prefill_step(prefills, schedule({"a": 3}, going_on={"a": 9})) == set()


def test_after_a_preemption_on_the_v2_runner() -> None:
    prefills, again = PromptTracker(), schedule({"a": 9}, new={"a": (9,)})
    again.scheduled_new_reqs = [new_request("a", 9, prefill_token_ids=[0] * 12)]
    assert _prefill_step(prefills, again) == {"a"}
    assert _prefill_step(prefills, schedule({"a": 3}, going_on={"a": 9})) == set()


def test_a_prompt_of_embeddings_has_a_length() -> None:
    prefills, step = PromptTracker(), schedule({"a": 3}, new={"a": (0,)})
    step.scheduled_new_reqs[0].prompt_token_ids = None
    step.scheduled_new_reqs[0].prompt_embeds = [[0.0]] * 4
    assert _prefill_step(prefills, step) == {"a"}


def test_whoever_is_aborted_in_its_prompt_is_forgotten() -> None:
    prefills = PromptTracker()
    assert _prefill_step(prefills, schedule({"a": 4}, new={"a": (9,)})) == {"a"}
    assert _prefill_step(prefills, schedule(new={"b": (1,)}, finished=("a",))) == set()
    assert not prefills._incomplete
    assert list(prefills._prompts) == ["b"]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_REQUESTS", 2)
    prefills = PromptTracker()
    for number in range(5):
        _prefill_step(prefills, schedule(new={str(number): (9,)}))
    assert list(prefills._prompts) == list(prefills._incomplete) == ["3", "4"]


TEXTS = ("", "Well. ", "<tool_call>", '{"a": 1}', "</tool_call>", "<s>", "<think>")
TOKENIZER = WordTokenizer(*TEXTS, special=(5,))


def request(prompt: list[int] | None, answer: list[int]) -> Any:
    return SimpleNamespace(prompt_token_ids=prompt, output_token_ids=answer)


def scheduler(tokenizer: Any) -> Any:
    return SimpleNamespace(structured_output_manager=SimpleNamespace(tokenizer=tokenizer))


def names(codes: list[int]) -> list[str]:
    return [Region.ALL[each] for each in codes]


def test_an_answer_has_its_regions() -> None:
    found = RequestRegions(scheduler(TOKENIZER)).of(request([1], [1, 2, 3, 4, 1]), "none")
    assert found is not None
    assert found.starts == [0, 1, 2, 3, 4]
    assert names(found.codes) == ["prose", "template", "json", "template", "prose"]
    assert found.boundaries == [1, 4]


@pytest.mark.parametrize(
    ("structured", "region"),
    [
        *((kind, "json") for kind in ("json", "json_object")),
        *((kind, "guided") for kind in ("regex", "choice", "grammar")),
        *((kind, "prose") for kind in ("structural_tag", "none", None)),
    ],
)
def test_a_constrained_answer_has_the_region_of_its_constraint(
    structured: str | None, region: str
) -> None:
    found = RequestRegions(scheduler(TOKENIZER)).of(request([1], [1, 1]), structured)
    assert found is not None
    assert names(found.codes) == [region]


@pytest.mark.parametrize(
    ("manager", "region"),
    [({}, "thinking"), ({"reasoner_cls": None}, "guided"), ({"reasoner_cls": str}, "thinking")],
)
def test_without_a_reasoning_parser_a_constraint_holds_from_the_first_token(
    manager: dict[str, Any], region: str
) -> None:
    """The prompt has opened thinking, which the answer does not close."""
    core = scheduler(TOKENIZER)
    vars(core.structured_output_manager).update(manager)
    found = RequestRegions(core).of(request([6], [1]), "regex")
    assert found is not None
    assert names(found.codes) == [region]


def test_without_a_tokenizer_nothing_is_recorded() -> None:
    for each in (SimpleNamespace(), SimpleNamespace(structured_output_manager=SimpleNamespace())):
        assert RequestRegions(each).of(request([1], [1]), None) is None


def test_a_prompt_of_embeddings_has_no_tokens() -> None:
    found = RequestRegions(scheduler(TOKENIZER)).of(request(None, [1]), None)
    assert found is not None
    assert names(found.codes) == ["prose"]
