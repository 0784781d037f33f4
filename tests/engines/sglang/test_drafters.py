"""Drafters other than EAGLE-3 in SGLang: EAGLE-1, MiMo's head, and those without an inside."""

import pytest
from support.checkpoints import eagle1_drafter, load_mtp
from support.sglang_process.job import Outcome
from verification.sglang import NODES, histograms
from verification.truth import Truth, compare, loaded

from driftscope.trace.reader import Trace, read_trace
from engines.sglang.conftest import Outcomes
from engines.sglang.test_truth import LEAST_CHAINS, assert_true

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
NORMS_OF_A_HEAD = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms")


def _counted_and_timed(outcome: Outcome) -> Trace:
    """Return the trace of an engine whose counts are SGLang's and whose steps have their times."""
    trace = read_trace(outcome.run)
    counted = histograms(outcome)
    assert all(ours == theirs for theirs, ours in counted)
    assert any(sum(theirs[1:]) for theirs, _ in counted), "some draft is accepted"
    drafting = [row for row in trace.step.to_pylist() if row["k"]]
    assert drafting and all(0 < row["draft_s"] < row["step_s"] for row in drafting)
    assert all(row["tpot_s"] > 0 for row in trace.request.to_pylist())
    assert not any(status.errors for status in trace.statuses)
    return trace


@pytest.fixture(scope="module")
def eagle_1(sglang_outcome: Outcomes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Truth]:
    """Difference of EAGLE-1 from its weights, by name of the job."""
    used = loaded("target", str(eagle1_drafter(tmp_path_factory.mktemp("drafter"))))
    names = ("EAGLE-1", "EAGLE-1 without a bias")
    return {name: compare(sglang_outcome(name), used=used) for name in names}


def test_eagle_1_is_recorded_like_eagle_3(
    sglang_outcome: Outcomes, eagle_1: dict[str, Truth]
) -> None:
    assert_true(eagle_1["EAGLE-1"])
    manifest = _counted_and_timed(sglang_outcome("EAGLE-1")).manifest
    assert (manifest.method, manifest.drafter_layers, manifest.aux_layers) == ("eagle", 1, ())


def test_sglang_adds_random_numbers_where_eagle_1_has_no_bias(eagle_1: dict[str, Truth]) -> None:
    """`inspect` says so (bias_random_in_sglang): states and drafts are not those of the weights."""
    found = eagle_1["EAGLE-1 without a bias"]
    assert found.rms_error > 0.01
    assert found.drafted_equal < found.chains


def test_a_mimo_head_is_recorded_whole(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("MTP, MiMo")
    used = load_mtp(outcome.run.parent / "models" / "target", normed=True)
    assert_true(compare(outcome, used=used, norms=NORMS_OF_A_HEAD))
    trace = _counted_and_timed(outcome)
    assert trace.manifest.drafter.architecture == "MiMoMTP"
    rows = trace.draft.to_pylist()
    assert len(rows) >= LEAST_CHAINS
    assert all(row["aux_rms"] is None and row["fc_rms"] is None for row in rows), "no such states"
    assert (trace.manifest.drafter_layers, trace.manifest.aux_layers) == (1, ())


def test_a_draft_model_has_acceptance_and_timing_and_the_log_says_so(
    sglang_outcome: Outcomes,
) -> None:
    """The target drafts for itself, so that almost all is accepted."""
    outcome = sglang_outcome("draft model")
    trace = _counted_and_timed(outcome)
    assert trace.draft.num_rows == 0 and trace.manifest.method == "standalone"
    (note,) = [n for n in trace.manifest.notes if "LlamaForCausalLM is not supported" in n]
    assert f"driftscope: {note}; acceptance and timing are recorded" in outcome.log
    counted = histograms(outcome)
    assert sum(ours[-1] for _, ours in counted) > sum(sum(ours[:-1]) for _, ours in counted)


def test_n_gram_has_acceptance_and_timing(sglang_outcome: Outcomes) -> None:
    trace = _counted_and_timed(sglang_outcome("n-gram"))
    assert trace.draft.num_rows == 0 and trace.manifest.method == "ngram"
    assert any("not applicable: an n-gram lookup drafts" in note for note in trace.manifest.notes)
    assert (trace.manifest.k, trace.manifest.drafter.name) == (NODES - 1, "ngram")
