"""Rules on runs with one fault, the notes on a run's data, and the causes of lost acceptance."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.analyses import analysis_of, summary_of
from support.runs import Spec
from support.simulate import Truth, simulate

from driftscope.analysis.advice import NO_SPECULATION
from driftscope.analysis.figures.verified_chains import WithinRequest
from driftscope.analysis.number_words import percent
from driftscope.analysis.statistics.intervals import Interval, exact_interval
from driftscope.analysis.statistics.strata import Association
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.causes import CAUSES, SURE_ROUNDS, Loss, loss_of
from driftscope.findings.finding import Finding, Trust
from driftscope.findings.rules_attention import clauses
from driftscope.findings.rules_data import notes_on
from driftscope.json_report import figures_of
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH
from driftscope.pipeline import Analysis, conclude, summarise
from driftscope.trace.reader import Trace, read_trace
from driftscope.vocabulary import UndraftedReason

Analyse = Callable[..., Analysis]


@pytest.fixture
def analyse(tmp_path: Path) -> Analyse:
    return lambda *specs: analysis_of(tmp_path, {f"run{n}": spec for n, spec in enumerate(specs)})


def _one(found: Analysis, name: str) -> Finding:
    (finding,) = (f for f in found.findings if f.id == name)
    return finding


def test_dead_tail_names_the_option(analyse: Analyse) -> None:
    finding = _one(analyse(Spec(conditional=(0.7, 0.3, 0.0, 0.0), rounds=30)), "acceptance_dies")
    assert finding.evidence["dead_depth"] == 3
    assert "num_speculative_tokens to 2" in finding.advice


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("few_requests", Spec(requests=29)),
        ("chunked_prefill", Spec(chunked=2, runner="v1")),
        ("loss", Spec(dropped={"queue_full": 5})),
        ("loss", Spec(errors={"capture": 2})),
        ("note", Spec(notes=("fc_norm is missing",))),
    ],
)
def test_warning(analyse: Analyse, name: str, spec: Spec) -> None:
    assert name in {w.id for w in analyse(spec).notes}


def test_requests_that_have_no_rounds_are_not_counted_as_data(analyse: Analyse) -> None:
    (run,) = analyse(Spec(requests=29)).runs
    few, fewer = (notes_on(summary)[0].statement for summary in (run, replace(run, requests=38)))
    assert few.startswith("only 29 requests: no finding")
    assert fewer.startswith("only 29 of 38 requests have rounds that count: no finding")


def test_a_clean_run_has_no_warning(analyse: Analyse) -> None:
    assert analyse(Spec()).notes == ()


TRUTH = Truth(k=4, requests=240, rounds=30, batches=(2, 6), k_by_batch=((3, 4), (6, 2)))
"""K = 4 for few requests, K = 2 for many."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(simulate(tmp_path_factory.mktemp("lengths") / "run", TRUTH))


def _messages(run: RunSummary) -> dict[str, str]:
    return {note.id: note.statement for note in notes_on(run) if note.affects == "acceptance"}


def _without(trace: Trace, *records: str) -> Trace:
    return replace(trace, **{name: getattr(trace, name).slice(0, 0) for name in records})


def test_without_step_rows_depths_count_only_rounds_that_drafted_them(trace: Trace) -> None:
    """Counted over all rounds, depth 3 would lose the rounds that drafted 2."""
    run = summarise(_without(trace, "step", "draft"), "run")
    assert not run.mixed
    marginal = TRUTH.marginal()
    assert run.acceptance.conditional[2:] == pytest.approx(marginal[2:] / marginal[1:-1], abs=0.03)
    assert run.acceptance.counted[2] < 0.7 * run.acceptance.marginal[2]


def test_cut_drafts_are_counted_apart_with_the_reason(trace: Trace) -> None:
    """A grammar that cuts drafts is no length limit."""
    verify = trace.verify.to_pandas()
    cut = verify.verified == 2
    verify.loc[cut, ["drafted", "reason"]] = (4, UndraftedReason.STRUCTURED_OUTPUT)
    some = cut & (verify.index % 4 == 0)
    verify.loc[some, ["verified", "accepted"]] = 0
    rows = pa.Table.from_pandas(verify, schema=trace.verify.schema, preserve_index=False)
    run = summarise(replace(_without(trace, "step", "draft"), verify=rows), "run")
    counts = run.fallback
    assert (counts.drafts, counts.cut) == (len(verify), {"structured_output": cut.sum()})
    assert counts.by_reason == {"structured_output": some.sum()}
    said = f"{percent(cut.mean())} of the drafts were cut before verification (structured output"
    assert _messages(run)["cut_drafts"].startswith(said)
    assert "cut_drafts" not in _messages(summarise(trace, "run"))


@pytest.mark.parametrize("reason", UndraftedReason.COUNTED)
def test_steps_that_were_not_drafted_are_no_rejected_rounds(tmp_path: Path, reason: str) -> None:
    run = summary_of(tmp_path / "run", Truth(requests=60, rounds=30, undrafted={reason: 0.15}))
    assert run.fallback.by_reason[reason] == run.fallback.counted > 0
    assert figures_of(run)["fallback"]["counted"] == run.fallback.counted
    message = _messages(run)["counted_undrafted"]
    assert reason.replace("_", " ") in message
    accepted = run.acceptance.mean_length * run.rounds - run.rounds
    low = 1 + accepted / (run.rounds + run.fallback.counted)
    assert f"down to {low:.2f} instead of {run.acceptance.mean_length:.2f}" in message


def test_length_that_goes_with_ease_is_said(trace: Trace) -> None:
    run = summarise(trace, "run")
    assert run.independence is not None
    assert "length_goes_with_ease" not in _messages(run)
    few = replace(run.independence, clusters=60, noun="prompt", length_correlation=0.52)
    message = _messages(replace(run, independence=few))["length_goes_with_ease"]
    words = "prompts with more rounds also yield more tokens per round (correlation 0.52 over 60 "
    assert words in message
    assert "Record 100 prompts or more" in message
    of_one_length = replace(few, length_correlation=-0.97)
    assert "length_goes_with_ease" not in _messages(replace(run, independence=of_one_length))


def test_requests_whose_first_rounds_are_missing_are_told(tmp_path: Path) -> None:
    run = simulate(tmp_path / "run", Truth(requests=30, rounds=40))
    assert "begun_before" not in _messages(summarise(read_trace(run), "run"))
    for path in run.glob("verify-*.parquet"):
        rows = pq.read_table(path)
        times = rows["time_s"].to_numpy()
        pq.write_table(rows.filter(pa.array(times > np.quantile(times, 0.5))), path)
    assert "first rounds of" in _messages(summarise(read_trace(run), "run"))["begun_before"]


def _association(per_sd: float, half: float, p: float, sd: float) -> Association:
    interval = Interval(low=per_sd - half, high=per_sd + half)
    return Association(per_sd=per_sd, interval=interval, sd=sd, rows=900, clusters=40, p=p)


OWN = WithinRequest(
    measure=SELF.name,
    alone=_association(-0.017, 0.012, 0.005, 0.11),
    beyond_confidence=_association(-0.005, 0.011, 0.4, 0.11),
)
NONE = WithinRequest(
    measure=GROWTH.name, alone=_association(0.002, 0.01, 0.7, 0.08), beyond_confidence=None
)


LESS = (
    "within a request, more attention on the chain itself goes with 1.7 points less acceptance "
    "(-2.9 to -0.5)"
)
NO = "acceptance within a request does not go with growth of the hidden state"


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        (OWN, [LESS]),
        (NONE, [NO]),
        (replace(OWN, alone=_association(-0.017, 0.04, 0.4, 0.11)), []),
        (replace(OWN, alone=None), []),
    ],
    ids=["less", "no", "open", "missing"],
)
def test_what_has_an_answer_has_a_clause_that_names_no_cause(
    relation: WithinRequest, words: list[str]
) -> None:
    assert clauses((relation,)) == words


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


@pytest.mark.parametrize("loss", Loss)
def test_a_run_gets_the_list_of_its_way(tmp_path: Path, loss: Loss) -> None:
    run = summary_of(tmp_path / "run", Spec(conditional=WAYS[loss], rounds=30))
    assert loss_of(run) is loss
    finding = _one(conclude([run]), FINDINGS[loss])
    said = {cause.cause for cause in (*finding.causes, *finding.ruled_out)}
    assert said == {cause.words for cause in CAUSES[loss]}
    assert all(cause.check for cause in finding.causes)


def test_a_healthy_run_gets_none(tmp_path: Path) -> None:
    run = summary_of(tmp_path / "run", Spec(conditional=(0.8, 0.78, 0.76, 0.75), rounds=30))
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
    first = _one(conclude([summary_of(tmp_path / "run", spec)]), "acceptance_falls").causes[0]
    assert NORM_FLAGS in first.cause
    assert first.supported
    assert "does not apply the flag" in first.observed


def test_other_layers_than_the_better_run_s_come_first(tmp_path: Path) -> None:
    good = summary_of(tmp_path / "good", Spec(rounds=30))
    bad = summary_of(
        tmp_path / "run", Spec(rounds=30, conditional=WAYS[Loss.LOW], aux_layers=(2, 3, 4))
    )
    first = _one(conclude([bad], (), good), "acceptance_low").causes[0]
    assert LAYERS in first.cause
    assert first.observed == "this run captures layers 2, 3, 4, good captures 1, 2, 3"


def test_what_both_runs_have_in_common_is_ruled_out(tmp_path: Path) -> None:
    good = summary_of(tmp_path / "good", Spec(rounds=30))
    bad = summary_of(tmp_path / "run", Spec(rounds=30, conditional=WAYS[Loss.NOTHING]))
    finding = _one(conclude([bad], (), good), "nothing_accepted")
    out = {cause.cause: cause.observed for cause in finding.ruled_out}
    assert any(LAYERS in cause for cause in out)
    assert any("another target" in cause for cause in out)
    assert all(out.values())
    assert "d2t" in finding.causes[0].cause, "its states and its confidence are the better run's"


def test_a_worse_run_beside_it_rules_nothing_out(tmp_path: Path) -> None:
    worse = summary_of(tmp_path / "worse", Spec(rounds=30, conditional=WAYS[Loss.NOTHING]))
    low = summary_of(tmp_path / "run", Spec(rounds=30, conditional=WAYS[Loss.LOW]))
    finding = _one(conclude([low], (), worse), "acceptance_low")
    assert not any("worse" in cause.observed for cause in (*finding.causes, *finding.ruled_out))


DEAD = WAYS[Loss.NOTHING]
NEARLY = (1e-6, 0.5, 0.5, 0.5)


def test_rounds_of_few_prompts_are_not_sure(tmp_path: Path) -> None:
    """They may all be unusual, however often they are asked."""
    truth = Truth(k=4, requests=40, rounds=20, conditional=NEARLY, repeats=20)
    run = summary_of(tmp_path / "run", truth)
    assert (run.requests, run.clusters, run.noun) == (40, 2, "prompt")
    dead = _one(conclude([run]), "nothing_accepted")
    assert dead.confidence is Trust.MEDIUM
    assert dead.because.endswith("certain only from 5 prompts on")


def test_none_of_so_many_rounds_is_sure(analyse: Analyse) -> None:
    found = analyse(Spec(conditional=DEAD, requests=10, rounds=SURE_ROUNDS.value // 10))
    dead = _one(found, "nothing_accepted")
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
    analyse: Analyse, requests: int, rounds: int, trust: Trust
) -> None:
    found = analyse(Spec(conditional=DEAD, requests=requests, rounds=rounds))
    assert _one(found, "nothing_accepted").confidence is trust


def test_exact_intervals_by_hand() -> None:
    """0 of n: 1 - 0.05^(1/n); 5 of 10: the textbook's 0.187 to 0.813."""
    assert exact_interval(0, 1504).high == pytest.approx(1 - 0.05 ** (1 / 1504))
    assert exact_interval(0, 1504).high < 0.002
    assert exact_interval(20, 20).low == pytest.approx(0.05 ** (1 / 20))
    half = exact_interval(5, 10)
    assert (half.low, half.high) == pytest.approx((0.1871, 0.8129), abs=1e-4)
    with pytest.raises(ValueError, match="no share"):
        exact_interval(1, 0)
