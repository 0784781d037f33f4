"""The cost model against simulated runs whose cost is known."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.simulate import Cost, Truth, simulate

from driftscope.analysis.cost.advice import BY_BATCH, FIXED, NO_SPECULATION, advise
from driftscope.analysis.cost.model import fit
from driftscope.analysis.cost.predict import WIDEST, Prediction, overall, tokens_by_k
from driftscope.analysis.cost.served import Served
from driftscope.analysis.figures.step_cells import GROUPS, MIN_STEPS, StepCell, pooled
from driftscope.analysis.statistics.interval import Interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.summarise import summarise
from driftscope.trace.read.reader import read_trace

BATCHES = (1, 4, 16)
RATES = (0.1,)
TRUTH = Truth(requests=400, rounds=40, batches=BATCHES, rates=RATES)


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    return _run(tmp_path_factory.mktemp("seven"), TRUTH)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    return _run(tmp_path_factory.mktemp("three"), replace(TRUTH, k=3))


def _run(folder: Path, truth: Truth) -> RunSummary:
    return summarise(read_trace(simulate(folder / "run", truth)), f"K = {truth.k}")


def _true_tpot_s(truth: Truth, batch: int, k: int) -> float:
    chains = np.array([batch])
    verify = truth.cost.verify_s(chains, chains * (k + 1))[0]
    draft = truth.cost.drafting_s(chains, k)[0] if k else 0.0
    return float(verify + draft) / (1 + float(truth.marginal()[:k].sum()))


def _off(at: Prediction, truth: Truth) -> list[float]:
    return [e.value / _true_tpot_s(truth, at.batch, k) - 1 for k, e in enumerate(at.tpot_s)]


def test_two_ks_give_every_k_from_none_to_the_largest(seven: RunSummary, three: RunSummary) -> None:
    found = advise(seven, [three])
    assert found is not None
    assert found.assumed == ()
    at = {each.batch: each for each in found.by_batch}
    for batch in BATCHES:
        assert max(map(abs, _off(at[batch], TRUTH))) < 0.05
        inside = [
            e.interval.low <= _true_tpot_s(TRUTH, batch, k) <= e.interval.high
            for k, e in enumerate(at[batch].tpot_s)
        ]
        assert sum(inside) >= 7, "of 8 intervals of 95%"


def test_the_best_k_is_the_true_one(seven: RunSummary, three: RunSummary) -> None:
    found = advise(seven, [three])
    assert found is not None
    for at in found.by_batch:
        true = [_true_tpot_s(TRUTH, at.batch, k) for k in range(8)]
        assert true[at.best_k] <= min(true) * 1.01


def test_one_k_says_what_it_does_not_identify(seven: RunSummary) -> None:
    found = advise(seven)
    assert found is not None
    said = " ".join(found.assumed)
    assert "verification time by K is not identified directly" in said
    assert "drafting time by depth is not identified" in said


def test_one_k_at_one_batch_size_takes_verification_as_free_of_k() -> None:
    model = fit([_cell(7, 8)])
    assert model is not None
    assert "the same for every K" in model.assumed[0]
    assert model.step_s(8, 0)[0] == pytest.approx(0.006)
    assert model.step_s(8, 7)[0] == pytest.approx(0.010)


def test_the_token_rule_splits_a_batch_s_cost() -> None:
    """One K at several batch sizes: 1 ms for each 8 tokens verified."""
    cells = [replace(_cell(7, b), step_s=0.006 + 0.001 * b, draft_s=0.002) for b in (1, 2, 4)]
    model = fit(cells)
    assert model is not None
    assert model.step_s(4, 0)[0] == pytest.approx(0.004 + 0.0005, rel=1e-3)


def test_no_drafting_step_no_model() -> None:
    assert fit([]) is None
    assert fit([_cell(0, 1)]) is None


def _cell(k: int, batch: int) -> StepCell:
    return StepCell(
        k=k,
        batch=batch,
        steps=100,
        step_s=0.010,
        step_error_s=0.0,
        draft_s=0.004,
        draft_error_s=0.0,
        recorded=False,
    )


def test_a_cell_measured_twice_counts_once() -> None:
    few, many = _cell(7, 1), replace(_cell(7, 1), steps=1000, step_s=0.02)
    assert pooled([few, many, _cell(7, 2)]) == (many, _cell(7, 2))


def test_cells_leave_out_what_follows_another_kind_of_step(seven: RunSummary) -> None:
    assert all(cell.steps >= MIN_STEPS for cell in seven.cells)
    assert {cell.k for cell in seven.cells} == {7}
    assert set(BATCHES) <= {cell.batch for cell in seven.cells}


def test_idle_time_is_no_step_time(tmp_path: Path) -> None:
    idle = _run(tmp_path / "a", replace(TRUTH, requests=60, gap_s=5.0))
    assert all(cell.step_s < 0.1 for cell in idle.cells)


def test_expensive_verification_brings_a_schedule_by_batch_size(tmp_path: Path) -> None:
    """At batch 1 tokens cost little beside the rest, at 16 they are nearly all there is."""
    cost, rates = Cost(base_s=0.02, token_s=0.004), (0.5,) * 7
    truth = replace(TRUTH, cost=cost, conditional=rates, batches=(*(1,) * 48, 16))
    found = advise(_run(tmp_path / "7", truth), [_run(tmp_path / "2", replace(truth, k=2))])
    assert found is not None
    (first, *_, last) = found.schedule
    assert first[0] == 1
    assert last[1] == 16
    assert first[2] > last[2]
    assert found.command is not None
    assert found.schedule_gain.interval.low > 0
    option, config = shlex.split(found.command)
    assert option == "--speculative-config"
    given = json.loads(config)
    assert given[BY_BATCH] == [list(each) for each in found.schedule]
    assert given[FIXED] == max(k for _, _, k in found.schedule)
    assert given["method"] == "eagle3"


def test_a_model_s_name_cannot_break_out_of_the_option(seven: RunSummary) -> None:
    hostile = "a'; rm -rf / #"
    odd = replace(
        seven,
        manifest=replace(seven.manifest, drafter=replace(seven.manifest.drafter, name=hostile)),
    )
    found = advise(odd)
    assert found is not None
    assert found.fixed_command is not None
    assert json.loads(shlex.split(found.fixed_command)[1])["model"] == hostile


@pytest.mark.slow
def test_vllm_takes_the_schedule(tmp_path: Path) -> None:
    """Its own reader of the option, where vLLM is installed."""
    utils = pytest.importorskip("vllm.v1.spec_decode.dynamic.utils")
    schedule = [[1, 3, 6], [4, 16, 2]]
    lookup = utils.build_dynamic_sd_schedule_lookup(schedule, 32, 6)
    assert [lookup[b] for b in (1, 3, 4, 16, 32)] == [6, 6, 2, 2, 2]


def test_an_interval_holds_what_another_run_takes() -> None:
    """Runs whose speed wanders by a tenth, as that of a busy machine does: the intervals hold the
    step times of runs that were not fitted, where an error of the mean alone would not."""
    random, wander, steps_of_a_part = np.random.RandomState(1), 0.1, 40

    def truth(k: int) -> float:
        return 0.01 + 0.001 * k

    def run(k: int) -> StepCell:
        parts = truth(k) * np.exp(wander * random.standard_normal(GROUPS))
        error = float(np.std(parts, ddof=1) / np.sqrt(GROUPS))
        return StepCell(
            k=k,
            batch=1,
            steps=GROUPS * steps_of_a_part,
            step_s=float(np.median(parts)),
            step_error_s=error,
            draft_s=0.0005 * k,
            draft_error_s=0.0,
            recorded=False,
        )

    held = []
    for _ in range(60):
        model = fit([run(2), run(8)])
        assert model is not None
        for k in (0, 4, 6):
            low, high = np.percentile(model.step_s(1, k)[1:], [2.5, 97.5])
            held.append(low <= truth(k) * np.exp(wander * random.standard_normal()) <= high)
    assert np.mean(held) > 0.9


def test_what_is_assumed_is_as_wide_as_what_it_stands_for() -> None:
    """One K at one batch size: verification at K = 1 may take anything from a share of what it
    takes at K = 8 to all of it."""
    cell = StepCell(
        k=8,
        batch=1,
        steps=400,
        step_s=0.010,
        step_error_s=1e-6,
        draft_s=0.001,
        draft_error_s=1e-6,
        recorded=False,
    )
    model = fit([cell])
    assert model is not None
    low, high = np.percentile(model.step_s(1, 1)[1:], [2.5, 97.5])
    assert low < 0.0030
    assert high > 0.0090
    assert model.step_s(1, 8)[1:].std() < 1e-4


def test_a_prediction_that_is_open_by_more_than_a_factor_is_none() -> None:
    """One K at one batch size: what K = 0 takes is anything from an eighth to all of it."""
    model = fit([_cell(7, 8)])
    assert model is not None
    tokens = tokens_by_k([0.5] * 7, [Interval(low=0.45, high=0.55)] * 7)
    found = overall(model, tokens, Served(k=7))
    assert found.tpot_s[0].interval is None
    for each in found.tpot_s:
        if each.interval is not None:
            assert 0 < each.interval.low <= each.value <= each.interval.high
            assert each.interval.high < WIDEST * each.interval.low


def test_a_rate_without_an_interval_may_be_anything() -> None:
    (_, one) = tokens_by_k([0.5], [None])
    assert one[1:].min() < 1.1
    assert one[1:].max() > 1.9


@pytest.mark.parametrize("accepted", [0.0, 0.002])
def test_a_dead_drafter_is_advised_off_by_what_the_drafter_takes(
    tmp_path: Path, accepted: float
) -> None:
    """The gain is at least what steps save without the drafter, and the true one is no smaller."""
    conditional = (max(accepted, 1e-12),) * 7
    truth = replace(TRUTH, requests=60, conditional=conditional, between=0.0, within=0.0)
    run = _run(tmp_path / "dead", truth)
    found = advise(run)
    assert found is not None
    assert found.useless
    assert found.overall.best_k == 0
    assert found.command == NO_SPECULATION
    assert found.least_gain is not None
    true = [_true_tpot_s(truth, batch, 7) / _true_tpot_s(truth, batch, 0) - 1 for batch in BATCHES]
    assert 0.1 < found.least_gain < max(true)


def test_a_drafter_that_costs_more_than_it_saves_is_told_without_a_model(tmp_path: Path) -> None:
    """One K at one batch size leaves the model open; the drafter's own time does not."""
    truth = replace(
        TRUTH,
        requests=60,
        batches=(1,),
        conditional=(0.15,) * 7,
        between=0.2,
        cost=Cost(depth_s=0.004),
    )
    found = advise(_run(tmp_path / "slow", truth))
    assert found is not None
    assert not found.useless
    assert found.doubt is not None
    assert found.surely_slower
    assert found.command == NO_SPECULATION
    assert found.least_gain is not None
    assert found.least_gain < _true_tpot_s(truth, 1, 7) / _true_tpot_s(truth, 1, 0) - 1
