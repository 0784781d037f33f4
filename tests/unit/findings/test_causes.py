"""A drafter that loses acceptance: when it is called dead, and the causes that are listed."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from support.runs import Spec, write_run
from support.simulate import Truth, simulate
from typer.testing import CliRunner

from driftscope.analysis.advice import NO_SPECULATION
from driftscope.analysis.statistics.intervals import exact_interval
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.cli.app import app
from driftscope.findings.causes import CAUSES, SURE_ROUNDS, Loss, loss_of
from driftscope.findings.finding import Finding, Trust
from driftscope.pipeline import Analysis, conclude, summarise
from driftscope.trace.reader import read_trace
from driftscope_reports.html import to_html
from driftscope_reports.markdown import to_markdown
from driftscope_reports.terminal import render

PUBLISHED = Path(__file__).parents[1] / "metrics" / "data" / "acceptance.json"
NORM_FLAGS, LAYERS = "norm flags", "captured"
WAYS = {
    Loss.NOTHING: (0.0, 0.0, 0.0, 0.0),
    Loss.LOW: (0.2, 0.6, 0.6, 0.6),
    Loss.FALLS: (0.8, 0.2, 0.5, 0.5),
    Loss.STOPS: (0.8, 0.8, 0.0, 0.0),
}
"""Conditional acceptance of a run that loses it in this way."""
FINDINGS = {
    Loss.NOTHING: "nothing_accepted",
    Loss.LOW: "acceptance_low",
    Loss.FALLS: "acceptance_falls",
    Loss.STOPS: "acceptance_dies",
}


def _summary(folder: Path, spec: Spec, name: str = "run") -> RunSummary:
    return summarise(read_trace(write_run(folder / name, spec)), name)


def _one(found: Analysis, name: str) -> Finding:
    (finding,) = (f for f in found.findings if f.id == name)
    return finding


def test_the_lists_differ() -> None:
    for a, b in combinations(Loss, 2):
        assert CAUSES[a] != CAUSES[b]
        assert {c.words for c in CAUSES[a]} != {c.words for c in CAUSES[b]}


@pytest.mark.parametrize("loss", Loss)
def test_a_run_gets_the_list_of_its_way(tmp_path: Path, loss: Loss) -> None:
    run = _summary(tmp_path, Spec(conditional=WAYS[loss], rounds=30))
    assert loss_of(run) is loss
    finding = _one(conclude([run]), FINDINGS[loss])
    said = {each.cause for each in (*finding.causes, *finding.ruled_out)}
    assert said == {cause.words for cause in CAUSES[loss]}
    assert all(each.check for each in finding.causes)


def test_a_healthy_run_gets_none(tmp_path: Path) -> None:
    run = _summary(tmp_path, Spec(conditional=(0.8, 0.78, 0.76, 0.75), rounds=30))
    assert loss_of(run) is None
    assert not any(f.causes for f in conclude([run]).findings)


def test_no_published_drafter_that_lives_is_called_low_or_falling() -> None:
    """By its rates alone: only the pre-norm EAGLE-3 that was repaired, and the tail that is dead,
    fall by more than the bound."""
    from driftscope.findings.causes import FALLS_ABOVE, LOW_BELOW, STOPS_BELOW

    falling = set()
    for vector in json.loads(PUBLISHED.read_text()):
        rates = np.array(vector.get("marginal_accept_rates", ()))
        if not len(rates):
            continue
        live = rates[rates > 0]
        kept = live / np.concatenate([[1.0], live[:-1]])
        assert rates[0] > LOW_BELOW.value, vector["id"]
        assert (kept > STOPS_BELOW.value).all()
        if (np.maximum.accumulate(kept) - kept).max() > FALLS_ABOVE.value:
            falling.add(vector["id"])
    assert falling == {"vllm42764-gptoss-nvidia-or-redhat-baseline", "aeon6-dflash15"}


def test_growth_with_norm_output_on_means_that_it_is_not_applied(tmp_path: Path) -> None:
    spec = Spec(conditional=WAYS[Loss.FALLS], rounds=30, growth=3.0, norm_output=True)
    first = _one(conclude([_summary(tmp_path, spec)]), "acceptance_falls").causes[0]
    assert NORM_FLAGS in first.cause
    assert first.supported
    assert "does not apply the flag" in first.seen


def test_other_layers_than_the_better_run_s_come_first(tmp_path: Path) -> None:
    good = _summary(tmp_path, Spec(rounds=30), "good")
    bad = _summary(tmp_path, Spec(rounds=30, conditional=WAYS[Loss.LOW], aux_layers=(2, 3, 4)))
    first = _one(conclude([bad], (), good), "acceptance_low").causes[0]
    assert LAYERS in first.cause
    assert first.seen == "this run captures layers 2, 3, 4, good captures 1, 2, 3"


def test_what_both_runs_have_in_common_is_ruled_out(tmp_path: Path) -> None:
    good = _summary(tmp_path, Spec(rounds=30), "good")
    bad = _summary(tmp_path, Spec(rounds=30, conditional=WAYS[Loss.NOTHING]))
    finding = _one(conclude([bad], (), good), "nothing_accepted")
    out = {each.cause: each.seen for each in finding.ruled_out}
    assert any(LAYERS in cause for cause in out)
    assert any("another target" in cause for cause in out)
    assert all(out.values())
    assert "d2t" in finding.causes[0].cause, "its states and its confidence are the better run's"


def test_a_worse_run_beside_it_rules_nothing_out(tmp_path: Path) -> None:
    worse = _summary(tmp_path, Spec(rounds=30, conditional=WAYS[Loss.NOTHING]), "worse")
    low = _summary(tmp_path, Spec(rounds=30, conditional=WAYS[Loss.LOW]))
    finding = _one(conclude([low], (), worse), "acceptance_low")
    assert not any("worse" in each.seen for each in (*finding.causes, *finding.ruled_out))


def test_a_graph_that_loses_what_eager_rounds_keep(tmp_path: Path) -> None:
    run = _summary(tmp_path, Spec(conditional=WAYS[Loss.LOW], rounds=30))
    groups = tuple(
        replace(run.groups.context[0], name=name, mean_length=length)
        for name, length in (("eagerly", 3.0), ("in a full graph", 1.1))
    )
    run = replace(run, groups=replace(run.groups, execution=groups))
    supported = [e for e in _one(conclude([run]), "acceptance_low").causes if e.supported]
    assert any("in a graph" in each.cause for each in supported)


def test_guesses_that_are_looked_up_have_no_weights_to_be_wrong(tmp_path: Path) -> None:
    run = _summary(tmp_path, Spec(conditional=WAYS[Loss.NOTHING], rounds=30))
    run = replace(run, manifest=replace(run.manifest, method="ngram"))
    assert _one(conclude([run]), "nothing_accepted").causes == ()


DEAD = (0.0, 0.0, 0.0, 0.0)
NEARLY = (1e-6, 0.5, 0.5, 0.5)


def _analysed(folder: Path, spec: Spec) -> Analysis:
    return conclude([summarise(read_trace(write_run(folder / "run", spec)), "run")])


def _dead(found: Analysis) -> Finding:
    (finding,) = (f for f in found.findings if f.id == "nothing_accepted")
    return finding


def test_rounds_of_few_prompts_are_not_sure(tmp_path: Path) -> None:
    """They may all be unusual, however often they are asked."""
    truth = Truth(k=4, requests=40, rounds=20, conditional=NEARLY, repeats=20)
    run = summarise(read_trace(simulate(tmp_path / "run", truth)), "run")
    assert (run.requests, run.clusters, run.noun) == (40, 2, "prompt")
    (dead,) = (f for f in conclude([run]).findings if f.id == "nothing_accepted")
    assert dead.confidence is Trust.MEDIUM
    assert dead.because.endswith("certain only from 5 prompts on")


def test_none_of_so_many_rounds_is_sure(tmp_path: Path) -> None:
    found = _analysed(tmp_path, Spec(conditional=DEAD, requests=10, rounds=SURE_ROUNDS.value // 10))
    dead = _dead(found)
    assert dead.confidence is Trust.HIGH
    assert dead.evidence["marginal_first_high"] == pytest.approx(3 / SURE_ROUNDS.value, rel=0.02)
    assert "none of 300 rounds accepts a token: the rate is below 1.0%" in dead.statement
    assert found.findings[0] is dead
    assert dead.option == NO_SPECULATION
    assert dead.advice.startswith("Turn speculation off now")
    assert found.verdict[0] == (
        "Nothing is accepted: speculation costs time and gives nothing (none of 300 rounds "
        "accepts a token: the rate is below 1.0%)."
    )


@pytest.mark.parametrize(
    ("requests", "rounds", "trust"),
    [(10, 5, Trust.LOW), (10, 10, Trust.MEDIUM), (3, 200, Trust.MEDIUM)],
)
def test_fewer_rounds_or_requests_are_not(
    tmp_path: Path, requests: int, rounds: int, trust: Trust
) -> None:
    spec = Spec(conditional=DEAD, requests=requests, rounds=rounds)
    assert _dead(_analysed(tmp_path, spec)).confidence is trust


def test_a_dead_run_beside_a_healthy_one_is_named_in_the_first_sentence(tmp_path: Path) -> None:
    runs = [
        summarise(read_trace(write_run(tmp_path / name, spec)), name)
        for name, spec in (("good", Spec(rounds=30)), ("bad", Spec(conditional=DEAD, rounds=30)))
    ]
    first = conclude(runs).verdict[0]
    assert "bad: nothing is accepted: speculation costs time and gives nothing" in first


def test_advise_says_none(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "run", Spec(conditional=DEAD, rounds=30)))
    said = CliRunner().invoke(app, ["advise", run])
    assert said.exit_code == 0, said.output
    assert said.output.startswith("run: K = 0")
    assert NO_SPECULATION in said.output
    printed = CliRunner().invoke(app, ["advise", run, "--json"])
    assert json.loads(printed.output)["command"] == NO_SPECULATION


def test_advise_needs_no_step_times_for_that(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "run", Spec(conditional=DEAD, rounds=2, requests=200)))
    for segment in Path(run).glob("step-*"):
        segment.unlink()
    said = CliRunner().invoke(app, ["advise", run])
    assert said.exit_code == 0, said.output
    assert said.output.startswith(f"run: K = 0: {NO_SPECULATION}")


def test_every_form_of_the_report_lists_the_causes_in_their_order(tmp_path: Path) -> None:
    found = _analysed(tmp_path, Spec(conditional=DEAD, rounds=30))
    causes = [each.cause for each in _dead(found).causes]
    assert len(causes) > 5
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(render(found))
    for text, listed in (
        (console.export_text(), causes[:2]),
        (to_markdown(found), causes),
        (to_html(found), causes),
    ):
        places = [text.lower().index(cause.split(" (")[0].lower()) for cause in listed]
        assert places == sorted(places)
    for each in (*_dead(found).causes, *_dead(found).ruled_out):
        assert each.check
        assert each.cause.split(" (")[0].lower() in to_html(found).lower()


def test_it_is_what_the_first_screen_says_to_do(tmp_path: Path) -> None:
    page = to_html(_analysed(tmp_path, Spec(conditional=DEAD, rounds=30, growth=3.0)))
    card = page[page.index('id="do-heading"') :][:400]
    assert "Turn speculation off now: it costs time and gives nothing." in card


def test_exact_intervals_by_hand() -> None:
    """0 of n: 1 - 0.05^(1/n); 5 of 10: the textbook's 0.187 to 0.813."""
    assert exact_interval(0, 1504).high == pytest.approx(1 - 0.05 ** (1 / 1504))
    assert exact_interval(0, 1504).high < 0.002
    assert exact_interval(20, 20).low == pytest.approx(0.05 ** (1 / 20))
    half = exact_interval(5, 10)
    assert (half.low, half.high) == pytest.approx((0.1871, 0.8129), abs=1e-4)
    with pytest.raises(ValueError, match="no share"):
        exact_interval(1, 0)


def test_no_other_k_is_advised(tmp_path: Path) -> None:
    found = _analysed(tmp_path, Spec(conditional=DEAD, rounds=30))
    assert not {f.id for f in found.findings} & {"smaller_k", "larger_k", "k_by_batch_size"}
