"""The trace's acceptance equals vLLM's own counters exactly."""

import pytest
from support.engine_process.job import K, Outcome
from verification.truth import JOBS

from driftscope.trace.reader import read_trace

pytestmark = pytest.mark.vllm
RECORDED = [*JOBS, "v1 sampled"]


@pytest.mark.parametrize("name", RECORDED)
def test_counters(outcomes: dict[str, Outcome], name: str) -> None:
    verify = read_trace(outcomes[name].run).verify.to_pandas()
    metrics = outcomes[name].metrics
    rounds = verify[verify.verified > 0]
    assert metrics["vllm:spec_decode_num_drafts"] == len(rounds)
    assert metrics["vllm:spec_decode_num_draft_tokens"] == rounds.verified.sum()
    assert metrics["vllm:spec_decode_num_accepted_tokens"] == rounds.accepted.sum()
    per_position = metrics["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert per_position == [int((rounds.accepted > i).sum()) for i in range(K)]


@pytest.mark.parametrize("name", RECORDED)
def test_requests(outcomes: dict[str, Outcome], name: str) -> None:
    table = read_trace(outcomes[name].run).request.to_pandas()
    outputs = [r for batch in outcomes[name].batches for r in batch["requests"]]
    lengths = sorted(len(request["token_ids"]) for request in outputs)
    assert sorted(table.output_tokens) == lengths
    assert (table.ttft_s > 0).all() and (table.tpot_s > 0).all()
    assert set(table.finish_reason) == {"length"}
    assert all(status.closed for status in read_trace(outcomes[name].run).statuses)
