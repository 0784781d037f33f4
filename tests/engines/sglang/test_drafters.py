"""Drafters whose inside is not recorded in SGLang have acceptance and timing, and say so."""

import pytest
from verification.sglang.drafters import NODES
from verification.sglang.truth import histograms

from driftscope.trace.read.reader import read_trace
from engines.sglang.conftest import Outcomes

pytestmark = pytest.mark.sglang


def test_eagle_1_has_acceptance_and_timing(sglang_outcome: Outcomes) -> None:
    outcome = sglang_outcome("EAGLE-1")
    trace = read_trace(outcome.run)
    assert trace.draft.num_rows == 0
    assert any("LlamaForCausalLMEagle is not supported" in note for note in trace.manifest.notes)
    assert trace.manifest.method == "eagle" and trace.manifest.drafter_layers == 0
    counted = histograms(outcome)
    assert all(ours == theirs for theirs, ours in counted)
    assert any(sum(theirs[1:]) for theirs, _ in counted), "some draft is accepted"
    assert all(row["draft_s"] > 0 for row in trace.step.to_pylist() if row["k"])
    assert all(row["tpot_s"] > 0 for row in trace.request.to_pylist())
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
