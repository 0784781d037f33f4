"""Outcomes of drafts, derived from steps as the engine core saw them."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import pytest
from support.schedules import schedule

from driftscope.trace.records import RequestRow
from driftscope.trace.schema import Block
from driftscope.vocabulary import UndraftedReason
from driftscope_probes.vllm import engine_core as module
from driftscope_probes.vllm.engine_core import EndedRequest, VerificationTracker

K = 3


class Status(enum.IntEnum):
    """vLLM's RequestStatus, as far as it is read."""

    RUNNING = 1
    ABORTED = 2

    @staticmethod
    def is_finished(status: Status) -> bool:
        return status > Status.RUNNING


class Core:
    """An engine core whose steps are told one by one."""

    def __init__(self) -> None:
        speculation = SimpleNamespace(draft_model_config=SimpleNamespace(max_model_len=100))
        scheduler = SimpleNamespace(
            vllm_config=SimpleNamespace(speculative_config=speculation),
            max_model_len=100,
            max_num_scheduled_tokens=64,
            num_spec_tokens=K,
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
        )
        self.errors: list[BaseException] = []
        self.ledger = VerificationTracker(scheduler, lambda _, error: self.errors.append(error))
        self.now = 0.0

    def step(
        self,
        served: dict[str, tuple[int, int]],
        *,
        drafted: int = K,
        asked_k: int = K,
        invalid: dict[str, int] | None = None,
        status: Status = Status.RUNNING,
        **scheduled: Any,
    ) -> list[dict[str, Any]]:
        """Rows; `served`: request -> (its length before, tokens given); prompts are 10 long."""
        self.now += 1.0
        step = schedule(dict.fromkeys(served, drafted + 1), **scheduled)
        step.scheduled_spec_decode_tokens = dict.fromkeys(served, [0] * drafted) if drafted else {}
        step.num_invalid_spec_tokens = invalid
        step.num_spec_tokens_to_schedule = asked_k
        step.total_num_scheduled_tokens = sum(step.num_scheduled_tokens.values())
        of = [
            (
                SimpleNamespace(request_id=name, use_structured_output=False),
                length,
                10,
                status,
                tokens,
            )
            for name, (length, tokens) in served.items()
        ]
        blocks = self.ledger.rows([(self.now, step, of)])
        assert all(isinstance(block, Block) for block in blocks)
        return [row for block in blocks for row in block.to_batch().to_pylist()]  # type: ignore[union-attr]

    def began(self, *names: str) -> None:
        """Prompts, which give the first token and verify nothing."""
        assert not self.step(
            dict.fromkeys(names, (10, 1)), drafted=0, new=dict.fromkeys(names, (10,))
        )


@pytest.fixture
def core() -> Core:
    return Core()


def test_a_row_for_each_request_that_verified(core: Core) -> None:
    core.began("a", "b")
    first, second = core.step({"a": (11, 3), "b": (11, 1)}, going_on={"a": 10, "b": 10})
    assert first == {
        "step": 2,
        "time_s": 2.0,
        "request": "a",
        "position": 9,
        "drafted": K,
        "accepted": 2,
        "reason": None,
        "replica": 0,
    }
    assert (second["request"], second["drafted"], second["accepted"]) == ("b", K, 0)
    assert core.errors == []


def test_a_step_that_gave_nothing_says_nothing(core: Core) -> None:
    core.began("a")
    assert core.step({"a": (11, 0)}, going_on={"a": 10}) == []


def test_whoever_has_ended_says_nothing(core: Core) -> None:
    core.began("a")
    assert core.step({"a": (11, 2)}, going_on={"a": 10}, status=Status.ABORTED) == []


def test_no_draft_has_a_reason(core: Core) -> None:
    core.began("a", "b")
    rows = core.step({"a": (11, 1)}, drafted=0, going_on={"a": 10})
    assert [(row["drafted"], row["reason"]) for row in rows] == [(0, UndraftedReason.NO_DRAFT)]
    core.step({"a": (12, 1)}, asked_k=0, going_on={"a": 11})
    (row,) = core.step({"a": (13, 1)}, drafted=0, going_on={"a": 12})
    assert row["reason"] == UndraftedReason.K_ZERO
    (row,) = core.step({"b": (11, 1)}, invalid={"b": K}, going_on={"b": 10})
    assert (row["drafted"], row["reason"]) == (0, UndraftedReason.STRUCTURED_OUTPUT)
    (row,) = core.step({"b": (12, 2)}, invalid={"b": 1}, going_on={"b": 11})
    assert (row["drafted"], row["accepted"], row["reason"]) == (K - 1, 1, None)


def test_the_first_output_after_a_preemption_verifies_no_draft(core: Core) -> None:
    core.began("a")
    core.step({"a": (11, 2)}, going_on={"a": 10})
    back: dict[str, Any] = {"going_on": {"a": 0}, "resumed": {"a": 3}}
    assert core.step({"a": (13, 0)}, drafted=0, **back) == []
    (row,) = core.step({"a": (13, 1)}, going_on={"a": 9})
    assert (row["drafted"], row["reason"]) == (0, UndraftedReason.PREEMPTED)
    (row,) = core.step({"a": (14, 2)}, going_on={"a": 13})
    assert (row["drafted"], row["accepted"]) == (K, 1)


def test_the_context_limit_stops_drafts_for_all(core: Core) -> None:
    core.began("a", "b")
    core.step({"a": (96, 1), "b": (20, 1)}, going_on={"a": 95, "b": 19})
    rows = core.step({"a": (97, 1), "b": (21, 1)}, going_on={"a": 96, "b": 20})
    assert [row["reason"] for row in rows] == [UndraftedReason.CONTEXT_LIMIT] * 2, "zeros verified"


def test_times_of_a_request_that_ended(core: Core) -> None:
    core.began("a")
    for length in (11, 13, 15):
        core.step({"a": (length, 2)}, going_on={"a": length - 1})
    row = RequestRow(
        time_s=5.0,
        request="a",
        label=None,
        arrival_s=0.25,
        prompt_tokens=10,
        output_tokens=7,
        ttft_s=None,
        tpot_s=None,
        finish_reason="length",
        temperature=None,
        max_tokens=None,
        traced=True,
        structured=None,
        traceparent=None,
    )
    (ended,) = core.ledger.rows([EndedRequest(row=row, request=None)])
    assert isinstance(ended, RequestRow)
    assert (ended.ttft_s, ended.tpot_s) == (0.75, 3.0 / 6)


def test_a_step_that_cannot_be_read_costs_its_own_rows(core: Core) -> None:
    core.began("a")
    assert core.ledger.rows([(2.0, object(), [])]) == []
    assert [type(error) for error in core.errors] == [AttributeError]
    assert len(core.step({"a": (11, 2)}, going_on={"a": 10})) == 1


def test_memory_is_bounded(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED_REQUESTS", 2)
    core.began(*"abcde")
    assert list(core.ledger._live) == ["d", "e"]
