"""SGLang's own requests are told from those of users."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.answers import WordTokenizer
from support.schedules import ended_row

from driftscope.trace.records import RequestRow
from driftscope.trace.schema import Block
from driftscope.vocabulary import Region
from driftscope_probes.request_rows import EndedRequest
from driftscope_probes.sglang.scheduler import (
    Outcome,
    RequestRegions,
    RequestTokens,
    Served,
    StepTracker,
    WarmUp,
    is_own_name,
)


def request(**changed: Any) -> Any:
    sampling = {"top_k": 1, "temperature": 1.0, "max_new_tokens": 8}
    own = {key: changed.pop(key) for key in list(changed) if key in sampling}
    usual = {
        "rid": "a",
        "origin_input_text": "The capital city of France is",
        "origin_input_ids": [5, 6],
        "sampling_params": SimpleNamespace(**{**sampling, **own}),
    }
    return SimpleNamespace(**{**usual, **changed})


def test_the_first_request_with_the_content_of_the_warm_up_is_it() -> None:
    seen = WarmUp()
    seen.look(request(rid="HEALTH_CHECK_1", max_new_tokens=1))
    seen.look(request())
    seen.look(request(rid="b"))
    assert seen.name == "a"


def test_a_server_without_a_tokenizer_warms_up_with_token_ids() -> None:
    seen = WarmUp()
    seen.look(request(origin_input_text=None, origin_input_ids=[10, 11, 12]))
    assert seen.name == "a"


@pytest.mark.parametrize(
    "other",
    [
        {"origin_input_text": "The capital of France is"},
        {"max_new_tokens": 9},
        {"top_k": -1, "temperature": 0.5},
    ],
    ids=str,
)
def test_another_first_request_is_a_users(other: dict[str, Any]) -> None:
    seen = WarmUp()
    seen.look(request(**other))
    seen.look(request(rid="b"))
    assert seen.name == ""


def test_a_health_check_is_known_by_its_id() -> None:
    assert is_own_name("HEALTH_CHECK_17") and not is_own_name("a")


PROMPT = 10


def served(
    outputs: int, gained: int, *, drafted: int = 4, accepted: int = 0, decoding: bool = True
) -> Served:
    return Served(
        request="a",
        prompt=PROMPT,
        outputs=outputs,
        gained=gained,
        decoding=decoding,
        drafted=drafted,
        accepted=accepted,
    )


def finished(output_tokens: int, tokens: RequestTokens | None = None) -> EndedRequest:
    row = ended_row(time_s=9.0, arrival_s=1.0, prompt_tokens=PROMPT, output_tokens=output_tokens)
    own = RequestTokens(prompt_token_ids=[1], output_token_ids=[2])
    return EndedRequest(row=row, request=tokens or own)


def rows_of(*steps: tuple[float, Served]) -> tuple[list[dict[str, Any]], StepTracker]:
    errors: list[BaseException] = []
    tracker = StepTracker(lambda _, error: errors.append(error))
    seen = [Outcome(time_s=time_s, served=[request]) for time_s, request in steps]
    rows = tracker.rows([*seen])
    assert not errors
    if not rows:
        return [], tracker
    (block,) = rows
    assert isinstance(block, Block)
    columns = block.columns
    return [
        {name: columns[name][i] for name in columns}  # type: ignore[index]
        for i in range(block.rows)
    ], tracker


def test_a_prompt_is_no_verification() -> None:
    rows, _ = rows_of((2.0, served(0, 1, drafted=0)))
    assert rows == []


def test_a_round_is_joined_by_its_last_verified_slot() -> None:
    rows, _ = rows_of((2.0, served(0, 1, drafted=0)), (3.0, served(1, 3, accepted=2)))
    (row,) = rows
    assert (row["position"], row["drafted"], row["accepted"], row["reason"]) == (9, 4, 2, None)
    assert (row["step"], row["time_s"]) == (2, 3.0)


@pytest.mark.parametrize(("decoding", "reason"), [(False, "preempted"), (True, "no_draft")])
def test_a_token_without_a_draft_says_why(decoding: bool, reason: str) -> None:
    rows, _ = rows_of((3.0, served(5, 1, drafted=0, accepted=3, decoding=decoding)))
    assert [(r["drafted"], r["accepted"], r["reason"]) for r in rows] == [(0, 0, reason)]


@pytest.mark.parametrize(("tokens", "tpot_s"), [(1, None), (5, 0.5)])
def test_times_of_a_request(tokens: int, tpot_s: float | None) -> None:
    _, tracker = rows_of((2.0, served(0, 1, drafted=0)), (4.0, served(1, 4, accepted=3)))
    (row,) = tracker.rows([finished(tokens)])
    assert isinstance(row, RequestRow)
    assert (row.ttft_s, row.tpot_s) == (1.0, tpot_s)
    assert row.prompt_digest is None


TOKENIZER = WordTokenizer("word ", "<tool_call>", '{"a": 1}', "</tool_call>")


@pytest.mark.parametrize(
    ("tokenizer", "regions", "kinds"),
    [
        (TOKENIZER, RequestRegions(), ["prose", "template", "json", "template"]),
        (None, RequestRegions(), None),
        (TOKENIZER, None, None),
    ],
    ids=["with a tokenizer", "without one", "switched off"],
)
def test_an_answer_has_its_kinds_of_text(
    tokenizer: Any, regions: RequestRegions | None, kinds: list[str] | None
) -> None:
    tokens = RequestTokens(prompt_token_ids=[0], output_token_ids=[0, 1, 2, 3], tokenizer=tokenizer)
    errors: list[BaseException] = []
    tracker = StepTracker(lambda _, error: errors.append(error), None, regions)
    (row,) = tracker.rows([finished(4, tokens)])
    assert isinstance(row, RequestRow) and not errors
    codes = row.region_codes
    assert (None if codes is None else [Region.ALL[each] for each in codes]) == kinds
    assert (row.region_languages is None) == (kinds is None)


def test_a_tokenizer_that_fails_costs_the_kinds_and_not_the_row() -> None:
    tokens = RequestTokens(prompt_token_ids=[0], output_token_ids=[0], tokenizer=object())
    errors: list[str] = []
    tracker = StepTracker(lambda hook, _: errors.append(hook), None, RequestRegions())
    (row,) = tracker.rows([finished(1, tokens)])
    assert isinstance(row, RequestRow) and row.region_codes is None and errors == ["regions"]
