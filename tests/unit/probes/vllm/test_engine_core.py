"""The engine core's hooks: verified rounds, requests and schedules."""

from __future__ import annotations

import enum
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.answers import WordTokenizer
from support.runs import Spec, manifest
from support.schedules import ended_row, new_request, schedule

from driftscope.trace.reader import read_trace
from driftscope.trace.records import RequestRow
from driftscope.trace.schema import Block
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import Region, UndraftedReason
from driftscope_probes.request_rows import EndedRequest
from driftscope_probes.settings import Settings
from driftscope_probes.vllm import engine_core
from driftscope_probes.vllm import schedule as schedule_module
from driftscope_probes.vllm.engine_core import EngineObserver, VerificationTracker
from driftscope_probes.vllm.schedule import (
    KEPT_STEPS,
    CacheFaultTracker,
    PromptTracker,
    parsers_of,
    prompt_lengths,
    regions_of,
)

TEXTS = ("Well. ", "<tool_call>", '{"a": 1}', "</tool_call>")
CALL = [0, 1, 2, 3]


class Request(SimpleNamespace):
    """vLLM's Request, as far as it is read."""

    def __init__(self, name: str, answer: list[int], ended: str | None = None) -> None:
        super().__init__(
            request_id=name,
            sampling_params=SimpleNamespace(extra_args=None, temperature=0.0, max_tokens=9),
            arrival_time=time.time(),
            prompt_token_ids=[0, 0],
            num_prompt_tokens=2,
            output_token_ids=answer,
            num_output_tokens=len(answer),
            ended=ended,
        )

    def is_finished(self) -> bool:
        return self.ended is not None

    def get_finished_reason(self) -> str | None:
        return self.ended


class Core:
    """An engine core with an observer, and no step."""

    def __init__(self, run: Path, **settings: Any) -> None:
        create_run(run, manifest(Spec()))
        self.run, self.requests = run, dict[str, Request]()
        speculation = SimpleNamespace(draft_model_config=SimpleNamespace(max_model_len=100))
        config = SimpleNamespace(
            speculative_config=speculation,
            parallel_config=SimpleNamespace(data_parallel_index=0, data_parallel_rank=0),
        )
        scheduler = SimpleNamespace(
            vllm_config=config,
            requests=self.requests,
            max_model_len=100,
            max_num_scheduled_tokens=64,
            num_spec_tokens=3,
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
            structured_output_manager=SimpleNamespace(tokenizer=WordTokenizer(*TEXTS)),
        )
        self.observer = EngineObserver(scheduler, Settings(trace=run, **settings))

    def add(self, *requests: Request) -> None:
        self.requests.update({added.request_id: added for added in requests})

    def rows(self) -> dict[str, dict[str, Any]]:
        """Close the trace and return the request rows by name."""
        self.observer.close()
        trace = read_trace(self.run)
        assert not [error for status in trace.statuses for error in status.errors]
        assert all(status.closed for status in trace.statuses)
        return {row["request"]: row for row in trace.request.to_pylist()}


def names(row: dict[str, Any]) -> list[str]:
    return [Region.ALL[code] for code in row["region_codes"]]


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return Core(tmp_path / "run")


def test_an_aborted_request_has_the_regions_of_what_it_answered(core: Core) -> None:
    core.observer.request_finished(Request("a", CALL[:3], "abort"))
    row = core.rows()["a"]
    assert names(row) == ["prose", "template", "json"]
    assert (row["region_starts"], row["region_boundaries"]) == ([0, 1, 2], [1])
    assert (row["finish_reason"], row["output_tokens"]) == ("abort", 3)


def test_a_request_that_runs_when_the_engine_stops_has_them_too(core: Core) -> None:
    core.add(Request("a", CALL), Request("b", []))
    rows = core.rows()
    assert names(rows["a"]) == ["prose", "template", "json", "template"]
    assert rows["b"]["region_starts"] == []
    assert {row["finish_reason"] for row in rows.values()} == {"abort"}


def test_a_request_that_ended_and_is_still_held_has_one_row(core: Core) -> None:
    """vLLM keeps a request whose blocks another engine still reads."""
    ended = Request("a", CALL, "stop")
    core.add(ended)
    core.observer.request_finished(ended)
    assert core.rows()["a"]["finish_reason"] == "stop"
    assert read_trace(core.run).request.num_rows == 1


def test_regions_that_take_too_long_at_the_end_are_not_recorded(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are written nevertheless, because vLLM kills the process soon."""
    monkeypatch.setattr("driftscope_probes.request_rows.AT_END_S", -1.0)
    core.add(Request("a", CALL))
    row = core.rows()["a"]
    assert (row["region_starts"], row["region_codes"]) == (None, None)
    assert row["output_tokens"] == 4


def test_requests_that_cannot_be_read_do_not_keep_the_trace_open(core: Core) -> None:
    core.add(Request("a", CALL))
    del core.requests["a"].sampling_params
    core.observer.close()
    (status,) = read_trace(core.run).statuses
    assert status.closed
    assert list(status.errors) == ["request"]


K = 3


class Status(enum.IntEnum):
    """vLLM's RequestStatus, as far as it is read."""

    RUNNING = 1
    ABORTED = 2

    @staticmethod
    def is_finished(status: Status) -> bool:
        return status > Status.RUNNING


class FollowedCore:
    """An engine core whose steps are told one by one."""

    def __init__(self, *, speculates: bool = True) -> None:
        speculation = SimpleNamespace(draft_model_config=SimpleNamespace(max_model_len=100))
        speculation = speculation if speculates else None
        scheduler = SimpleNamespace(
            vllm_config=SimpleNamespace(speculative_config=speculation),
            max_model_len=100,
            max_num_scheduled_tokens=64,
            num_spec_tokens=K if speculates else 0,
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
        )
        self.errors: list[BaseException] = []
        self.tracker = VerificationTracker(scheduler, lambda _, error: self.errors.append(error))
        self.now = 0.0

    def step(
        self,
        served: dict[str, tuple[int, int]],
        *,
        drafted: int = K,
        asked_k: int | None = K,
        invalid: dict[str, int] | None = None,
        status: Status = Status.RUNNING,
        admitted: dict[str, int] | None = None,
        structured: bool = False,
        **scheduled: Any,
    ) -> list[dict[str, Any]]:
        """Rows; `served`: request -> (its length before, tokens given); prompts are 10 long."""
        self.now += 1.0
        step = schedule(dict.fromkeys(served, drafted + 1), **scheduled)
        step.scheduled_spec_decode_tokens = dict.fromkeys(served, [0] * drafted) if drafted else {}
        step.num_invalid_spec_tokens = invalid
        step.num_spec_tokens_to_schedule = asked_k
        step.total_num_scheduled_tokens = sum(step.num_scheduled_tokens.values())
        plain = {"use_structured_output": structured}
        of = [
            (SimpleNamespace(request_id=name, **plain), length, 10, status, tokens)
            for name, (length, tokens) in served.items()
        ]
        blocks = self.tracker.rows([(self.now, step, of, admitted)])
        assert all(isinstance(block, Block) for block in blocks)
        return [row for block in blocks for row in block.to_batch().to_pylist()]  # type: ignore[union-attr]

    def began(self, *names: str) -> None:
        """Prompts, which give the first token and verify nothing."""
        assert not self.step(
            dict.fromkeys(names, (10, 1)), drafted=0, new=dict.fromkeys(names, (10,))
        )


@pytest.fixture
def followed_core() -> FollowedCore:
    return FollowedCore()


def test_a_row_for_each_request_that_verified(followed_core: FollowedCore) -> None:
    followed_core.began("a", "b")
    first, second = followed_core.step({"a": (11, 3), "b": (11, 1)}, going_on={"a": 10, "b": 10})
    assert first == {
        "step": 2,
        "time_s": 2.0,
        "request": "a",
        "position": 9,
        "drafted": K,
        "verified": K,
        "accepted": 2,
        "reason": None,
        "replica": 0,
    }
    assert (second["request"], second["verified"], second["accepted"]) == ("b", K, 0)
    assert followed_core.errors == []


def test_no_draft_has_a_reason(followed_core: FollowedCore) -> None:
    followed_core.began("a", "b")
    rows = followed_core.step({"a": (11, 1)}, drafted=0, going_on={"a": 10})
    assert [(row["drafted"], row["reason"]) for row in rows] == [(0, UndraftedReason.NO_DRAFT)]
    followed_core.step({"a": (12, 1)}, asked_k=0, going_on={"a": 11})
    (row,) = followed_core.step({"a": (13, 1)}, drafted=0, going_on={"a": 12})
    assert row["reason"] == UndraftedReason.K_ZERO
    (row,) = followed_core.step({"b": (11, 1)}, invalid={"b": K}, going_on={"b": 10})
    assert _counts(row) == (K, 0, 0, UndraftedReason.STRUCTURED_OUTPUT)


def _counts(row: dict[str, Any]) -> tuple[int, int, int, str | None]:
    return row["drafted"], row["verified"], row["accepted"], row["reason"]


@pytest.mark.parametrize(
    ("step", "counts"),
    [
        ({"invalid": {"a": 1}}, (K, K - 1, 1, UndraftedReason.STRUCTURED_OUTPUT)),
        ({"drafted": 1, "structured": True}, (K, 1, 1, UndraftedReason.STRUCTURED_OUTPUT)),
        ({"drafted": 1, "budget": 2}, (K, 1, 1, UndraftedReason.TOKEN_BUDGET)),
        ({"admitted": {"a": 1}}, (K, 1, 1, UndraftedReason.CONFIDENCE)),
        ({"admitted": {"a": 0}, "tokens": 1}, (K, 0, 0, UndraftedReason.CONFIDENCE)),
        ({"admitted": {"a": K}}, (K, K, 1, None)),
        ({"drafted": 1}, (1, 1, 1, None)),
    ],
)
def test_drafted_verified_and_accepted_are_three_counts(
    followed_core: FollowedCore, step: dict[str, Any], counts: tuple[int, int, int, str | None]
) -> None:
    followed_core.began("a")
    tokens = step.pop("tokens", 2)
    followed_core.tracker._limits.tokens = step.pop("budget", 64)
    (row,) = followed_core.step({"a": (11, tokens)}, going_on={"a": 10}, **step)
    assert _counts(row) == counts


def test_a_draft_near_the_context_limit_is_cut(followed_core: FollowedCore) -> None:
    """V2 drafts K there; V1 does not draft at all."""
    followed_core.tracker._limits.drafted_length = None
    followed_core.began("a")
    followed_core.step({"a": (96, 1)}, going_on={"a": 95})
    (row,) = followed_core.step({"a": (97, 1)}, drafted=2, going_on={"a": 96})
    assert _counts(row) == (K, 2, 0, UndraftedReason.CONTEXT_LIMIT)


def test_a_smaller_k_by_batch_size_cuts_no_draft(followed_core: FollowedCore) -> None:
    followed_core.began("a")
    followed_core.step({"a": (11, 1)}, asked_k=1, going_on={"a": 10})
    (row,) = followed_core.step({"a": (12, 1)}, drafted=1, going_on={"a": 11})
    assert _counts(row) == (1, 1, 0, None)


def test_the_first_output_after_a_preemption_verifies_no_draft(followed_core: FollowedCore) -> None:
    followed_core.began("a")
    followed_core.step({"a": (11, 2)}, going_on={"a": 10})
    back: dict[str, Any] = {"going_on": {"a": 0}, "resumed": {"a": 3}}
    assert followed_core.step({"a": (13, 0)}, drafted=0, **back) == []
    (row,) = followed_core.step({"a": (13, 1)}, going_on={"a": 9})
    assert (row["drafted"], row["reason"]) == (0, UndraftedReason.PREEMPTED)
    (row,) = followed_core.step({"a": (14, 2)}, going_on={"a": 13})
    assert (row["verified"], row["accepted"]) == (K, 1)


def test_without_a_drafter_nothing_was_to_be_drafted() -> None:
    """Whatever happens to a request, and also where vLLM does not report the K that it asks for."""
    core = FollowedCore(speculates=False)
    none: dict[str, Any] = {"drafted": 0, "asked_k": None}
    assert not core.step({"a": (10, 1), "b": (10, 1)}, new={"a": (10,), "b": (10,)}, **none)
    rows = core.step({"a": (98, 1), "b": (11, 1)}, going_on={"a": 97, "b": 10}, **none)
    assert core.step({"b": (12, 0)}, going_on={"b": 0}, resumed={"b": 2}, **none) == []
    rows += core.step({"a": (99, 1), "b": (12, 1)}, going_on={"a": 98, "b": 9}, **none)
    assert [_counts(row) for row in rows] == [(0, 0, 0, UndraftedReason.K_ZERO)] * 4
    assert core.errors == []


def test_the_context_limit_stops_drafts_for_all(followed_core: FollowedCore) -> None:
    followed_core.began("a", "b")
    followed_core.step({"a": (96, 1), "b": (20, 1)}, going_on={"a": 95, "b": 19})
    rows = followed_core.step({"a": (97, 1), "b": (21, 1)}, going_on={"a": 96, "b": 20})
    assert [row["reason"] for row in rows] == [UndraftedReason.CONTEXT_LIMIT] * 2, "zeros verified"


def test_times_of_a_request_that_ended(followed_core: FollowedCore) -> None:
    followed_core.began("a")
    for length in (11, 13, 15):
        followed_core.step({"a": (length, 2)}, going_on={"a": length - 1})
    row = ended_row(time_s=5.0, arrival_s=0.25, prompt_tokens=10, output_tokens=7)
    (ended,) = followed_core.tracker.rows([EndedRequest(row=row, request=None)])
    assert isinstance(ended, RequestRow)
    assert (ended.ttft_s, ended.tpot_s) == (0.75, 3.0 / 6)


def test_a_step_that_cannot_be_read_costs_its_own_rows(followed_core: FollowedCore) -> None:
    followed_core.began("a")
    assert followed_core.tracker.rows([(2.0, object(), [], None)]) == []
    assert [type(error) for error in followed_core.errors] == [AttributeError]
    assert len(followed_core.step({"a": (11, 2)}, going_on={"a": 10})) == 1


def test_memory_is_bounded(followed_core: FollowedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_core, "REMEMBERED_REQUESTS", 2)
    followed_core.began(*"abcde")
    assert list(followed_core.tracker._live) == ["d", "e"]


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


def test_memory_of_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "REMEMBERED_REQUESTS", 2)
    prefills = PromptTracker()
    for number in range(5):
        _prefill_step(prefills, schedule(new={str(number): (9,)}))
    assert list(prefills._prompts) == list(prefills._incomplete) == ["3", "4"]


TOKENS = ("", "Well. ", "<tool_call>", '{"a": 1}', "</tool_call>", "<s>", "<think>")
TOKENIZER = WordTokenizer(*TOKENS, special=(5,))


def request(prompt: list[int] | None, answer: list[int]) -> Any:
    return SimpleNamespace(prompt_token_ids=prompt, output_token_ids=answer)


def scheduler(tokenizer: Any) -> Any:
    return SimpleNamespace(structured_output_manager=SimpleNamespace(tokenizer=tokenizer))


def regions(codes: list[int]) -> list[str]:
    return [Region.ALL[code] for code in codes]


def test_marks_are_those_of_the_parsers_that_the_server_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["vllm", "serve", "M", "--tool-call-parser", "mistral"])
    core = scheduler(TOKENIZER)
    core.vllm_config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(reasoning_parser="qwen3")
    )
    assert parsers_of(core.vllm_config) == ("mistral", "qwen3")
    found = regions_of(core).of(request([6], [1, 2, 3, 4]), "none")
    assert found is not None
    assert regions(found.codes) == ["thinking"], "no call of Hermes ends it"
    core.vllm_config.structured_outputs_config.reasoning_parser = ""
    assert parsers_of(core.vllm_config) == ("mistral", None)


def test_an_answer_has_its_regions() -> None:
    found = regions_of(scheduler(TOKENIZER)).of(request([1], [1, 2, 3, 4, 1]), "none")
    assert found is not None
    assert found.starts == [0, 1, 2, 3, 4]
    assert regions(found.codes) == ["prose", "template", "json", "template", "prose"]
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
    found = regions_of(scheduler(TOKENIZER)).of(request([1], [1, 1]), structured)
    assert found is not None
    assert regions(found.codes) == [region]


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
    found = regions_of(core).of(request([6], [1]), "regex")
    assert found is not None
    assert regions(found.codes) == [region]


def test_without_a_tokenizer_nothing_is_recorded() -> None:
    for without in (
        SimpleNamespace(),
        SimpleNamespace(structured_output_manager=SimpleNamespace()),
    ):
        assert regions_of(without).of(request([1], [1]), None) is None


def test_a_prompt_of_embeddings_has_no_tokens() -> None:
    found = regions_of(scheduler(TOKENIZER)).of(request(None, [1]), None)
    assert found is not None
    assert regions(found.codes) == ["prose"]
