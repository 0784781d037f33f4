"""Two runs compared: at one mix of labels, by their masses, and through arithmetic of intervals."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.simulate import Prompts, Truth, simulate
from support.simulate.sums import side, unpaired
from support.simulate.write import manifest
from typer.testing import CliRunner

from driftscope.analysis.baseline_relation import AT_MIX, Quantity, Relation, Shared, relation_of
from driftscope.analysis.comparability import NO_DIFFERENCE
from driftscope.analysis.compare import (
    LENGTH,
    MARGINAL,
    TPOT,
    Comparison,
    Difference,
    compare,
    compare_times,
    figures_at,
    figures_of,
    mix_words,
    verdict,
)
from driftscope.analysis.figures.requests import Requests
from driftscope.analysis.figures.results import acceptance_of
from driftscope.analysis.figures.rounds import Side, side_without_rounds
from driftscope.analysis.figures.run_sums import Sums, collect
from driftscope.analysis.gate import Judgement, RuleResult, RunFacts, judge, rule_of
from driftscope.analysis.pairing import BY_DIGEST, BY_ORDER, UNPAIRED, common_mix
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.statistics.changes import OTHER
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.permutation import holm
from driftscope.cli.app import app
from driftscope.cli.gate_run import run_gate
from driftscope.metrics.attention import GENERATED, PROMPT, SELF, SINK
from driftscope.pipeline import compare as compare_runs

EASY, HARD = Prompts(label="easy", shift=0.8), Prompts(label="hard", shift=-0.8)
TRUTH = Truth(requests=120, rounds=15, k=4)


def _run(seed: int, *kinds: Prompts) -> Side:
    return side(replace(TRUTH, prompts=kinds, seed=seed, prompts_seed=seed))


def _shared(easy: float, seed: int, shift: float = 0.0) -> Side:
    shares = ((EASY, easy), (HARD, 1 - easy))
    return _run(seed, *(replace(of, share=s, shift=of.shift + shift) for of, s in shares))


def _width(interval: Interval | Quantity | None) -> float:
    return interval.high - interval.low


def test_figures_at_a_mix_are_the_average_of_the_labels_figures() -> None:
    run = _shared(0.3, 1)
    mix = {"easy": 0.6, "hard": 0.4}
    found = figures_at(run, mix, 4)
    easy, hard = (figures_of(run.labelled(name).rounds, 4) for name in mix)
    assert found.value == pytest.approx(0.6 * easy.value + 0.4 * hard.value)
    # requests have one label, so the variances of the labels add up
    wanted = np.sqrt(np.square(0.6 * easy.error) + np.square(0.4 * hard.error))
    assert found.error == pytest.approx(wanted, rel=0.03)


def test_one_mix_is_none_and_rare_labels_count_as_one() -> None:
    assert common_mix(_shared(0.5, 1), _shared(0.5, 1)) == {}
    assert common_mix(_run(1, EASY), _run(2, EASY)) == {}
    rare = [Prompts(label=f"rare {n}", share=0.05) for n in range(4)]
    a = _run(1, replace(EASY, share=0.5), replace(HARD, share=0.3), *rare)
    b = _run(2, replace(EASY, share=0.2), replace(HARD, share=0.6), *rare)
    assert list(common_mix(a, b)) == [OTHER, "easy", "hard"]


def test_the_verdict_names_the_mix() -> None:
    a, b = _shared(0.2, 1), _shared(0.8, 2)
    found = unpaired(a, b)
    (length,) = found.at(LENGTH)
    assert length.interval.low < 0 < length.interval.high
    assert verdict(found).endswith(", at one mix of labels")
    assert "easy and" in mix_words(found)


def test_a_label_with_too_few_prompts_is_left_out_and_said_so() -> None:
    a, b = _run(1, replace(EASY, share=0.3), replace(HARD, share=0.7)), _run(2, EASY)
    assert common_mix(a, b) == {"easy": 1.0}
    found = unpaired(a, b)
    (length,) = found.at(LENGTH)
    assert length.first == pytest.approx(figures_of(a.labelled("easy").rounds, 4).value[0])
    assert mix_words(found).endswith("where both have enough prompts: easy.")


def test_few_clusters_with_most_of_the_weight_leave_few_degrees_of_freedom() -> None:
    run = _run(3, replace(EASY, share=0.15), replace(HARD, share=0.85))
    clusters = [int((np.array(run.labels) == name).sum()) for name in ("easy", "hard")]
    half, alone = figures_at(run, {"easy": 0.5, "hard": 0.5}, 4), figures_at(run, {"easy": 1.0}, 4)
    assert clusters[0] <= 20 < clusters[1]
    assert alone.df[0] < half.df[0] < 2 * clusters[0]


RECORDED = Path(__file__).parent / "compare" / "data" / "seeds"
DRIFTS = Truth(requests=120, rounds=30)
HOLDS = replace(DRIFTS, seed=8, conditional=(0.8, 0.72, 0.66, 0.75, 0.75, 0.75, 0.75))
"""Better from depth 4 on."""


def _collected(folder: Path, *truths: Truth) -> list[Sums]:
    return [collect(open_run(simulate(folder / str(n), truth))) for n, truth in enumerate(truths)]


def _compare(folder: Path, first: Truth, second: Truth) -> Comparison:
    return compare(*_collected(folder, first, second), labels=LABELS)


def test_says_from_which_depth_on_a_run_is_better(tmp_path: Path) -> None:
    found = _compare(tmp_path, DRIFTS, HOLDS)
    assert found.parts_from == 4
    assert (found.pairing, found.pairs) == (BY_DIGEST, 120)
    truth = HOLDS.marginal() - DRIFTS.marginal()
    for difference in found.at(MARGINAL)[3:]:
        assert difference.interval.low < truth[difference.depth - 1] < difference.interval.high
        assert difference.interval.low > 0
    words = ["compare", str(tmp_path / "0"), str(tmp_path / "1"), "--json"]
    content = json.loads(CliRunner().invoke(app, words).output)
    assert content["verdict"].startswith("1 accepts more from depth 4 on")
    assert content["where"] is None
    assert content["correction"] == "max-|t|, signs of pairs drawn"
    assert content["differences"][0]["metric"] == LENGTH


def test_says_nothing_of_two_seeds_of_a_real_engine() -> None:
    """EAGLE-3.1 of the trio at temperature 0.8, two seeds in vLLM, without the chains."""
    runs = [str(RECORDED / name) for name in ("seed-1", "seed-2")]
    done = CliRunner().invoke(app, ["compare", *runs, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["verdict"].startswith("no difference is shown: a difference larger than")
    assert found["pairs"] == 32
    tested = [difference for difference in found["differences"] if difference["interval"]]
    assert len(tested) > 4
    for difference in tested:
        assert difference["first"] != difference["second"]
        assert difference["interval"]["low"] < 0 < difference["interval"]["high"]


def test_pairs_narrow_the_interval(tmp_path: Path) -> None:
    """Requests differ more from each other than two runs of one request do."""
    truth = replace(DRIFTS, between=1.2)
    runs = _collected(tmp_path, truth, replace(truth, seed=9))
    (narrow,) = compare(*runs, labels=LABELS).at(LENGTH)
    (wide,) = unpaired(runs[0].side, runs[1].side).at(LENGTH)
    assert narrow.difference == pytest.approx(wide.difference)
    assert _width(narrow.interval) < 0.7 * _width(wide.interval)


@pytest.mark.parametrize(("digests", "how"), [(True, BY_DIGEST), (False, BY_ORDER)])
def test_requests_of_other_names_are_paired_by_their_prompt_or_order_of_arrival(
    tmp_path: Path, digests: bool, how: str
) -> None:
    """One replica and two name requests differently."""
    truth = replace(DRIFTS, digests=digests)
    first, second = _collected(tmp_path, truth, replace(truth, seed=8))
    names = second.requests.keys
    at = names.schema.get_field_index("request")
    other = [f"other-{name}" for name in names.column("request").to_pylist()]
    renamed = replace(second.requests, keys=names.set_column(at, "request", [other]))
    found = compare(first, replace(second, requests=renamed), labels=LABELS)
    assert (found.pairing, found.pairs) == (how, 120)


def test_segments_that_both_runs_have(tmp_path: Path) -> None:
    kinds = (Prompts(label="chat"), Prompts(label="code", shift=0.5))
    worse = (kinds[0], Prompts(label="code", shift=-1.0))
    truth = replace(DRIFTS, prompts=kinds, requests=200)
    found = _compare(tmp_path, truth, replace(truth, prompts=worse, seed=8))
    (chat,), (code,) = found.at(LENGTH, "chat"), found.at(LENGTH, "code")
    assert code.differs and code.difference < 0 and not chat.differs


def test_runs_of_other_k_are_compared_as_deep_as_both_go(tmp_path: Path) -> None:
    found = _compare(tmp_path, DRIFTS, replace(DRIFTS, k=3, seed=8))
    assert [difference.depth for difference in found.at(MARGINAL)] == [1, 2, 3]
    assert found.parts_from is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_is_between_each_test_alone_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    for own, of_all in zip(p, adjusted, strict=True):
        assert own <= of_all <= min(1.0, own * len(p)) + 1e-12
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


@pytest.mark.parametrize("paired", [True, False])
def test_without_speculation_it_is_times_that_are_compared(tmp_path: Path, paired: bool) -> None:
    truth = replace(DRIFTS, requests=60, batches=(1, 4))
    none = replace(truth, k_zero_above=0, prompts_seed=truth.prompts_seed + (not paired))
    paths = [simulate(tmp_path / name, world) for name, world in (("none", none), ("k7", truth))]
    done = CliRunner().invoke(app, ["compare", *map(str, paths), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["pairing"] == UNPAIRED) is not paired
    tpot, ttft = found["differences"]
    assert tpot["differs"]
    assert tpot["interval"]["low"] < tpot["second"] - tpot["first"] < tpot["interval"]["high"] < 0
    serves = "k7 serves faster" if paired else "which run serves faster cannot be told"
    assert found["verdict"].startswith(serves)
    assert not ttft["differs"]
    same = CliRunner().invoke(app, ["compare", str(paths[0]), str(paths[0])])
    assert same.output.startswith("no difference in time per output token is shown")


AT_ONCE = 8
LABELS = ("first", "second")
MANIFEST = manifest(TRUTH)


def _served(requests: Requests, seed: int) -> Requests:
    """Return requests of which AT_ONCE at a time share the machine's speed."""
    random, n = np.random.RandomState(seed), len(requests)
    speed = np.repeat(random.normal(0.0, 0.002, n // AT_ONCE), AT_ONCE)
    return replace(
        requests,
        arrival_s=np.arange(float(n)),
        ttft_s=np.full(n, 0.1),
        tpot_s=0.01 + speed + random.normal(0.0, 0.0002, n),
        output_tokens=np.full(n, 200.0),
    )


def _tpot(first: Requests, second: Requests) -> Difference:
    sides = side_without_rounds(first), side_without_rounds(second)
    found = compare_times(sides, (MANIFEST, MANIFEST), LABELS)
    return next(difference for difference in found.differences if difference.metric == TPOT)


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_knows_which_requests_shared_their_steps(tmp_path: Path, paired: bool) -> None:
    (run,) = _collected(tmp_path, Truth(requests=160, rounds=2))
    served = [_served(run.requests, seed) for seed in (1, 2)]
    if not paired:
        served[1] = replace(served[1], prompt_tokens=served[1].prompt_tokens + 1)
    known = _tpot(*served)
    unknown = _tpot(*(replace(requests, arrival_s=np.full(160, np.nan)) for requests in served))
    assert known.difference == unknown.difference
    wider = _width(known.interval) / _width(unknown.interval)
    assert wider > 1.8, "8 requests at once are worth little more than one"
    assert known.p > unknown.p


MASSES_TRUTH = Truth(k=3, requests=24, rounds=12, batches=(1,), sink=(0.3, 0.2), self_last=0.3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("masses") / "first", MASSES_TRUTH)


def test_equal_runs_have_equal_masses(run: Path) -> None:
    compared = compare_runs(run, run, LABELS)
    assert compared.same_rounds and not any(d.difference or d.differs for d in compared.differences)
    masses = compared.masses.differences
    names = (SINK.name, PROMPT.name, GENERATED.name, SELF.name)
    assert {(row.metric, row.depth) for row in masses} == {(at, d) for at in names for d in (1, 3)}
    assert not any(row.difference for row in masses)
    assert compared.masses.rounds[0] == compared.masses.rounds[1] > 0


@pytest.mark.parametrize(
    ("requests", "outcome"), [(24, RuleResult.HELD), (4, RuleResult.UNDECIDED)]
)
def test_a_run_is_no_worse_than_the_same_answers_again(
    tmp_path: Path, requests: int, outcome: RuleResult
) -> None:
    """Greedy answers of one server: no pair differs, which four pairs do not show."""
    run = simulate(tmp_path / "run", replace(MASSES_TRUTH, requests=requests))
    again = shutil.copytree(run, tmp_path / "again")
    rule = "no_worse(acceptance.mean_length, 5%)"
    (judged,) = run_gate([again], (), baseline=run, require=(rule,))
    assert judged.outcome is outcome, judged.line()


def test_a_sink_that_is_lost_is_a_difference_at_its_depth_only(run: Path, tmp_path: Path) -> None:
    lost = simulate(tmp_path / "second", replace(MASSES_TRUTH, sink=(0.3, 0.05)))
    masses = compare_runs(run, lost, LABELS).masses
    rows = {(row.metric, row.depth): row for row in masses.differences}
    last = rows[SINK.name, 3]
    assert last.differs and not rows[SINK.name, 1].differs
    assert last.difference == pytest.approx(-0.15, abs=0.02)
    assert last.interval.low < -0.15 < last.interval.high


def test_chains_that_no_target_verified_count_in_neither_run(run: Path, tmp_path: Path) -> None:
    """An engine that also records each request's last chain, far behind its text, shows the same
    masses."""
    copy = shutil.copytree(run, tmp_path / "copy")
    (path,) = copy.glob("draft-*.parquet")
    table = pq.read_table(path)
    _, last = np.unique(table.column("request").to_numpy(False), return_index=True)
    more = table.take(pa.array(last))
    at = more.column_names.index("position")
    behind = pa.array([100_000] * more.num_rows, table.schema.field(at).type)
    more = more.set_column(at, table.schema.field(at), behind)
    pq.write_table(pa.concat_tables([table, more]), path)
    assert not any(row.difference for row in compare_runs(run, copy, LABELS).masses.differences)


numbers = st.floats(-1e3, 1e3)
widths = st.floats(0, 10)


@st.composite
def quantities(draw: st.DrawFn) -> Quantity:
    value = draw(numbers)
    return Quantity(value=value, low=value - draw(widths), high=value + draw(widths))


@given(quantities(), quantities())
@example(  # rounding in logarithms
    Quantity(value=914.2804288952059, low=914.2804288952059, high=915.2804288952059),
    Quantity(value=962.0457891339117, low=962.0457891339117, high=963.0457891339117),
)
def test_an_interval_holds_its_value(a: Quantity, b: Quantity) -> None:
    for found in (a + b, a - b, a * b, -a):
        assert found.low <= found.value <= found.high


@given(numbers, numbers)
def test_exact_numbers_stay_exact(a: float, b: float) -> None:
    x, y = Quantity.exact(a), Quantity.exact(b)
    assert (x + y).value == (x + y).low == (x + y).high == a + b
    assert (x * y).is_exact
    assert (x - y).is_exact


@given(quantities(), quantities())
def test_a_difference_is_wider_than_either_and_narrower_than_both(a: Quantity, b: Quantity) -> None:
    widths = _width(a), _width(b)
    assert max(widths) / 2 - 1e-6 <= _width(a - b) <= sum(widths) + 1e-6


def test_a_ratio_of_positive_estimates_is_narrower_than_its_extremes() -> None:
    a = b = Quantity(value=2.0, low=1.9, high=2.1)
    ratio = a / b
    assert ratio.value == 1.0
    assert 1.9 / 2.1 < ratio.low < ratio.high < 2.1 / 1.9
    assert ratio.high == pytest.approx(math.exp(math.hypot(math.log(1.05), math.log(2 / 1.9))))


def test_dividing_by_what_may_be_zero_says_nothing() -> None:
    ratio = Quantity.exact(1.0) / Quantity(value=0.1, low=-0.1, high=0.3)
    assert (ratio.low, ratio.high) == (-math.inf, math.inf)


def test_errors_in_common_drop_out_of_a_difference_and_a_ratio() -> None:
    def of(baseline: bool, correlation: float) -> Quantity:
        shared = Shared(figure="a", baseline=baseline, correlation=correlation)
        return Quantity(value=2.0, low=1.5, high=2.5, shared=shared)

    ours, theirs = of(False, 0.9), of(True, 0.9)
    alone = _width(of(False, 0.0) - of(True, 0.0))
    assert _width(ours - theirs) == pytest.approx(alone * (1 - 0.9) ** 0.5)
    assert _width(ours - Quantity.exact(2.0) * theirs) < alone < _width(ours + theirs)
    assert _width(ours / theirs) < _width(of(False, 0.0) / of(True, 0.0))
    assert _width(ours - ours) == pytest.approx(alone)


LOSES = "acceptance.mean_length < baseline.acceptance.mean_length"


def _judged(rule: str, run: Side, baseline: Side, relation: Relation) -> Judgement:
    facts = RunFacts(run=_figures(run), baseline=_figures(baseline), has_finding=lambda _: None)
    return judge([rule_of(rule)], [("run", replace(facts, relation=relation))])[0]


def _related(run: Side, baseline: Side) -> Relation:
    return relation_of([unpaired(baseline, run)], NO_DIFFERENCE)


def _figures(run: Side) -> dict[str, object]:
    found = acceptance_of(run.rounds, spread=True)
    ends = found.mean_length_interval
    spread = {"low": ends.low, "high": ends.high}
    return {"acceptance": {"mean_length": found.mean_length, "mean_length_interval": spread}}


def test_another_mix_of_labels_breaks_no_rule() -> None:
    baseline, run = _shared(0.8, 1), _shared(0.2, 2)
    assert _judged(LOSES, run, baseline, Relation()).outcome is RuleResult.BROKEN
    at_mix = _judged(LOSES, run, baseline, _related(run, baseline))
    assert at_mix.outcome is RuleResult.UNDECIDED
    assert f"acceptance.mean_length{AT_MIX} = " in at_mix.line()
    assert set(at_mix.values) == {
        f"acceptance.mean_length{AT_MIX}",
        f"baseline.acceptance.mean_length{AT_MIX}",
    }


def test_a_worse_drafter_that_serves_easier_labels_breaks_the_rule() -> None:
    baseline, run = _shared(0.2, 1), _shared(0.8, 2, shift=-0.9)
    assert _judged(LOSES, run, baseline, Relation()).outcome is not RuleResult.BROKEN
    assert _judged(LOSES, run, baseline, _related(run, baseline)).outcome is RuleResult.BROKEN


def test_figures_at_the_mix_are_those_of_compare() -> None:
    baseline, run = _shared(0.8, 1), _shared(0.2, 2)
    found = _related(run, baseline)
    (length,) = unpaired(baseline, run).at(LENGTH)
    ours = found.compared("acceptance.mean_length", baseline=False)
    theirs = found.compared("acceptance.mean_length", baseline=True)
    apart = ours - theirs
    assert (apart.value, apart.low, apart.high) == pytest.approx(
        (length.difference, length.interval.low, length.interval.high)
    )
    assert found.run["acceptance.marginal[-1]"] == found.run["acceptance.marginal[3]"]
