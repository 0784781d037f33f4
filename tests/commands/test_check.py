"""The gate as a pipeline runs it, also with an inspection as its baseline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.analyses import client_row, write_replay
from support.command import Driftscope, assert_fails, run_command
from support.inspections import inspection_document
from support.runs import Spec, write_run
from support.simulate import Cost, Truth, simulate

from driftscope import check
from driftscope.analysis.gate import Judgement, RuleResult
from driftscope.analysis.query.row_filters import Filter
from driftscope.cli.gate_run import outcome, run_gate
from driftscope.errors import EXIT_UNKNOWN, MixedTraceError, NoDataError, UsageError
from driftscope.inspect.compare_run import compare_run, read_inspection, rounds_like
from driftscope.pipeline import Inputs, analyze, conclude, summarise
from driftscope.trace.manifest import WAS_SIMULATED
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Ended

pytestmark = pytest.mark.slow

LENGTH = "acceptance.mean_length"
LESS = f"{LENGTH} < baseline.{LENGTH}"


def test_broken_rules_are_one_line_each_and_exit_3(driftscope: Driftscope, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec())
    rules = [
        f"--fail-on={rule}" for rule in ("hidden_state_grows", f"{LENGTH} < 4", f"{LENGTH} < 1.1")
    ]
    done = driftscope("check", run, *rules)
    assert done.returncode == 3
    first, second = done.stdout.splitlines()
    assert first.startswith("broken: hidden_state_grows [run]: hidden_state_grows = 1.357 [1.35")
    assert first.endswith("bound of hidden_state_grows = 1.06")
    assert second.startswith(f"broken: {LENGTH} < 4 [run]: {LENGTH} = 2.")
    assert done.stderr == "2 broken, 1 held, 0 undecided\n"
    content = json.loads(driftscope("check", run, "--json", *rules).stdout)
    assert content["exit_code"] == 3
    assert [rule["outcome"] for rule in content["rules"]] == ["broken", "broken", "held"]
    length = content["rules"][2]["values"][LENGTH]
    assert length["low"] < length["value"]


def test_no_rule_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no rule"):
        run_gate([write_run(tmp_path / "run")], [], None, None)


def test_a_broken_rule_goes_before_an_undecided_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec(heads=0))
    assert outcome(run_gate([run], ["sink_lost", f"{LENGTH} < 9"], None, None)) == 3


def test_rules_come_from_a_file_too(tmp_path: Path) -> None:
    rules = tmp_path / "gate.toml"
    rules.write_text(
        f'fail_on = ["sink_lost", "{LENGTH} < 1.1"]\n'
        f'[[rule]]\nname = "tokens per round"\nfail_on = "{LENGTH} < 9"\n'
    )
    judged = run_gate([write_run(tmp_path / "run", Spec())], ["k > 4"], rules, None)
    names = ["k > 4", "sink_lost", f"{LENGTH} < 1.1", f"tokens per round ({LENGTH} < 9)"]
    assert [str(j.rule) for j in judged] == names
    assert judged[-1].line().startswith("broken: tokens per round")


@pytest.mark.parametrize(
    "content",
    ["fail_on = 3", "failon = []", "[[rule]]\nname = 'x'", "[[rule]]\nfail_on = 'k <'", "= 3"],
)
def test_a_file_that_cannot_be_read_names_itself(tmp_path: Path, content: str) -> None:
    rules = tmp_path / "gate.toml"
    rules.write_text(content)
    with pytest.raises(UsageError, match=r"gate\.toml"):
        run_gate([write_run(tmp_path / "run")], [], rules, None)


@pytest.mark.parametrize(
    ("draft_s", "baseline", "judged"),
    [
        (0.0004, True, "held"),
        (0.03, True, "broken"),
        (0.012, True, "undecided"),
        (0.0004, False, "undecided"),
        (0.5, False, "broken"),
    ],
)
def test_a_gate_on_whether_it_pays_holds_only_if_that_is_known(
    tmp_path: Path, draft_s: float, baseline: bool, judged: str
) -> None:
    truth = Truth(requests=40, rounds=20, cost=Cost(draft_s=draft_s))
    run = simulate(tmp_path / "run", truth)
    plain = simulate(tmp_path / "plain", replace(truth, k_zero_above=0)) if baseline else None
    (found,) = run_gate([run], ["slower_than_none"], None, plain)
    assert str(found.outcome) == judged, found.line()


def test_a_baseline_without_speculation_has_a_time_and_no_acceptance(tmp_path: Path) -> None:
    truth = Truth(requests=40, rounds=20)
    run = simulate(tmp_path / "run", truth)
    plain = simulate(tmp_path / "plain", replace(truth, k_zero_above=0))
    rules = ["latency.tpot_s > baseline.latency.tpot_s", LESS, "slower_than_none"]
    outcomes = [str(j.outcome) for j in run_gate([run], rules, None, plain)]
    assert outcomes == ["held", "undecided", "held"]


def test_the_same_prompts_are_compared_pair_by_pair(tmp_path: Path) -> None:
    """A loss of 6 % that is lost in how prompts differ, unless each is compared with itself. Of
    other prompts nothing is told, however clear the figures are."""
    truth = Truth(requests=60, rounds=40, batches=(1,), between=0.8)
    worse = tuple(0.93 * rate for rate in truth.conditional)
    before = simulate(tmp_path / "before", truth)
    after = simulate(tmp_path / "after", replace(truth, seed=9, conditional=worse))
    others = tuple(0.6 * rate for rate in truth.conditional)
    other = replace(truth, seed=10, prompts_seed=99, conditional=others)
    other_prompts = simulate(tmp_path / "other", other)
    for rule in (f"{LENGTH} < baseline.{LENGTH}", f"{LENGTH} / baseline.{LENGTH} < 1"):
        assert outcome(run_gate([after], [rule], None, before)) == 3
        judged = run_gate([other_prompts], [rule], None, before)
        assert outcome(judged) == 4
        assert judged[0].because.startswith("the runs also differ in prompts")


def test_no_worse_than_before_is_required(driftscope: Driftscope, tmp_path: Path) -> None:
    """Pairs of the same prompts: a loss of 20 % fails, none passes, a small one is open."""
    truth = Truth(requests=80, rounds=40, batches=(1,))
    before = simulate(tmp_path / "before", truth)
    codes = {}
    for factor in (0.75, 0.955, 1.0):
        rates = tuple(factor * rate for rate in truth.conditional)
        after = simulate(tmp_path / f"{factor}", replace(truth, seed=9, conditional=rates))
        rule = ("--require", f"no_worse({LENGTH}, 5%)")
        done = driftscope("check", after, "--baseline", before, *rule)
        codes[factor] = done.returncode
        if done.returncode == 4:
            assert "requests would decide it" in done.stdout
            for word, code in (("pass", 0), ("fail", 3)):
                again = driftscope("check", after, "--baseline", before, *rule, "--undecided", word)
                assert again.returncode == code
    assert codes == {0.75: 3, 0.955: 4, 1.0: 0}


def test_a_replay_is_judged_by_what_is_about_replays(tmp_path: Path) -> None:
    rows = [client_row(n) for n in range(4)]
    lost = [*rows, client_row(4, ended=Ended.TIMEOUT, tpot_s=None, accepted=None, verified=None)]
    whole, broken = (write_replay(tmp_path / f"{n}", r) for n, r in enumerate((rows, lost)))
    server = write_run(tmp_path / "server")

    def code(runs: list[Path], *rules: str, baseline: Path | None = None) -> int:
        return outcome(run_gate(runs, rules, None, baseline))

    assert code([broken], "not_answered") == 3
    assert code([whole], "not_answered") == 0
    assert code([whole, server], "not_answered", f"{LENGTH} < 1.1") == 0
    assert code([server, broken], "high", "not_answered") == 3
    assert code([whole], "outcomes_change") == 4, "there is nothing beside it"
    assert code([server], "not_answered") == 4, "no replay"
    assert code([whole], "hidden_state_grows") == 4, "no probe"
    rule = "cells[0].tpot_s > 2 * baseline.cells[0].tpot_s"
    assert code([whole], rule, baseline=broken) == 0


@pytest.mark.parametrize(
    ("last", "code"), [(0.005, 3), (0.06, 4), (0.9, 0)], ids=["dead", "open", "alive"]
)
def test_a_finding_is_judged_by_its_interval(last: float, code: int, tmp_path: Path) -> None:
    """Of the tokens that get to the last depth, surely less than 5 % are accepted, about 5 %, or
    surely more."""
    run = write_run(tmp_path / "run", Spec(conditional=(0.9, 0.9, 0.9, last), rounds=60))
    (judged,) = run_gate([run], ["acceptance_dies"], None, None)
    assert outcome([judged]) == code
    assert (judged.wanted_requests is None) is (code != 4)
    assert "bound of acceptance_dies" in judged.line()


def test_severities_may_be_asked_for(tmp_path: Path) -> None:
    good = Spec(growth=1.0, self_last=0.05, conditional=(0.95,) * 4, sink=(0.4, 0.39))
    drifting, dead = Spec(norm_output=True), Spec(conditional=(0.0,) * 4, rounds=30)
    for number, (spec, severities, code) in enumerate(
        ((dead, ["high"], 3), (drifting, ["medium"], 3), (good, ["high", "medium"], 0))
    ):
        run = write_run(tmp_path / f"{number}", spec)
        assert outcome(run_gate([run], severities, None, None)) == code


def test_the_gate_is_an_assertion_for_tests(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec(norm_output=True, growth=2.5))
    check(run, fail_on=["acceptance.mean_length > 4"], require=["k >= 4"])
    with pytest.raises(AssertionError) as broken:
        check(run, fail_on=["hidden_state_grows", "k > 9"], require=["k < 2"])
    lines = str(broken.value).splitlines()
    assert len(lines) == 2, "one line for each broken rule"
    assert lines[0].startswith("broken: hidden_state_grows [run]: ")


def test_an_undecided_rule_of_the_assertion(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Spec())
    length = summarise(run, "run").acceptance.mean_length
    open_rule = [f"acceptance.mean_length < {length}"]
    check(run, fail_on=open_rule, undecided="pass")
    with pytest.raises(AssertionError, match="undecided"):
        check(run, fail_on=open_rule)
    with pytest.raises(UsageError, match="undecided='maybe'"):
        check(run, fail_on=open_rule, undecided="maybe")


def test_a_run_that_is_still_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", Spec(), closed=False)
    run_gate([run], ["k > 9"], None, None)
    assert "run: worker0-1 is still recording or was killed" in capsys.readouterr().err


def test_advice_names_the_runs_that_it_leaves_out(driftscope: Driftscope, tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", Truth(requests=60, rounds=30))
    other = simulate(tmp_path / "other", Truth(k=2, requests=60, rounds=30, target="llama-70b"))
    alone, both = driftscope("advise", run), driftscope("advise", run, other)
    words = "left out, it has another target (llama-70b instead of simulated-target)\n"
    assert (both.stdout, alone.stderr) == (alone.stdout, "")
    assert both.stderr == f"warning: other: {words}"
    assert f"warning: baseline: {words}" in driftscope("advise", run, "--baseline", other).stderr


def test_advice_is_a_table_and_an_option_to_paste(driftscope: Driftscope, tmp_path: Path) -> None:
    """K = 2 is surely faster than K = 7 here."""
    costly = Truth(requests=60, rounds=30, cost=Cost(depth_s=0.003))
    run = simulate(tmp_path / "run", costly)
    alone = driftscope("advise", run)
    assert alone.returncode == 0, alone.stderr
    assert "one K was served" in alone.stdout
    assert "; measure K = " in alone.stdout
    first, command, *_ = alone.stdout.splitlines()
    assert "--speculative-config" not in first, "one K does not tell"
    assert command.startswith("to do so: driftscope pays simulated-target -k 7,")
    other = simulate(tmp_path / "other", replace(costly, k=2))
    done = driftscope("advise", run, other)
    assert done.stdout.startswith('run: --speculative-config \'{"method": "eagle3"')
    assert "one K was served" not in done.stdout
    content = json.loads(driftscope("advise", run, other, "--json").stdout)
    assert len(content["overall"]["tpot_s"]) == 8


@pytest.mark.parametrize("equal", [False, True])
def test_runs_part_agrees_with_compare(tmp_path: Path, equal: bool) -> None:
    """A drafter that is dead from depth 2, and the same one again."""
    healthy = Truth(requests=40, rounds=15, k=4)
    dead = replace(healthy, conditional=(0.8, 1e-9, 0.5, 0.5), seed=4)
    baseline = simulate(tmp_path / "healthy", healthy)
    run = simulate(tmp_path / "run", replace(healthy, seed=5) if equal else dead)
    assert outcome(run_gate([run], ["runs_part"], None, baseline)) == (0 if equal else 3)
    found = json.loads(run_command("compare", baseline, run, "--json").stdout)
    base, summary = (summarise(read_trace(path), path.name) for path in (baseline, run))
    findings = {finding.id: finding for finding in conclude([summary], (), base).findings}
    if equal:
        alike = findings["runs_alike"]
        assert found["parts_from"] is None
        assert alike.evidence["bound"] == pytest.approx(found["bound"])
        assert f"{100 * found['bound']:.1f} points" in alike.statement
        return
    evidence = findings["runs_part"].evidence
    assert evidence["depth"] == found["parts_from"] == 2
    at = next(d for d in found["differences"] if d["depth"] == evidence["depth"])
    ends = (evidence["difference_low"], evidence["difference_high"])
    assert ends == pytest.approx((at["interval"]["low"], at["interval"]["high"]))
    assert evidence["depths_apart"] == len(found["apart_at"])


def test_too_few_requests_are_undecided(tmp_path: Path) -> None:
    few = Truth(requests=4, rounds=10, k=4)
    run, baseline = (simulate(tmp_path / f"{n}", replace(few, seed=n)) for n in range(2))
    assert outcome(run_gate([run], ["runs_part"], None, baseline)) == 4


@pytest.mark.parametrize("against", [False, True])
def test_simulated_acceptance_decides_nothing(
    driftscope: Driftscope, tmp_path: Path, *, against: bool
) -> None:
    """Neither of the run nor of one that is compared with it."""
    simulated = write_run(tmp_path / "simulated", Spec(requests=4, verification="simulated"))
    real = write_run(tmp_path / "real", Spec(requests=4, verification="exact"))
    asked = [real, "--baseline", simulated] if against else [simulated]
    rules = "--fail-on high --fail-on acceptance_dies --require acceptance.mean_length>1"
    done = driftscope("check", *asked, *rules.split())
    assert done.returncode == 4
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(one.startswith("undecided: ") and WAS_SIMULATED in one for one in lines)


RATES = (0.8, 0.6, 0.4, 0.3)
BETTER = (0.9, 0.85, 0.8, 0.8)
K = len(RATES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "live", Spec())


def _judged(run: Path, folder: Path, rates: tuple[float, ...], *rules: str) -> Sequence[Judgement]:
    """Judge a run against an inspection whose drafter accepts these shares by depth."""
    return run_gate([run], rules, None, inspection_document(folder, rates))


def test_a_run_that_accepts_less_than_an_inspection_fails_the_gate(
    tmp_path: Path, run: Path
) -> None:
    def check(rates: tuple[float, ...], *more: str) -> CompletedProcess[str]:
        document = inspection_document(tmp_path, rates)
        return run_command("check", run, "--baseline", document, "--fail-on", LESS, *more)

    done, as_much = check(BETTER), check(RATES)
    assert done.returncode == 3
    assert done.stdout.startswith(f"broken: {LESS} [live]: {LENGTH} over rounds of K = {K} = ")
    assert f"baseline.{LENGTH} = " in done.stdout
    assert "whether the prompts are the same is not known" in done.stderr
    assert f"acceptance at K = {K} alone" in done.stderr
    assert as_much.returncode == 4
    assert "requests would decide it" not in as_much.stdout, "the inspection's are too few, too"
    assert check(RATES, "--undecided", "pass").returncode == 0
    other = tmp_path / "other.json"
    other.write_text("{}")
    done = run_command("check", run, "--baseline", other, "--fail-on", LESS)
    assert_fails(done, EXIT_UNKNOWN, "other.json")


@pytest.mark.parametrize(("rates", "broken"), [(BETTER, True), (RATES, False)])
def test_the_gate_agrees_with_compare(
    tmp_path: Path, run: Path, rates: tuple[float, ...], broken: bool
) -> None:
    like = Filter(where=rounds_like(K))
    (summary,) = analyze(Inputs(sources=[run], labels=["live"], only=like)).runs
    compared = compare_run(read_inspection(inspection_document(tmp_path, rates)), summary)
    marginal = (f"acceptance.marginal[{d}] < baseline.acceptance.marginal[{d}]" for d in (1, -1))
    depths = [compared.differences[at] for at in (0, 2, K)]
    less = [depth.interval is not None and depth.interval.high < 0 for depth in depths]
    judged = _judged(run, tmp_path, rates, LESS, *marginal)
    assert [rule.outcome is RuleResult.BROKEN for rule in judged] == less
    assert less[0] is broken


def test_a_margin_decides_on_a_good_run(tmp_path: Path, run: Path) -> None:
    (held,) = _judged(run, tmp_path, RATES, f"not no_worse({LENGTH}, 30%)")
    assert held.outcome is RuleResult.HELD
    (broken,) = _judged(run, tmp_path, BETTER, f"not no_worse({LENGTH}, 5%)")
    assert broken.outcome is RuleResult.BROKEN


def test_what_an_inspection_does_not_hold_is_undecided(tmp_path: Path, run: Path) -> None:
    names = ("latency.tpot_s", "hidden.growth", "acceptance.conditional[0]")
    rules = (*(f"{name} < baseline.{name}" for name in names), "runs_part")
    for judged in _judged(run, tmp_path, BETTER, *rules):
        assert judged.outcome is RuleResult.UNDECIDED


def test_rounds_of_the_inspections_k_are_compared(tmp_path: Path) -> None:
    """The run drafts 4 tokens for small batches and 2 for large ones."""
    truth = Truth(k=4, requests=60, rounds=20, batches=(1, 8), k_by_batch=((1, 4), (8, 2)))
    run = simulate(tmp_path / "run", truth)
    (judged,) = _judged(run, tmp_path, (0.99, 0.99), LESS)
    assert judged.outcome is RuleResult.BROKEN
    figure = judged.values[f"{LENGTH} over rounds of K = 2"]
    like = Filter(where=rounds_like(2))
    (summary,) = analyze(Inputs(sources=[run], labels=["run"], only=like)).runs
    (at,) = [at_k for at_k in summary.acceptance.by_k if at_k.k == 2]
    assert getattr(figure, "value", None) == at.mean_length != summary.acceptance.mean_length


def test_what_no_inspection_is_compared_with_is_an_error(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'mean_length'"):
        _judged(run, tmp_path, RATES, "k < baseline.acceptance.mean_lenght")
    with pytest.raises(MixedTraceError, match=f"--k {K}"):
        _judged(run, tmp_path, RATES[:3], LESS)
    replay = write_replay(tmp_path / "replay", [client_row(n) for n in range(4)])
    with pytest.raises(NoDataError, match="no run of a probe"):
        _judged(replay, tmp_path, RATES, LESS)
