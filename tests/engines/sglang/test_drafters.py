"""Drafters other than EAGLE-3 in SGLang: EAGLE-1, MiMo's head, and those without an inside."""

from pathlib import Path

import pytest
from support.checkpoints import eagle1_drafter, load_mtp
from verification.sglang import NODES, compare, histograms
from verification.truth import Truth, loaded

from driftscope.trace.reader import read_trace
from engines.sglang.conftest import Outcomes
from engines.sglang.test_truth import LEAST_CHAINS, TOLERANCE

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]
NORMS_OF_A_HEAD = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms")


def _equals_the_reference(found: Truth) -> None:
    assert found.drafted_equal == found.chains >= LEAST_CHAINS
    assert found.accepted_equal == found.verified >= 0.9 * found.chains
    assert max(found.mass_error, found.distance_error, found.rms_error) < TOLERANCE
    assert max(found.top1_error, found.entropy_error / 2) < TOLERANCE
    assert found.with_distances > 0


def test_eagle_1_is_recorded_like_eagle_3(sglang_outcome: Outcomes, tmp_path: Path) -> None:
    outcome = sglang_outcome("EAGLE-1")
    found = compare(outcome, models=loaded("target", str(eagle1_drafter(tmp_path / "drafter"))))
    _equals_the_reference(found)
    trace = read_trace(outcome.run)
    assert trace.manifest.method == "eagle" and trace.manifest.drafter_layers == 1
    assert trace.manifest.aux_layers == ()
    counted = histograms(outcome)
    assert all(ours == theirs for theirs, ours in counted)
    assert any(sum(theirs[1:]) for theirs, _ in counted), "some draft is accepted"
    assert all(row["draft_s"] > 0 for row in trace.step.to_pylist() if row["k"])
    assert all(row["tpot_s"] > 0 for row in trace.request.to_pylist())
    assert not any(status.errors for status in trace.statuses)


def test_a_mimo_head_is_recorded_whole(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("MTP, MiMo")
    models = load_mtp(outcome.run.parent / "models" / "target", normed=True)
    found = compare(outcome, models=models, norms=NORMS_OF_A_HEAD)
    _equals_the_reference(found)
    trace = read_trace(outcome.run)
    assert trace.manifest.drafter.architecture == "MiMoMTP"
    rows = trace.draft.to_pylist()
    assert all(row["aux_rms"] is None and row["fc_rms"] is None for row in rows), "no such states"
    assert (trace.manifest.drafter_layers, trace.manifest.aux_layers) == (1, ())
    counted = histograms(outcome)
    assert all(ours == theirs for theirs, ours in counted)
    assert any(sum(theirs[1:]) for theirs, _ in counted), "some draft is accepted"
    assert all(row["tpot_s"] > 0 for row in trace.request.to_pylist())
    assert not any(status.errors for status in trace.statuses)


def test_sglang_adds_random_numbers_where_eagle_1_has_no_bias(
    sglang_outcome: Outcomes, tmp_path: Path
) -> None:
    """`inspect` says so (bias_random_in_sglang): states and drafts are not those of the weights."""
    outcome = sglang_outcome("EAGLE-1 without a bias")
    found = compare(outcome, models=loaded("target", str(eagle1_drafter(tmp_path / "drafter"))))
    assert found.rms_error > 0.01
    assert found.drafted_equal < found.chains


def test_a_draft_model_has_acceptance_and_timing_and_the_log_says_so(
    sglang_outcome: Outcomes,
) -> None:
    """The target drafts for itself, so that almost all is accepted."""
    outcome = sglang_outcome("draft model")
    trace = read_trace(outcome.run)
    assert trace.draft.num_rows == 0 and trace.manifest.method == "standalone"
    (note,) = [n for n in trace.manifest.notes if "LlamaForCausalLM is not supported" in n]
    assert f"driftscope: {note}; acceptance and timing are recorded" in outcome.log
    counted = histograms(outcome)
    assert all(ours == theirs for theirs, ours in counted)
    assert sum(ours[-1] for _, ours in counted) > sum(sum(ours[:-1]) for _, ours in counted)
    drafting = [row for row in trace.step.to_pylist() if row["k"]]
    assert drafting and all(0 < row["draft_s"] < row["step_s"] for row in drafting)
    assert not any(status.errors for status in trace.statuses)


def test_n_gram_has_acceptance_and_timing(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("n-gram")
    trace = read_trace(outcome.run)
    assert trace.draft.num_rows == 0 and trace.manifest.method == "ngram"
    assert any("not applicable: an n-gram lookup drafts" in note for note in trace.manifest.notes)
    assert (trace.manifest.k, trace.manifest.drafter.name) == (NODES - 1, "ngram")
    counted = histograms(outcome)
    assert all(ours == theirs for theirs, ours in counted)
    assert any(sum(theirs[1:]) for theirs, _ in counted), "some draft is accepted"
    drafting = [row for row in trace.step.to_pylist() if row["k"]]
    assert drafting and all(0 < row["draft_s"] < row["step_s"] for row in drafting)
    assert all(row["tpot_s"] > 0 for row in trace.request.to_pylist())
    assert not any(status.errors for status in trace.statuses)
