"""Runs of several K, and tokens per round at a K that was not served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.analyses import finding_ids, summary_of, trimmed_trace
from support.simulate import Truth, simulate
from support.simulate.sums import marginal_at_k, side

from driftscope.analysis.advice import advise, pays_command
from driftscope.analysis.compare import Comparison, compare
from driftscope.analysis.figures.run_sums import collect
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.statistics.ratio import rate_intervals
from driftscope.analysis.summary.computation import recut
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.time_per_token import length_at, length_warnings, round_lengths
from driftscope.pipeline import conclude, summarise
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import UndraftedReason

pytestmark = pytest.mark.slow

BY_BATCH = Truth(
    requests=120,
    rounds=40,
    batches=(1, 2, 4, 12),
    k_by_batch=((2, 7), (4, 4), (12, 2)),
    rates=(0.5,),
)
"""K falls with the batch; nothing else does."""
HARDER = replace(BY_BATCH, batch=-0.3)
"""Acceptance falls with the batch, too."""
SHORTER = replace(BY_BATCH, batches=(8,), k_by_batch=(), k_from=((0.5, 2),))
"""K is set from 7 to 2 in the middle of the run."""
BUSIER = replace(HARDER, batches=(*(1,) * 40, *(12,) * 7), requests=124)
"""One request at a time first, then twelve: K and acceptance fall together."""
CIRCUMSTANCES = {
    "acceptance_drops",
    "acceptance_decays",
    "template_sensitivity",
    "long_context_collapse",
    "modes_disagree",
    "looks_like_a_loop",
}


@pytest.fixture(scope="module")
def by_batch(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """The run, split by K."""
    return summary_of(tmp_path_factory.mktemp("by-batch") / "run", BY_BATCH, by="k")


def test_chains_of_every_k_are_one_run(by_batch: RunSummary) -> None:
    assert by_batch.ks == (2, 4, 7)
    assert (by_batch.k, by_batch.depths) == (7, 7)
    parts = by_batch.acceptance.by_k
    assert [part.k for part in parts] == [2, 4, 7]
    assert sum(part.rounds for part in parts) == by_batch.rounds
    served = sum(part.rounds * part.mean_length for part in parts) / by_batch.rounds
    assert by_batch.acceptance.mean_length == pytest.approx(served)


@pytest.mark.parametrize(("world", "k"), [(BY_BATCH, None), (HARDER, 2), (HARDER, 4), (HARDER, 7)])
def test_rates_by_depth_hold_the_truth_of_all_rounds_if_only_k_varies_else_of_each_k(
    world: Truth, k: int | None
) -> None:
    """The share of 200 runs is within 3 standard errors of 95 %."""
    truth, trials, hits = replace(world, requests=60, rounds=20), 200, np.zeros(k or 7)
    for trial in range(trials):
        drawn = replace(truth, seed=trial, prompts_seed=trial)
        found = rate_intervals(side(drawn, drafted=k).rounds.marginal_ratio().first(k or 7))
        true = marginal_at_k(drawn, k) if k else truth.marginal()
        hits += [
            at is not None and at.low <= x <= at.high for at, x in zip(found, true, strict=True)
        ]
    assert (hits / trials >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / trials)).all()


def test_counts_over_all_rounds_would_not_hold_it(by_batch: RunSummary) -> None:
    """The confounded case is tempting: as vLLM counts, deep tokens look rejected."""
    assert by_batch.acceptance.counted[4] < 0.5 * BY_BATCH.marginal()[4]
    assert by_batch.acceptance.marginal[4] == pytest.approx(BY_BATCH.marginal()[4], abs=0.05)


@pytest.mark.parametrize("truth", [BY_BATCH, HARDER, SHORTER, BUSIER])
def test_no_finding_rests_on_the_mix(tmp_path: Path, truth: Truth) -> None:
    found = conclude([summary_of(tmp_path / "run", truth)])
    assert not CIRCUMSTANCES.intersection(finding_ids(found))
    assert any(note.id == "several_k" for note in found.notes)


def test_a_drop_that_k_does_not_explain_is_found(tmp_path: Path) -> None:
    run = summary_of(tmp_path / "run", replace(BY_BATCH, requests=240, change=(0.5, -1.5)))
    assert "acceptance_drops" in finding_ids(conclude([run]))


def test_a_drop_at_the_moment_that_k_changes_is_told_but_not_blamed(tmp_path: Path) -> None:
    """Both explain it: there is no finding, and a warning names what was seen."""
    found = conclude([summary_of(tmp_path / "run", replace(SHORTER, change=(0.5, -1.5)))])
    assert "acceptance_drops" not in finding_ids(found)
    assert any("acceptance goes with what decides K" in note.statement for note in found.notes)


@pytest.mark.parametrize("change", [None, (0.5, -1.5)])
def test_no_drafter_is_called_healthy_whose_fall_k_may_hide(
    tmp_path: Path, change: tuple[float, float] | None
) -> None:
    even = replace(SHORTER, growth=1.0, norm_output=True, near=0.2, self_last=0.2)
    run = summary_of(tmp_path / "run", replace(even, sink=(0.3, 0.29), change=change))
    ids = {finding.id for finding in conclude([run]).findings}
    assert ("healthy" in ids) == (change is None)


def test_the_k_to_measure_is_named_once(by_batch: RunSummary) -> None:
    assert " -k 7 " in pays_command(by_batch, other_k=7)
    assert " -k 7,3 " in pays_command(by_batch, other_k=3)


def test_a_level_that_goes_with_the_batch_is_no_growth(tmp_path: Path) -> None:
    """States are larger in small batches, which have the long chains, and do not grow."""
    run = summary_of(tmp_path / "run", replace(BY_BATCH, growth=1.0, rms_batch=-0.5))
    assert run.hidden.growth == pytest.approx(1.0, abs=0.02)
    assert "hidden_state_grows" not in finding_ids(conclude([run]))


def test_figures_by_depth_are_of_the_chains_that_get_there(tmp_path: Path) -> None:
    """Few long chains make no figure: the depths end where enough chains do."""
    truth = replace(BY_BATCH, batches=(4,) * 30 + (1,), requests=125, rates=(0.2,), rounds=20)
    run = summary_of(tmp_path / "run", replace(truth, k_by_batch=((1, 7), (64, 4))))
    assert run.ks == (4, 7)
    assert len(run.hidden.fed_rms) == run.depths
    longest = sum(row["k"] == 7 for row in read_trace(tmp_path / "run").draft.to_pylist())
    assert run.depths == (7 if longest >= 50 else 4)
    assert run.recording.chains == read_trace(tmp_path / "run").draft.num_rows


def test_cut_by_k(by_batch: RunSummary) -> None:
    run = by_batch
    assert [segment.label for segment in run.segments] == ["K = 2", "K = 4", "K = 7"]
    grown = [BY_BATCH.growth ** ((k - 1) / 6) for k in (2, 4, 7)]
    assert [segment.growth for segment in run.segments] == pytest.approx(grown, rel=0.03)
    lengths = [part.mean_length for part in run.acceptance.by_k]
    assert [segment.mean_length for segment in run.segments] == pytest.approx(lengths)


def _compared(folder: Path, **changed: object) -> Comparison:
    """Return the comparison of two runs of one schedule, of which the second is changed."""
    truth = replace(BY_BATCH, requests=60)
    truths = (replace(truth, seed=1), replace(truth, seed=2, **changed))
    a, b = (collect(open_run(simulate(folder / str(t.seed), t))) for t in truths)
    return compare(a, b, ("a", "b"))


def test_another_mix_of_k_is_told(tmp_path: Path) -> None:
    """It changes the acceptance length as served, and no rate by depth."""
    found = _compared(tmp_path, k_by_batch=())
    assert any(difference.name == "K" for difference in found.comparability.differences)
    differs = {difference.metric for difference in found.differences if difference.differs}
    assert differs == {"acceptance.mean_length"}


def test_no_advice_where_acceptance_goes_with_k(tmp_path: Path) -> None:
    advice = advise(summary_of(tmp_path / "run", HARDER))
    assert advice.command is None
    assert advice.doubt is not None and "goes with what decides K" in advice.doubt


def test_drafts_cut_by_confidence_are_compared_where_none_was_cut(tmp_path: Path) -> None:
    """vLLM's enable_adaptive_verification: the tokens that it verifies are the likely ones."""
    whole = read_trace(simulate(tmp_path / "whole", Truth(requests=60, rounds=20, k=4)))
    cut = trimmed_trace(whole, 2, UndraftedReason.CONFIDENCE)
    runs = summarise(whole, "whole"), summarise(cut, "cut")
    assert runs[1].acceptance.mean_length < 0.95 * runs[0].acceptance.mean_length, "as served"
    assert [run.side.rounds.uncut for run in runs if run.side] == [None, 2]
    bins = [run.confidence.calibration.by_depth[2].tokens for run in runs]
    assert 0 < bins[1] < 0.7 * bins[0], "what was not verified was not rejected"
    found = conclude(runs)
    compared = found.cases[1].comparison
    assert [d.depth for d in compared.differences] == [None, 1, 2]
    assert all(d.difference == 0 for d in compared.differences)
    names = [difference.name for difference in compared.comparability.differences]
    assert "drafts cut for low confidence" in names
    assert found.cases[0].advice is not None and found.cases[1].advice is None
    (said,) = (note.statement for note in found.notes if note.id == "cut_drafts")
    assert "of the drafts were cut before verification (confidence " in said


K = 7


def _matches(requests: int, tokens: int) -> np.ndarray:
    """Whether the drafter guesses each token, [requests, tokens]: easy and hard stretches."""
    random = np.random.RandomState(1)
    state = random.standard_normal(requests)
    hits = np.empty((requests, tokens), dtype=np.bool_)
    for at in range(tokens):
        state = 0.9 * state + np.sqrt(1 - 0.9**2) * random.standard_normal(requests)
        hits[:, at] = random.random_sample(requests) < 1 / (1 + np.exp(-(0.8 + 1.6 * state)))
    return hits


def _rounds(matches: np.ndarray, k: int) -> list[int]:
    """Return the tokens accepted in each round of K = `k` over one request."""
    accepted, at = [], 0
    while at + k < len(matches):
        miss = np.flatnonzero(~matches[at : at + k])
        accepted.append(int(miss[0]) if len(miss) else k)
        at += accepted[-1] + 1
    return accepted


def test_where_the_text_decides_rounds_are_cut_anew() -> None:
    runs, served = [], {k: [] for k in range(1, K + 1)}
    for request, matches in enumerate(_matches(200, 300)):
        for k in served:
            served[k] += _rounds(matches, k)
        left = 0
        for accepted in _rounds(matches, K):
            left += accepted + (accepted == K)
            if accepted < K:
                runs.append((request, left, 1))
                left = 0
    cluster, length, missed = (np.array(column) for column in zip(*runs, strict=True))
    lengths = recut(cluster, length, missed, np.ones_like(length), k=K)
    counts = np.bincount(served[K], minlength=K + 1)
    marginal = (counts[::-1].cumsum()[::-1][1:] / counts.sum()).tolist()
    for k in range(1, K):
        wanted = 1 + np.mean(served[k])
        assert length_at(k, marginal, None, lengths).value == pytest.approx(wanted, rel=0.02)
    assert length_at(2, marginal).value < 0.96 * (1 + np.mean(served[2]))


def test_each_k_takes_its_length_from_the_run_with_the_nearest_larger_k(tmp_path: Path) -> None:
    """The easy prompts of the run at K = 3 show in K up to 3 only."""
    hard = Truth(k=K, requests=60, rounds=20)
    easy = replace(hard, k=3, conditional=(0.95,) * K)
    runs = [summary_of(tmp_path / f"K = {world.k}", world) for world in (hard, easy)]
    together, alone = round_lengths(runs[0], runs[1:]), round_lengths(runs[0])
    same = [k for k, (a, b) in enumerate(zip(together, alone, strict=True)) if a == b]
    assert same == [0, 4, 5, 6, 7]
    assert (together[3].bias, together[2].bias > 0) == (0.0, True)
    (warning,) = length_warnings(runs[0], runs[1:])
    assert warning.startswith("K = 3 yields") and warning.endswith("send both the same prompts")
    assert length_warnings(runs[0], ()) == ()
