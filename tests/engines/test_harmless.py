"""The engine's output does not depend on the probe: off, on, sampled, or failing in every hook."""

import pytest
from support.engine_process.job import MAX_TOKENS, Outcome
from verification.harmless import SAMPLED_EVERY

from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import Trace, read_trace
from driftscope.vocabulary import UndraftedReason

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("probe", ["v1-eager eagle31", "v1 sampled", "v1 raising"])
@pytest.mark.parametrize(("batch", "size"), [(0, 8), (1, 1)])
def test_v1_output_is_token_identical(
    outcomes: dict[str, Outcome], probe: str, batch: int, size: int
) -> None:
    assert outcomes[probe].tokens(batch) == outcomes["v1 off"].tokens(batch)


@pytest.mark.parametrize("probe", ["v2 raising", "v2 eagle31"])
def test_v2_output_is_token_identical(outcomes: dict[str, Outcome], probe: str) -> None:
    assert outcomes[probe].tokens() == outcomes["v2 off"].tokens()


def test_compiled_output_is_token_identical(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["v1-compiled eagle31"].tokens() == outcomes["v1 compiled off"].tokens()


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_an_engine_without_a_drafter_is_recorded_and_serves_the_same(
    outcomes: dict[str, Outcome], runner: str
) -> None:
    outcome = outcomes[f"{runner} plain"]
    assert outcome.tokens() == outcomes[f"{runner} plain off"].tokens()
    lines = [line for line in outcome.log.splitlines() if "driftscope: " in line]
    assert not lines, "nothing is wrong, so nothing is said"
    trace, requests = read_trace(outcome.run), outcome.job.requests
    manifest = trace.manifest
    assert (manifest.drafter, manifest.k, manifest.runner) == (None, 0, runner)
    assert trace.problems == () and trace.draft.num_rows == 0
    ended = trace.request.to_pandas()
    assert ended.output_tokens.tolist() == [MAX_TOKENS] * requests
    assert (ended.ttft_s > 0).all() and (ended.tpot_s > 0).all() and ended.prompt_digest.is_unique
    verified = trace.verify.to_pandas()
    assert len(verified) == requests * (MAX_TOKENS - 1), "a row for each token after the first"
    assert set(verified.reason) == {UndraftedReason.K_ZERO} and not verified.drafted.any()
    steps = trace.step.to_pandas()
    assert len(steps) >= MAX_TOKENS and steps.requests.max() == requests and not steps.k.any()
    assert (steps.step_s > steps.probe_s).all() and not steps.recorded.any()
    plain = analyze(Inputs(sources=[trace], labels=["plain"])).plain
    assert plain is not None and plain.requests == requests and plain.cells


WORKER_HOOKS = {
    "witness",
    "step_started",
    "draft_started",
    "combine_hidden_states",
    "aux_norm",
    "forward_in",
    "attention",
    "forward_out",
    "compute_logits",
    "draft_ended",
    "step_ended",
    "join",
}
"""Hooks of an eager drafter; a compiled one has the hook `residual` too."""


def errors_by_role(trace: Trace) -> dict[str, set[str]]:
    return {s.source.split("-")[0].rstrip("0"): set(s.errors) for s in trace.statuses}


def test_every_hook_raises_and_is_counted_and_shown(outcomes: dict[str, Outcome]) -> None:
    trace = read_trace(outcomes["v1 raising"].run)
    assert errors_by_role(trace) == {"worker": WORKER_HOOKS, "engine": {"verify", "request"}}
    assert all("InjectedError" in (status.first_error or "") for status in trace.statuses)
    assert sum("caught" in problem for problem in trace.problems) == len(trace.statuses)
    assert trace.draft.num_rows == 0, "a chain whose hooks failed is not whole"


def test_hooks_that_fail_before_their_work_record_nothing(outcomes: dict[str, Outcome]) -> None:
    trace = read_trace(outcomes["v2 raising"].run)
    # When its first hook fails, a step is not captured, so the later taps stay quiet.
    assert errors_by_role(trace)["worker"] == {
        "step_started",
        "draft_started",
        "step_ended",
        "join",
    }
    assert trace.draft.num_rows == trace.verify.num_rows == trace.step.num_rows == 0


def test_sampling_records_each_nth_draft_and_every_verification(
    outcomes: dict[str, Outcome],
) -> None:
    full, sampled = (read_trace(outcomes[name].run) for name in ("v1-eager eagle31", "v1 sampled"))
    assert sampled.verify.num_rows == full.verify.num_rows
    recorded = sampled.step.to_pandas().query("k > 0")["recorded"]
    assert recorded.tolist() == [i % SAMPLED_EVERY == 0 for i in range(len(recorded))]
    share = sampled.draft.num_rows / full.draft.num_rows
    assert 0.8 / SAMPLED_EVERY < share < 1.2 / SAMPLED_EVERY
    assert sampled.manifest.every == SAMPLED_EVERY


def test_no_text_and_no_token_ids_unless_asked(outcomes: dict[str, Outcome]) -> None:
    quiet, asked = (read_trace(outcomes[name].run) for name in ("v1 sampled", "v1-eager eagle31"))
    assert quiet.draft.column("token_ids").null_count == quiet.draft.num_rows
    assert asked.draft.column("token_ids").null_count == 0
