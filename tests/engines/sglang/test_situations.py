"""Situations of SGLang other than a plain batch: recorded rightly, or said to be not applicable."""

import pytest
from verification.sglang.situations import TREE
from verification.sglang.truth import histograms

from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Region
from engines.sglang.conftest import Outcomes

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]


def test_a_tree_has_acceptance_and_no_masses(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("tree")
    trace = read_trace(outcome.run)
    assert trace.draft.num_rows == 0
    assert any("not applicable" in note for note in trace.manifest.notes)
    assert all(ours == theirs for theirs, ours in histograms(outcome))
    drafted = {row["verified"] for row in trace.verify.to_pylist()}
    assert drafted == {TREE["speculative_num_steps"]}
    assert max(step["draft_s"] for step in trace.step.to_pylist()) > 0


def test_requests_carry_what_sglang_reports(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("temperature")
    rows = {row["request"]: row for row in read_trace(outcome.run).request.to_pylist()}
    for meta in outcome.meta():
        row = rows[meta["id"]]
        assert row["temperature"] == pytest.approx(0.8)
        assert row["prompt_tokens"] == meta["prompt_tokens"]
        assert row["output_tokens"] == meta["completion_tokens"]
        assert row["finish_reason"] == meta["finish_reason"]["type"]
        assert 0 < row["tpot_s"] < row["ttft_s"] + meta["e2e_latency"]
        assert len(row["prompt_digest"]) == 16
    assert all(ours == theirs for theirs, ours in histograms(outcome))


def test_labels_choose_what_is_recorded(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("labels")
    trace = read_trace(outcome.run)
    wanted = outcome.meta()[0]["id"]
    assert not any(status.dropped for status in trace.statuses), "others are not lost, only unasked"
    assert {row["request"] for row in trace.draft.to_pylist()} == {wanted}
    labels = {row["request"]: (row["label"], row["traced"]) for row in trace.request.to_pylist()}
    assert labels.pop(wanted) == ("wanted", True)
    assert set(labels.values()) == {(None, False)}
    assert len({row["request"] for row in trace.verify.to_pylist()}) == len(labels) + 1


def test_a_stop_token_ends_a_request(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("stop token")
    rows = {row["request"]: row for row in read_trace(outcome.run).request.to_pylist()}
    for meta in outcome.meta():
        assert rows[meta["id"]]["finish_reason"] == meta["finish_reason"]["type"]
        assert rows[meta["id"]]["output_tokens"] == meta["completion_tokens"]


def test_one_depth_is_the_one_of_the_round_before(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("K = 1")
    rows = read_trace(outcome.run).draft.to_pylist()
    assert rows and {
        (row["k"], len(row["prompt_mass"]), len(row["token_ids"])) for row in rows
    } == {(1, 1, 1)}
    assert all(ours == theirs for theirs, ours in histograms(outcome))


def test_an_engine_without_a_drafter_is_recorded_and_serves_the_same(
    sglang_outcome: Outcomes,
) -> None:
    outcome = sglang_outcome("no speculation")
    assert outcome.tokens() == sglang_outcome("no speculation, off").tokens()
    trace = read_trace(outcome.run)
    manifest = trace.manifest
    assert (manifest.drafter, manifest.k, manifest.notes) == (None, 0, ())
    assert trace.draft.num_rows == 0 and not any(status.errors for status in trace.statuses)
    rows = {row["request"]: row for row in trace.request.to_pylist()}
    assert set(rows) == {meta["id"] for meta in outcome.meta()}
    for meta in outcome.meta():
        row = rows[meta["id"]]
        assert row["output_tokens"] == meta["completion_tokens"] and len(row["prompt_digest"]) == 16
        assert 0 < row["tpot_s"] < row["ttft_s"] + meta["e2e_latency"]
    verified = trace.verify.to_pylist()
    assert len(verified) == sum(row["output_tokens"] - 1 for row in rows.values())
    assert {(row["drafted"], row["reason"]) for row in verified} == {(0, "k_zero")}
    steps = trace.step.to_pylist()
    assert {step["k"] for step in steps} == {0} and all(step["step_s"] > 0 for step in steps)
    plain = analyze(Inputs(sources=[trace], labels=["plain"])).plain
    assert plain is not None and plain.requests == len(rows)


def test_structured_output_is_recorded_like_other_answers(sglang_outcome: Outcomes) -> None:
    """SGLang verifies drafts against the grammar, so that acceptance is the grammar's too."""
    outcome = sglang_outcome("structured output")
    trace = read_trace(outcome.run)
    rows = {row["request"]: row for row in trace.request.to_pylist()}
    asked, *others = [rows[meta["id"]] for meta in outcome.meta()]
    assert asked["structured"] == "json" and {row["structured"] for row in others} == {"none"}
    assert all(ours == theirs for theirs, ours in histograms(outcome))
    assert not any(status.errors for status in trace.statuses)


def test_answers_have_their_kinds_of_text(sglang_outcome: Outcomes) -> None:
    """The scheduler has a tokenizer unless it was told to have none."""
    outcome = sglang_outcome("structured output")
    rows = {row["request"]: row for row in read_trace(outcome.run).request.to_pylist()}
    asked, *others = [rows[meta["id"]] for meta in outcome.meta()]
    assert [Region.ALL[code] for code in asked["region_codes"]][:1] == ["json"]
    assert all(row["region_starts"][0] == 0 for row in others)
    plain = read_trace(sglang_outcome("temperature").run).request.to_pylist()
    assert {str(row["region_starts"]) for row in plain} == {"None"}, "there is no tokenizer"


def test_a_request_that_is_aborted_in_the_queue_has_a_row(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("abort in the queue")
    trace = read_trace(outcome.run)
    rows = {row["request"]: row for row in trace.request.to_pylist()}
    aborted = rows.pop("rid-3")
    assert (aborted["finish_reason"], aborted["output_tokens"]) == ("abort", 0)
    assert aborted["ttft_s"] is None and aborted["tpot_s"] is None
    assert "rid-3" not in {row["request"] for row in trace.verify.to_pylist()}
    assert {row["finish_reason"] for row in rows.values()} == {"length"} and len(rows) == 3
    assert not any(status.errors for status in trace.statuses)
