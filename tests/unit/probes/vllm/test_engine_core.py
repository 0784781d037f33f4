"""The engine core's hooks: verified rounds, requests and schedules."""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
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


K = 3


def scheduler_of(k: int = K, **more: Any) -> Any:
    """Return vLLM's scheduler, as far as it is read."""
    speculation = SimpleNamespace(draft_model_config=SimpleNamespace(max_model_len=100))
    config = SimpleNamespace(
        speculative_config=speculation if k else None,
        parallel_config=SimpleNamespace(data_parallel_index=0, data_parallel_rank=0),
    )
    return SimpleNamespace(
        vllm_config=config,
        max_model_len=100,
        max_num_scheduled_tokens=64,
        num_spec_tokens=k,
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
        **more,
    )


class Core:
    """An engine core with an observer, and no step."""

    def __init__(self, run: Path) -> None:
        create_run(run, manifest(Spec()))
        self.run, self.requests = run, dict[str, Request]()
        texts = SimpleNamespace(tokenizer=WordTokenizer(*TEXTS))
        scheduler = scheduler_of(requests=self.requests, structured_output_manager=texts)
        self.observer = EngineObserver(scheduler, Settings(trace=run))

    def add(self, *requests: Request) -> None:
        self.requests.update({added.request_id: added for added in requests})

    def rows(self) -> dict[str, dict[str, Any]]:
        """Close the trace and return the request rows by name."""
        self.observer.close()
        trace = read_trace(self.run)
        assert all(status.closed and not status.errors for status in trace.statuses)
        rows = trace.request.to_pylist()
        assert len({row["request"] for row in rows}) == len(rows)
        return {row["request"]: row for row in rows}


def names(codes: Sequence[int]) -> list[str]:
    return [Region.ALL[code] for code in codes]


@pytest.fixture
def core(tmp_path: Path) -> Core:
    return Core(tmp_path / "run")


def test_what_a_client_calls_a_request_is_text_of_bounded_length(core: Core) -> None:
    asked = Request("asked", CALL, "stop")
    asked.sampling_params.extra_args = {"driftscope_label": "a\ud800", "driftscope_pair": [7] * 999}
    asked.session_id, asked.trace_headers = 7, {"traceparent": "x" * 70_000}
    core.observer.request_finished(asked, delay_free_blocks=True)
    row = core.rows()["asked"]
    assert (row["label"], row["session"], len(row["pair"])) == ("a\ufffd", "7", 256)
    assert row["traceparent"] == "x" * 256


def test_a_step_is_observed_however_vllm_calls_its_methods(core: Core) -> None:
    scheduled = SimpleNamespace(num_scheduled_tokens={})
    output = SimpleNamespace(sampled_token_ids=[], req_id_to_index={})
    core.observer.before_update(scheduler_output=scheduled, model_runner_output=output)
    core.observer.before_update(scheduled, model_runner_output=output)
    core.observer.request_finished(request=Request("kept", CALL, "stop"))
    assert not core.observer._writer.status().errors
    core.observer.before_update(scheduled)
    assert core.observer._writer.status().errors == {"verify": 1}


def test_a_request_has_the_regions_of_what_it_answered_until_the_engine_stopped(core: Core) -> None:
    """vLLM keeps a request whose blocks another engine still reads: it has one row."""
    kept = Request("kept", CALL, "stop")
    core.observer.request_finished(Request("aborted", CALL[:3], "abort"))
    core.observer.request_finished(kept)
    core.add(kept, Request("running", [*CALL, 0]), Request("waiting", []))
    rows = core.rows()
    assert {name: (row["finish_reason"], row["output_tokens"]) for name, row in rows.items()} == {
        "aborted": ("abort", 3),
        "kept": ("stop", 4),
        "running": ("abort", 5),
        "waiting": ("abort", 0),
    }
    texts = ["prose", "template", "json", "template", "prose"]
    for name, count, boundaries in (
        ("aborted", 3, [1]),
        ("running", 5, [1, 4]),
        ("waiting", 0, []),
    ):
        row = rows[name]
        assert (row["region_starts"], row["region_boundaries"]) == ([*range(count)], boundaries)
        assert names(row["region_codes"]) == texts[:count]


def test_regions_that_take_too_long_at_the_end_are_not_recorded(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are written nevertheless, because vLLM kills the process soon."""
    monkeypatch.setattr("driftscope_probes.request_rows.AT_END_S", -1.0)
    core.add(Request("a", CALL))
    row = core.rows()["a"]
    assert (row["region_starts"], row["region_codes"], row["output_tokens"]) == (None, None, 4)


def test_requests_that_cannot_be_read_do_not_keep_the_trace_open(core: Core) -> None:
    core.add(Request("a", CALL))
    del core.requests["a"].sampling_params
    core.observer.close()
    (status,) = read_trace(core.run).statuses
    assert status.closed
    assert list(status.errors) == ["request"]


class Status(enum.IntEnum):
    """vLLM's RequestStatus, as far as it is read."""

    RUNNING = 1
    ABORTED = 2

    @staticmethod
    def is_finished(status: Status) -> bool:
        return status > Status.RUNNING


class FollowedCore:
    """An engine core whose steps are told one by one."""

    def __init__(self, k: int = K) -> None:
        self.errors: list[BaseException] = []
        self.tracker = VerificationTracker(
            scheduler_of(k), lambda _, error: self.errors.append(error)
        )
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
    assert second == {**first, "request": "b", "accepted": 0}
    assert followed_core.errors == []


def test_no_draft_has_a_reason(followed_core: FollowedCore) -> None:
    followed_core.began("a", "b")
    rows = followed_core.step({"a": (11, 1)}, drafted=0, going_on={"a": 10})
    followed_core.step({"a": (12, 1)}, asked_k=0, going_on={"a": 11})
    rows += followed_core.step({"a": (13, 1)}, drafted=0, going_on={"a": 12})
    rows += followed_core.step({"b": (11, 1)}, invalid={"b": K}, going_on={"b": 10})
    assert [_counts(row) for row in rows] == [
        (0, 0, 0, UndraftedReason.NO_DRAFT),
        (0, 0, 0, UndraftedReason.K_ZERO),
        (K, 0, 0, UndraftedReason.STRUCTURED_OUTPUT),
    ]


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


@pytest.mark.parametrize("limit", [None, 100], ids=["V2", "V1"])
def test_a_draft_near_the_context_limit_is_cut(
    followed_core: FollowedCore, limit: int | None
) -> None:
    """V2 drafts K there; V1 does not draft at all, for no request: it verifies zeros."""
    if limit is None:
        followed_core.tracker._limits.drafted_length = None
    followed_core.began("a", "b")
    followed_core.step({"a": (96, 1), "b": (20, 1)}, going_on={"a": 95, "b": 19})
    drafted = 2 if limit is None else K
    rows = followed_core.step(
        {"a": (97, 1), "b": (21, 1)}, drafted=drafted, going_on={"a": 96, "b": 20}
    )
    assert rows[0]["reason"] == UndraftedReason.CONTEXT_LIMIT
    if limit is None:
        assert _counts(rows[0])[:3] == (K, 2, 0)
    else:
        assert rows[1]["reason"] == UndraftedReason.CONTEXT_LIMIT


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
    rows = followed_core.step({"a": (13, 1)}, going_on={"a": 9})
    rows += followed_core.step({"a": (14, 2)}, going_on={"a": 13})
    assert [_counts(row) for row in rows] == [(0, 0, 0, UndraftedReason.PREEMPTED), (K, K, 1, None)]


def test_without_a_drafter_nothing_was_to_be_drafted() -> None:
    """Whatever happens to a request, and also where vLLM does not report the K that it asks for."""
    core = FollowedCore(k=0)
    none: dict[str, Any] = {"drafted": 0, "asked_k": None}
    assert not core.step({"a": (10, 1), "b": (10, 1)}, new={"a": (10,), "b": (10,)}, **none)
    rows = core.step({"a": (98, 1), "b": (11, 1)}, going_on={"a": 97, "b": 10}, **none)
    assert core.step({"b": (12, 0)}, going_on={"b": 0}, resumed={"b": 2}, **none) == []
    rows += core.step({"a": (99, 1), "b": (12, 1)}, going_on={"a": 98, "b": 9}, **none)
    assert [_counts(row) for row in rows] == [(0, 0, 0, UndraftedReason.K_ZERO)] * 4
    assert core.errors == []


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
    *, new: dict[str, int] | None = None, going_on: Any = None, resumed: tuple[str, ...] = ()
) -> Any:
    """Requests with the tokens that they have computed when the step begins."""
    begin = {name: (1, computed) for name, computed in (new or {}).items()}
    return schedule(new=begin, going_on=going_on, resumed=dict.fromkeys(resumed, 0))


def _drafted(cache: CacheFaultTracker, scheduled: Any, *, chunked: bool = False) -> set[str]:
    return set(cache.step(scheduled, drafted=True, chunked=chunked))


def test_after_a_chunk_every_hit_is_in_doubt() -> None:
    cache = CacheFaultTracker()
    assert _drafted(cache, _step(new={"x": 0, "y": 64})) == set(), "while nothing is wrong"
    assert _drafted(cache, _step(going_on={"x": 64}, resumed=("x",))) == set()
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


def _prefill_steps(prefills: PromptTracker, *steps: Any) -> list[set[str]]:
    """Return whose prompt goes on after each step."""
    return [set(prefills.step(step, prompt_lengths(step.scheduled_new_reqs))) for step in steps]


def _one_new(**request: Any) -> Any:
    step = schedule({"a": 9}, new={"a": (9,)})
    step.scheduled_new_reqs = [new_request("a", 9, **request)]
    return step


@pytest.mark.parametrize(
    ("steps", "going_on"),
    [
        ([schedule({"a": 9}, new={"a": (9,)}), schedule({"a": 4}, going_on={"a": 9})], [[], []]),
        (
            [
                schedule({"a": 9, "b": 4}, new={"a": (9,), "b": (10, 2)}),
                schedule({"a": 4, "b": 3}, going_on={"a": 9, "b": 6}),
                schedule({"a": 4}, going_on={"a": 10}),  # b has to wait
                schedule({"a": 4, "b": 1}, going_on={"a": 11, "b": 9}),
                schedule({"b": 1}, going_on={"b": 10}),
            ],
            [["b"], ["b"], [], [], []],
        ),
        (
            [
                schedule({"a": 9}, new={"a": (9,)}),
                schedule({"a": 9}, going_on={"a": 0}, resumed={"a": 3}),
                schedule({"a": 3}, going_on={"a": 9}),
            ],
            [[], ["a"], []],
        ),
        (
            [_one_new(prefill_token_ids=[0] * 12), schedule({"a": 3}, going_on={"a": 9})],
            [["a"], []],
        ),
        ([_one_new(prompt_token_ids=None, prompt_embeds=[[0.0]] * 10)], [["a"]]),
    ],
    ids=[
        "in one step",
        "in chunks until its last",
        "after a preemption its output is computed again too",
        "after a preemption on the V2 runner",
        "a prompt of embeddings has a length",
    ],
)
def test_a_prompt_goes_on(steps: list[Any], going_on: list[list[str]]) -> None:
    assert _prefill_steps(PromptTracker(), *steps) == [set(names) for names in going_on]


def test_prompts_that_are_aborted_or_old_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    prefills = PromptTracker()
    aborted = schedule(new={"b": (1,)}, finished=("a",))
    assert _prefill_steps(prefills, schedule({"a": 4}, new={"a": (9,)}), aborted) == [{"a"}, set()]
    assert not prefills._incomplete
    assert list(prefills._prompts) == ["b"]
    monkeypatch.setattr(schedule_module, "REMEMBERED_REQUESTS", 2)
    _prefill_steps(prefills, *[schedule(new={str(number): (9,)}) for number in range(5)])
    assert list(prefills._prompts) == list(prefills._incomplete) == ["3", "4"]


TOKENS = ("", "Well. ", "<tool_call>", '{"a": 1}', "</tool_call>", "<s>", "<think>")
TOKENIZER = WordTokenizer(*TOKENS, special=(5,))


def found_regions(
    core: Any, prompt: list[int] | None, answer: list[int], structured: str | None
) -> list[str]:
    request = Request("a", answer)
    request.prompt_token_ids = prompt
    found = regions_of(core).of(request, structured)
    assert found is not None and found.starts == list(range(len(found.codes)))
    return names(found.codes)


def scheduler(**manager: Any) -> Any:
    texts = SimpleNamespace(tokenizer=TOKENIZER, **manager)
    return SimpleNamespace(structured_output_manager=texts)


def test_marks_are_those_of_the_parsers_that_the_server_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["vllm", "serve", "M", "--tool-call-parser", "mistral"])
    core, named = scheduler(), SimpleNamespace(reasoning_parser="qwen3")
    core.vllm_config = SimpleNamespace(structured_outputs_config=named)
    assert parsers_of(core.vllm_config) == ("mistral", "qwen3")
    found = found_regions(core, [6], [1, 2, 3, 4], "none")
    assert found == ["thinking"], "no call of Hermes ends it"
    named.reasoning_parser = ""
    assert parsers_of(core.vllm_config) == ("mistral", None)


@pytest.mark.parametrize(
    ("prompt", "answer", "structured", "regions"),
    [
        ([1], [1, 2, 3, 4, 1], "none", ["prose", "template", "json", "template", "prose"]),
        *(([1], [1, 1], kind, ["json"]) for kind in ("json", "json_object")),
        *(([1], [1, 1], kind, ["guided"]) for kind in ("regex", "choice", "grammar")),
        *(([1], [1, 1], kind, ["prose"]) for kind in ("structural_tag", "none", None)),
        (None, [1], None, ["prose"]),  # a prompt of embeddings has no tokens
    ],
)
def test_an_answer_has_the_region_of_its_text_or_its_constraint(
    prompt: list[int] | None, answer: list[int], structured: str | None, regions: list[str]
) -> None:
    assert found_regions(scheduler(), prompt, answer, structured) == regions


@pytest.mark.parametrize(
    ("manager", "region"),
    [({}, "thinking"), ({"reasoner_cls": None}, "guided"), ({"reasoner_cls": str}, "thinking")],
)
def test_without_a_reasoning_parser_a_constraint_holds_from_the_first_token(
    manager: dict[str, Any], region: str
) -> None:
    """The prompt has opened thinking, which the answer does not close."""
    assert found_regions(scheduler(**manager), [6], [1], "regex") == [region]


@pytest.mark.parametrize("parts", [{}, {"structured_output_manager": SimpleNamespace()}])
def test_without_a_tokenizer_nothing_is_recorded(parts: dict[str, Any]) -> None:
    assert regions_of(SimpleNamespace(**parts)).of(Request("a", [1]), None) is None
