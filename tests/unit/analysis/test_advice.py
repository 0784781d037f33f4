"""The cost model against simulated runs whose cost is known."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.analyses import summary_of
from support.simulate import Cost, Truth

from driftscope.analysis.advice import (
    BY_BATCH,
    FIXED,
    NO_SPECULATION,
    Choice,
    advise,
    choose,
    to_measure,
)
from driftscope.analysis.cost import GROUPS, Span, StepCell, cells_of_runs, evened, fit, run_effect
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.time_per_token import Prediction, Times
from driftscope.analysis.validity import RUN_EFFECT
from driftscope_reports.terminal import show_advice

BATCHES = (1, 4, 16)
TRUTH = Truth(requests=400, rounds=40, batches=BATCHES, rates=(0.1,))


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    return _run(tmp_path_factory.mktemp("seven"), TRUTH)


def _run(folder: Path, truth: Truth) -> RunSummary:
    return summary_of(folder / f"K = {truth.k}", truth)


def _true_tpot_s(truth: Truth, batch: int, k: int) -> float:
    chains = np.array([batch])
    verify = truth.cost.verify_s(chains, chains * (k + 1))[0]
    draft = truth.cost.drafting_s(chains, k)[0] if k else 0.0
    return float(verify + draft) / (1 + float(truth.marginal()[:k].sum()))


def _off(at: Prediction, truth: Truth) -> list[float]:
    return [e.value / _true_tpot_s(truth, at.batch, k) - 1 for k, e in enumerate(at.tpot_s)]


def test_measured_times_are_near_the_truth_and_bounds_hold_the_others(
    seven: RunSummary, tmp_path: Path
) -> None:
    found = advise(seven, [_run(tmp_path, replace(TRUTH, k=3))])
    assert (found.measured_k, found.assumed) == ((3, 7), ())
    for at in found.by_batch:
        assert max(abs(_off(at, TRUTH)[k]) for k in (3, 7)) < 0.05
        for k, time in enumerate(at.tpot_s):
            assert time.interval is None or (
                time.interval.low <= _true_tpot_s(TRUTH, at.batch, k) <= time.interval.high
            )


def test_one_run_alone_names_the_k_to_measure_and_commands_none(seven: RunSummary) -> None:
    found = advise(seven)
    assert found.command is None
    assert "one K was served" in found.assumed[0]
    following = found.choice.next
    assert following.k != 7
    assert to_measure(found) is not None
    assert following.most is not None
    true = [
        sum(at.weight * _true_tpot_s(TRUTH, at.batch, k) for at in found.by_batch)
        for k in (7, following.k)
    ]
    assert true[0] / true[1] - 1 <= following.most
    words = to_measure(found) or ""
    assert words.startswith("K = 7 ran; ")
    assert words.endswith(f"; measure K = {following.k}")


def test_order_bounds_what_was_not_measured() -> None:
    """One K at one batch size: fewer tokens take no more time, and at least half of it."""
    model = fit([[_cell(7, 8)]])
    none, some = model.step(8, 0), model.step(8, 3)
    assert none.low == pytest.approx(0.003, rel=0.15)
    assert none.high == pytest.approx(0.006, rel=0.15)
    assert some.low == pytest.approx(0.003 + 0.004 * 3 / 7, rel=0.15)
    assert some.high == pytest.approx(0.010, rel=0.15)
    assert math.isinf(model.step(8, 9).high)


def test_steps_with_fewer_tokens_and_requests_bound_from_below() -> None:
    model = fit([[_cell(7, 1, step_s=0.009), _cell(7, 16, step_s=0.020)]])
    low = model.step(16, 1).low
    assert low == pytest.approx(0.005 + 0.004 / 7, rel=0.15), "16 x 2 tokens are more than 8"


def test_two_runs_of_one_k_show_how_much_runs_differ() -> None:
    one, slow = ([_cell(7, n, step_s=step_s) for n in (1, 2)] for step_s in (0.010, 0.013))
    assert run_effect([one]) == RUN_EFFECT
    assert run_effect([one, [_cell(3, 1)]]) == RUN_EFFECT
    assert run_effect([one, one]) < RUN_EFFECT
    assert run_effect([one, slow]) > 2 * RUN_EFFECT


def test_runs_of_one_k_count_equally() -> None:
    (cell,) = cells_of_runs([[_cell(7, 1)], [_cell(7, 1, steps=1000, step_s=0.02)]])
    assert (cell.runs, cell.step_s) == (2, pytest.approx(0.015))


def test_a_run_that_was_fast_by_chance_does_not_win() -> None:
    """Equal servers: of three runs the middle one happened to be a tenth faster."""
    model = fit([[_cell(3, 1, step_s=0.009)], [_cell(2, 1)], [_cell(4, 1)]])
    assert model is not None
    (fast,) = (cell.step_s for cell in evened(model).cells if cell.k == 3)
    assert 0.93 < fast / 0.010 < 0.97


def _cell(k: int, batch: int, **known: float) -> StepCell:
    usual = {"steps": 100, "step_s": 0.010, "step_error_s": 0.0, "draft_s": 0.004}
    return StepCell(k=k, batch=batch, draft_error_s=0.0, recorded=False, **{**usual, **known})


def test_expensive_verification_brings_a_schedule_by_batch_size(tmp_path: Path) -> None:
    """At batch 1 tokens cost little beside the rest, at 16 they are nearly all there is."""
    cost, rates = Cost(base_s=0.05, token_s=0.004), (0.8,) * 7
    truth = replace(TRUTH, cost=cost, conditional=rates, batches=(*(1,) * 48, 16))
    found = advise(_run(tmp_path, truth), [_run(tmp_path, replace(truth, k=1))])
    (first, *_, last) = found.schedule
    assert first[0] == 1
    assert last[1] == 16
    assert first[2] > last[2]
    assert found.command is not None
    assert found.schedule_gain.interval.low > 0
    option, config = shlex.split(found.command)
    assert option == "--speculative-config"
    given = json.loads(config)
    assert given[BY_BATCH] == [list(part) for part in found.schedule]
    assert given[FIXED] == max(k for _, _, k in found.schedule)
    assert given["method"] == "eagle3"


def test_a_model_s_name_cannot_break_out_of_the_option(seven: RunSummary) -> None:
    hostile = "a'; rm -rf / #"
    named = replace(seven.manifest, drafter=replace(seven.manifest.drafter, name=hostile))
    found = advise(replace(seven, manifest=named))
    assert found.measure_command is not None
    assert json.loads(shlex.split(found.measure_command)[-1])["model"] == hostile


def test_bounds_hold_the_long_run_where_runs_wander() -> None:
    """Runs whose speed wanders by a tenth, as that of a busy machine does: the intervals hold the
    time in the long run, where the error of a median alone would not."""
    random, wander, steps_of_a_part = np.random.RandomState(1), 0.1, 40

    def truth(k: int) -> float:
        return 0.01 + 0.001 * k

    def run(k: int) -> StepCell:
        parts = truth(k) * np.exp(wander * random.standard_normal(GROUPS))
        return _cell(
            k,
            1,
            steps=GROUPS * steps_of_a_part,
            step_s=float(np.median(parts)) * np.exp(wander * random.standard_normal()),
            step_error_s=float(np.std(parts, ddof=1) / np.sqrt(GROUPS)),
            draft_s=0.0005 * k,
        )

    held = []
    for _ in range(100):
        model = fit([[run(8)], [run(2)]])
        for k in (0, 2, 4, 6, 8):
            span = model.step(1, k)
            held.append(span.low <= truth(k) <= span.high)
    assert np.mean(held) > 0.9


def test_a_machine_that_was_too_busy_is_told_in_one_sentence(
    seven: RunSummary, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of dashes was printed, with how far its curve was off."""
    noisy = replace(seven, cells=tuple(replace(c, step_error_s=c.step_s) for c in seven.cells))
    advice, sure = advise(noisy), advise(seven)
    assert advice is not None and advice.tells_nothing and advice.command is None
    assert sure is not None and not sure.tells_nothing
    show_advice(advice)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("K = 7: it is not known which K is fastest: the step times leave")
    assert printed.endswith("on a quieter machine, with 20 or more steps at each batch size")


@pytest.mark.parametrize("accepted", [0.0, 0.002])
def test_a_dead_drafter_is_advised_off_by_what_the_drafter_takes(
    tmp_path: Path, accepted: float
) -> None:
    """The gain is at least what steps save without the drafter, and the true one is no smaller."""
    conditional = (max(accepted, 1e-12),) * 7
    truth = replace(TRUTH, requests=60, conditional=conditional, between=0.0, within=0.0)
    run = _run(tmp_path / "dead", truth)
    found = advise(run)
    assert found.useless
    assert found.overall.best_k == 0
    assert found.command == NO_SPECULATION
    assert found.least_gain is not None
    true = [_true_tpot_s(truth, batch, 7) / _true_tpot_s(truth, batch, 0) - 1 for batch in BATCHES]
    assert 0.1 < found.least_gain < max(true)


SURE = 0.01


def _chosen(
    values: Sequence[float],
    measured: set[int],
    *,
    ran: int,
    growth: float = 0.01,
    unsure: float = 0.6,
) -> Choice:
    """Choose among times of which those of measured K are known to SURE."""
    parts = [1 + (SURE if k in measured else unsure) for k in range(len(values))]
    pairs = zip(values, parts, strict=True)
    spans = tuple(Span(value=v, low=v / part, high=v * part) for v, part in pairs)
    times = Times(by_k=spans, ran=spans[ran])
    return choose(times, times, measured, ran=ran, growth=growth)


CURVE = [9.0, 6.0, 5.0, 5.5, 7.0]


@pytest.mark.parametrize(
    ("measured", "chosen", "following", "guess", "most"),
    [
        ({4}, 4, 2, 7.0 / 5.0 - 1, 7.0 * 1.01 / (5.0 / 1.6) - 1),
        ({4, 2}, 2, 3, None, None),
        ({4, 1, 2, 3}, 2, None, None, None),
    ],
    ids=["the guessed best", "the better neighbour of the best", "both neighbours are slower"],
)
def test_what_to_measure_next(
    measured: set[int],
    chosen: int,
    following: int | None,
    guess: float | None,
    most: float | None,
) -> None:
    found = _chosen(CURVE, measured, ran=4)
    assert (found.k, found.next and found.next.k) == (chosen, following)
    if guess:
        assert (found.next.guess, found.next.most) == pytest.approx((guess, most))
    if following is None:
        assert found.measured
        assert found.gain.interval.low == pytest.approx(7.0 / 5.0 / 1.01**2 - 1)


def test_a_k_that_surely_loses_at_most_5_percent_is_settled_without_neighbours() -> None:
    found = _chosen([9.0, 6.0, 5.9, 5.0], {3}, ran=3, unsure=0.04)
    assert found.regret is not None and found.regret <= 0.05
    assert (found.k, found.next) == (3, None)


def test_a_larger_k_gets_a_bound_and_no_guess() -> None:
    found = _chosen([9.0, 6.0, 5.0], {0, 1, 2}, ran=2, growth=0.2)
    assert (found.next.k, found.next.guess, found.next.most) == (3, None, 0.2)


def test_nothing_measured_and_nothing_bounded_chooses_nothing() -> None:
    found = _chosen([9.0, 6.0, 5.0], set(), ran=2)
    assert (found.k, found.gain, found.next) == (None, None, None)
