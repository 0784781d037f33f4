"""A gate whose baseline is an inspection: acceptance decides, everything else is undecided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import run_command
from support.inspections import inspection_document
from support.replays import client_row, write_replay
from support.runs import Spec, write_run
from support.simulate import Truth, simulate

from driftscope import check
from driftscope.analysis.gate import Judgement, Outcome
from driftscope.analysis.query.row_filters import Filter
from driftscope.cli.gate_run import run_gate
from driftscope.errors import EXIT_UNKNOWN, MixedTraceError, NoDataError, UsageError
from driftscope.inspect.compare_run import compare_run, read_inspection, rounds_like
from driftscope.pipeline import Inputs, analyze

LENGTH = "acceptance.mean_length"
LESS = f"{LENGTH} < baseline.{LENGTH}"
RATES = (0.8, 0.6, 0.4, 0.3)
BETTER = (0.9, 0.85, 0.8, 0.8)
K = len(RATES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(k=K, conditional=RATES, requests=40, rounds=10)
    return write_run(tmp_path_factory.mktemp("run") / "live", spec)


def _judged(run: Path, document: Path, *rules: str) -> list[Judgement]:
    return run_gate([run], rules, None, document)


def test_a_run_that_accepts_less_fails_the_gate(tmp_path: Path, run: Path) -> None:
    document = inspection_document(tmp_path, BETTER)
    done = run_command("check", run, "--baseline", document, "--fail-on", LESS)
    assert done.returncode == 3
    assert done.stdout.startswith(f"broken: {LESS} [live]: {LENGTH} over rounds of K = {K} = ")
    assert f"baseline.{LENGTH} = " in done.stdout
    assert "whether the prompts are the same is not known" in done.stderr
    assert f"acceptance at K = {K} alone" in done.stderr


def test_a_run_that_accepts_as_much_does_not(tmp_path: Path, run: Path) -> None:
    command = "check", run, "--baseline", inspection_document(tmp_path, RATES), "--fail-on", LESS
    done = run_command(*command)
    assert done.returncode == 4
    assert "requests would decide it" not in done.stdout, (
        "the inspection's prompts are too few, too"
    )
    assert run_command(*command, "--undecided", "pass").returncode == 0


@pytest.mark.parametrize(("rates", "broken"), [(BETTER, True), (RATES, False)])
def test_the_gate_agrees_with_compare(
    tmp_path: Path, run: Path, rates: tuple[float, ...], broken: bool
) -> None:
    document = inspection_document(tmp_path, rates)
    like = Filter(where=rounds_like(K))
    (summary,) = analyze(Inputs(sources=[run], labels=["live"], only=like)).runs
    compared = compare_run(read_inspection(document), summary)
    rules = [
        LESS,
        *(f"acceptance.marginal[{d}] < baseline.acceptance.marginal[{d}]" for d in (1, -1)),
    ]
    judged = _judged(run, document, *rules)
    depths = [compared.differences[at] for at in (0, 2, K)]
    less = [each.interval is not None and each.interval.high < 0 for each in depths]
    assert [each.outcome is Outcome.BROKEN for each in judged] == less
    assert less[0] is broken


def test_a_margin_decides_on_a_good_run(tmp_path: Path, run: Path) -> None:
    document = inspection_document(tmp_path, RATES)
    (held,) = _judged(run, document, f"not no_worse({LENGTH}, 30%)")
    assert held.outcome is Outcome.HELD
    (broken,) = _judged(run, inspection_document(tmp_path, BETTER), f"not no_worse({LENGTH}, 5%)")
    assert broken.outcome is Outcome.BROKEN


@pytest.mark.parametrize(
    "rule",
    [
        "latency.tpot_s > baseline.latency.tpot_s",
        "hidden.growth > baseline.hidden.growth",
        "acceptance.conditional[0] < baseline.acceptance.conditional[0]",
        "runs_part",
    ],
)
def test_what_an_inspection_does_not_hold_is_undecided(
    tmp_path: Path, run: Path, rule: str
) -> None:
    (judged,) = _judged(run, inspection_document(tmp_path, BETTER), rule)
    assert judged.outcome is Outcome.UNDECIDED


def test_rules_without_the_baseline_are_judged_as_ever(tmp_path: Path, run: Path) -> None:
    judged = _judged(run, inspection_document(tmp_path, BETTER), f"{LENGTH} < 1.1", f"{LENGTH} < 9")
    assert [each.outcome for each in judged] == [Outcome.HELD, Outcome.BROKEN]


def test_a_path_that_no_run_has_is_a_usage_error(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'mean_length'"):
        _judged(run, inspection_document(tmp_path, RATES), "k < baseline.acceptance.mean_lenght")


def test_rounds_of_the_inspections_k_are_compared(tmp_path: Path) -> None:
    """The run drafts 4 tokens for small batches and 2 for large ones."""
    truth = Truth(k=4, requests=60, rounds=20, batches=(1, 8), k_by_batch=((1, 4), (8, 2)))
    run = simulate(tmp_path / "run", truth)
    (judged,) = _judged(run, inspection_document(tmp_path, (0.99, 0.99)), LESS)
    assert judged.outcome is Outcome.BROKEN
    figure = judged.values[f"{LENGTH} over rounds of K = 2"]
    like = Filter(where=rounds_like(2))
    (summary,) = analyze(Inputs(sources=[run], labels=["run"], only=like)).runs
    (at,) = [each for each in summary.acceptance.by_k if each.k == 2]
    assert getattr(figure, "value", None) == at.mean_length != summary.acceptance.mean_length


def test_another_k_names_the_option(tmp_path: Path, run: Path) -> None:
    with pytest.raises(MixedTraceError, match=f"--k {K}"):
        _judged(run, inspection_document(tmp_path, RATES[:3]), LESS)


def test_a_replay_has_nothing_to_compare(tmp_path: Path) -> None:
    replay = write_replay(tmp_path / "replay", [client_row(n) for n in range(4)])
    with pytest.raises(NoDataError, match="no run of a probe"):
        _judged(replay, inspection_document(tmp_path, RATES), LESS)


def test_a_file_of_something_else_is_one_error_and_exit_5(tmp_path: Path, run: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    done = run_command("check", run, "--baseline", other, "--fail-on", LESS)
    assert (done.returncode, done.stderr.count("\n")) == (EXIT_UNKNOWN, 1)
    assert "other.json" in done.stderr


def test_the_document_of_the_gate_holds_both_figures(tmp_path: Path, run: Path) -> None:
    command = "--baseline", inspection_document(tmp_path, BETTER), "--fail-on", LESS, "--json"
    (rule,) = json.loads(run_command("check", run, *command).stdout)["rules"]
    assert rule["outcome"] == "broken"
    values = {name: each["value"] for name, each in rule["values"].items()}
    assert values[f"baseline.{LENGTH}"] > values[f"{LENGTH} over rounds of K = {K}"]


def test_check_in_a_test_takes_an_inspection(tmp_path: Path, run: Path) -> None:
    with pytest.raises(AssertionError, match="broken"):
        check(run, fail_on=[LESS], baseline=inspection_document(tmp_path, BETTER))
