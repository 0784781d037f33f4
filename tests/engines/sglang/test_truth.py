"""The live probe's numbers in SGLang equal a float64 recomputation from weights and tokens."""

import pytest
from support.sglang_process.job import VERSION, K
from verification.sglang.truth import JOBS, compare, histograms

from driftscope.trace.reader import read_trace
from engines.sglang.conftest import Outcomes

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
TOLERANCE = 1e-5
CHAINS = {"eagle31, batch of 8": 100, "every 3rd": 12}
LEAST_CHAINS = 40


@pytest.mark.parametrize("name", JOBS)
def test_every_measured_quantity_equals_the_reference(sglang_outcome: Outcomes, name: str) -> None:
    found = compare(sglang_outcome(name))
    assert found.chains >= CHAINS.get(name, LEAST_CHAINS)
    assert found.drafted_equal == found.chains
    assert found.accepted_equal == found.verified >= 0.9 * found.chains
    assert found.mass_error < TOLERANCE
    assert found.with_distances > 0 and found.distance_error < TOLERANCE
    assert found.rms_error < TOLERANCE
    assert found.top1_error < TOLERANCE
    assert found.entropy_error < 2 * TOLERANCE


@pytest.mark.parametrize("name", JOBS)
def test_accepted_counts_are_those_of_sglang(sglang_outcome: Outcomes, name: str) -> None:
    outcome = sglang_outcome(name)
    for batch in range(len(outcome.batches)):
        for theirs, ours in histograms(outcome, batch):
            assert ours == theirs and sum(ours) > 0


def test_a_single_request_is_as_true_as_a_batch(sglang_outcome: Outcomes) -> None:
    found = compare(sglang_outcome("eagle3"), batch=1)
    assert found.drafted_equal == found.chains >= LEAST_CHAINS
    assert max(found.mass_error, found.rms_error) < TOLERANCE


def test_every_verified_draft_of_every_round_is_recorded(sglang_outcome: Outcomes) -> None:
    trace = read_trace(sglang_outcome("eagle3").run)
    chains = {(row["request"], row["position"]) for row in trace.draft.to_pylist()}
    verified = {(r["request"], r["position"]) for r in trace.verify.to_pylist() if r["verified"]}
    assert chains >= verified, "depth 1 comes from the round before, also after a prompt"
    assert not any(status.errors or status.dropped for status in trace.statuses)


def test_manifest_says_what_ran(sglang_outcome: Outcomes) -> None:
    manifest = read_trace(sglang_outcome("eagle31, batch of 8").run).manifest
    assert (manifest.engine, manifest.engine_version, manifest.k) == ("sglang", VERSION, K)
    assert (manifest.mode, manifest.recording) == ("eager", "sampled eager")
    assert manifest.norm_flags == {"fc_norm": True, "norm_output": True, "norm_before_fc": False}
    assert (manifest.aux_layers, manifest.aux_layers_source) == ((2, 3, 5), "config")
    assert manifest.attention_backend == "IntelAMXAttnBackend"


def test_retracted_requests_have_a_step_without_a_draft(sglang_outcome: Outcomes) -> None:
    rows = read_trace(sglang_outcome("retracted").run).verify.to_pylist()
    undrafted = [row for row in rows if not row["verified"]]
    assert undrafted and {row["reason"] for row in undrafted} == {"preempted"}
