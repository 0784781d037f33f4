"""Check the coverage of intervals and the error rate of gates on simulated runs of known truth.

Prints several tables. The first shows how often 95 % intervals contain the truth (wanted: 93 to 97
% each), next to the intervals of a percentile bootstrap over requests. Two compare TRIALS pairs of
runs of the same truth: how often any difference is reported, corrected for multiple comparisons,
and how often the gate with the rules GATE fails (wanted: at most 5 % each). One shows in how many
runs a change over time is found, both where there is none (wanted: at most 5 %) and where
acceptance steps down half-way. The fifth table is that of `benchmarks.circumstances`: whether
context length and label are mistaken for each other. The sixth is that of `benchmarks.parting`:
whether broken drafters are distinguished from healthy ones. The next two are those of
`benchmarks.several_k`: runs in which K varies. Then comes that of
`benchmarks.within_request`: how often acceptance is said to go with something inside the drafter.
Then come those of `benchmarks.unfinished`, recordings that end in the middle of requests,
`benchmarks.time_changes`, requests in sessions and kinds, `benchmarks.risk_sets`, rounds that draft
different numbers of tokens, `benchmarks.clusters`, prompts that repeat and sessions, and
`benchmarks.label_mix`, two runs that served other shares of two labels, and
`benchmarks.text_kinds`, kinds of text within answers. Two more are those of
`benchmarks.k_advice`: the advice on K where step times are known, and acceptance lengths from
rounds cut anew. The last are those of `benchmarks.ablations`, what the loss of a drafter with a
known cause is said to be made of, and of `benchmarks.shared_steps`, times of requests that are
served at once.

Exits with 1, and names the rate, if one does not meet its bound in `benchmarks.bounds`.

    PYTHONPATH=.:tests python benchmarks/calibration.py [--trials 1000]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from support.simulate import Prompts, Truth
from support.simulate.sums import series, side

from benchmarks.ablations import SEEDS, Ablated, ablations
from benchmarks.attention_drift import Drifts, drifts
from benchmarks.bounds import breaches
from benchmarks.circumstances import Named, named
from benchmarks.clusters import Clustered, worlds
from benchmarks.high_findings import HighFindings, high_findings
from benchmarks.k_advice import Advised, CutAnew, advice_in_worlds, cut_anew
from benchmarks.label_mix import OtherMix, other_mixes
from benchmarks.parting import WORLDS, Parted, parted
from benchmarks.risk_sets import RiskSets, risk_sets
from benchmarks.several_k import DepthCoverage, MixChanges, coverages, mix_changes
from benchmarks.shared_steps import SharedSteps, shared_steps
from benchmarks.text_kinds import TextKinds, text_kinds
from benchmarks.time_changes import OverTime, over_time
from benchmarks.unfinished import Unfinished, unfinished
from benchmarks.within_request import Related, related
from driftscope.analysis.compare.run_comparison import comparison
from driftscope.analysis.figures.change_points import changes
from driftscope.analysis.figures.measure import acceptance
from driftscope.analysis.figures.side import BY_ID, UNPAIRED, Pairing, Side
from driftscope.analysis.gate.baseline_relation import Relation, of_acceptance
from driftscope.analysis.gate.evaluate import Facts
from driftscope.analysis.gate.judge import Outcome, judge
from driftscope.analysis.gate.rule import rule_of
from driftscope.analysis.statistics.intervals.cluster_intervals import intervals, rate_intervals
from driftscope.analysis.statistics.intervals.interval import Interval

TRIALS = 1000
ANALYSES = 200
"""Largest number of whole analyses for each world."""
RESAMPLES = 500
STEP = -0.7
"""Logit shift that lowers the acceptance length of these runs by about a quarter."""
NEAR = 0.1
"""Tolerance for the position of a change, as a share of the run."""
TWO = (Prompts(label="chat", shift=0.4), Prompts(label="code", shift=-0.4, tokens=(500, 4000)))
RUNS = {
    "30 requests": Truth(requests=30, rounds=30),
    "100 requests": Truth(requests=100, rounds=30),
    "300 short requests": Truth(requests=300, rounds=8),
    "100 requests that differ much": Truth(requests=100, rounds=30, between=1.2),
    "100 requests of two kinds": Truth(requests=100, rounds=30, prompts=TWO),
}
"""Truths by name; their depths reach marginal rates from 0.8 down to about 0.05."""
GATE = (
    "acceptance.mean_length < baseline.acceptance.mean_length",
    "acceptance.marginal[-1] < baseline.acceptance.marginal[-1]",
)
PAIRED = {False: "unpaired", True: "paired"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of one figure: how often its intervals contained the truth."""

    run: str
    figure: str
    truth: float
    covered: float
    bootstrap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """False-positive rate: how often chance alone was reported, or failed the gate."""

    run: str
    pairing: str
    called: float
    """Share of the pairs of runs in which a difference was reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """Detection rates of a change over time."""

    run: str
    flat: float
    """Share of the runs without a change in which one was found."""
    step: float
    """Share of the runs with a change half-way in which one was found."""
    near: float
    """Share of the runs with a change in which one was found within NEAR of its position."""


def coverage(name: str, truth: Truth, trials: int) -> Iterator[Coverage]:
    true = np.append(truth.mean_length(), truth.marginal())
    hits, boot = np.zeros(len(true)), np.zeros(len(true))
    for trial in range(trials):
        drawn = _drawn(truth, trial).rounds
        ours = (
            *(intervals(drawn.length_ratio()) or ()),
            *(rate_intervals(drawn.marginal_ratio()) or ()),
        )
        hits += [_holds(each, value) for each, value in zip(ours, true, strict=True)]
        rounds = drawn.rounds[:, None].astype(np.float64)
        other = _bootstrap(
            np.hstack([rounds + drawn.accepted[:, None], drawn.reached]), rounds, trial
        )
        boot += [_holds(each, value) for each, value in zip(other, true, strict=True)]
    figures = ["acceptance length", *(f"marginal, depth {d}" for d in range(1, truth.k + 1))]
    for at, figure in enumerate(figures):
        yield Coverage(
            run=name,
            figure=figure,
            truth=float(true[at]),
            covered=hits[at] / trials,
            bootstrap=boot[at] / trials,
        )


def twice(truth: Truth, trials: int, *, paired: bool) -> Iterator[tuple[Side, Side]]:
    """Yield two runs of the same truth; `paired`: of the same prompts as well."""
    for trial in range(trials):
        yield (
            _drawn(truth, 2 * trial),
            _drawn(truth, 2 * trial + 1, prompts=2 * trial if paired else None),
        )


def false_calls(name: str, truth: Truth, trials: int, *, paired: bool) -> Calls:
    called = 0
    for first, second in twice(truth, trials, paired=paired):
        rows = np.arange(len(first.labels) if paired else 0)
        how = Pairing(how=BY_ID if paired else UNPAIRED, first=rows, second=rows, alone=0)
        found = comparison(first, second, ("a", "b"), how)
        called += any(each.differs for each in found.differences)
    return Calls(run=name, pairing=PAIRED[paired], called=called / trials)


def false_gates(name: str, truth: Truth, trials: int, *, paired: bool) -> Calls:
    rules, failed = [rule_of(text) for text in GATE], 0
    for baseline, run in twice(truth, trials, paired=paired):
        facts = Facts(
            run=_figures(run),
            baseline=_figures(baseline),
            has_finding=lambda _: None,
            relation=Relation(
                correlated=of_acceptance(run.rounds, baseline.rounds) if paired else {}
            ),
        )
        failed += any(each.outcome is Outcome.BROKEN for each in judge(rules, [(name, facts)]))
    return Calls(run=name, pairing=PAIRED[paired], called=failed / trials)


def _figures(run: Side) -> dict[str, Any]:
    """Return the figures in the form of the JSON report."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(acceptance(run.rounds, spread=True))))
    return {"acceptance": found}


def cuts(name: str, truth: Truth, trials: int) -> Cuts:
    flat, stepped, near = 0, 0, 0
    for trial in range(trials):
        seeds = {"seed": 10_000 + trial, "prompts_seed": 50_000 + trial}
        found = changes(series(replace(truth, **seeds)))
        flat += bool(found and found.points)
        found = changes(series(replace(truth, change=(0.5, STEP), **seeds)))
        points = found.points if found else ()
        stepped += bool(points)
        near += any(abs(p.time_s / truth.requests - 0.5) <= NEAR for p in points)
    return Cuts(run=name, flat=flat / trials, step=stepped / trials, near=near / trials)


def _drawn(truth: Truth, trial: int, prompts: int | None = None) -> Side:
    prompts = trial if prompts is None else prompts
    return side(replace(truth, seed=10_000 + trial, prompts_seed=50_000 + prompts))


def _holds(interval: Interval | None, value: float) -> bool:
    return interval is not None and interval.low <= value <= interval.high


def _bootstrap(top: np.ndarray, rounds: np.ndarray, seed: int) -> Iterator[Interval]:
    n = len(top)
    drawn = np.random.RandomState(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    low, high = np.percentile((drawn @ top) / (drawn @ rounds), [2.5, 97.5], axis=0)
    return (Interval(low=a, high=b) for a, b in zip(low, high, strict=True))


def show_coverage(trials: int, say: Say) -> list[Coverage]:
    rows = [row for n, t in RUNS.items() for row in coverage(n, t, trials)]
    say(f"95 % intervals, {trials} simulated runs each: share that holds the truth\n")
    say(f"{'run':32}{'figure':22}{'truth':>8}{'driftscope':>12}{'bootstrap':>11}")
    for row in rows:
        say(f"{row.run:32}{row.figure:22}{row.truth:8.3f}{row.covered:12.1%}{row.bootstrap:11.1%}")
    return rows


def show_calls(trials: int, say: Say) -> list[Calls]:
    say(f"\nTwo runs of the same truth, {trials} comparisons: share with any difference\n")
    return _of_twice(false_calls, trials, say)


def show_gates(trials: int, say: Say) -> list[Calls]:
    say(f"\nTwo runs of the same truth, {trials} gates: share that fails\n")
    return _of_twice(false_gates, trials, say)


def _of_twice(count: Callable[..., Calls], trials: int, say: Say) -> list[Calls]:
    rows = [
        count(name, truth, trials, paired=paired)
        for name, truth in RUNS.items()
        for paired in (False, True)
    ]
    for call in rows:
        say(f"{call.run:32}{call.pairing:12}{call.called:7.1%}")
    return rows


def show_cuts(trials: int, say: Say) -> list[Cuts]:
    rows = [cuts(name, truth, trials) for name, truth in RUNS.items()]
    say(f"\nA change over time, {trials} runs each: share in which one is found\n")
    say(f"{'run':32}{'no change':>12}{'a step':>9}{'at its place':>15}")
    for each in rows:
        say(f"{each.run:32}{each.flat:12.1%}{each.step:9.1%}{each.near:15.1%}")
    return rows


def show_circumstances(trials: int, say: Say) -> list[Named]:
    say(f"\nContext length and label, {trials} runs each: share in which each rule speaks\n")
    say(f"{'run':34}{'long context':>14}{'label':>9}{'not separable':>15}")
    rows = []
    for row in named(trials):
        say(
            f"{row.world:34}{row.long_context_collapse:14.1%}{row.template_sensitivity:9.1%}"
            f"{row.context_or_label:15.1%}"
        )
        rows.append(row)
    return rows


def show_several_k(trials: int, say: Say) -> list[DepthCoverage | MixChanges]:
    say(f"\nRuns of several K, {trials} each: share of intervals that hold the truth, at worst\n")
    say(f"{'run':44}{'rounds':8}{'by risk sets':>14}{'as counted':>12}")
    rows: list[DepthCoverage | MixChanges] = []
    for row in coverages(trials):
        counted = "" if row.counted is None else f"{row.counted:.1%}"
        say(f"{row.world:44}{row.rounds:8}{row.worst:14.1%}{counted:>12}")
        rows.append(row)
    say(f"\nA change over time where only the mix of K changes, {trials} runs each: share found\n")
    say(f"{'run':44}{'comparable':>12}{'as served':>12}")
    for found in mix_changes(trials):
        say(f"{found.world:44}{found.comparable:12.1%}{found.served:12.1%}")
        rows.append(found)
    return rows


def show_within_request(trials: int, say: Say) -> list[Related]:
    say(f"\nAcceptance against the drafter's internals, {trials} runs each: share of answers\n")
    say(f"{'world':32}{'relation':>9}{'called':>9}{'excluded':>10}{'undecided':>11}")
    rows = []
    for row in related(trials):
        there = "yes" if row.relation else "no"
        shares = f"{row.called:9.1%}{row.excluded:10.1%}{row.undecided:11.1%}"
        say(f"{row.world:32}{there:>9}{shares}")
        rows.append(row)
    return rows


def show_unfinished(trials: int, say: Say) -> list[Unfinished]:
    say(f"\nA stationary server read while it runs, {trials} recordings each\n")
    say(f"{'world':36}{'requests':10}{'a change':>10}{'bias':>9}{'of the rounds':>15}")
    rows = []
    for row in unfinished(trials):
        shares = f"{row.changed:10.1%}{row.bias:+9.2%}{row.kept:15.1%}"
        say(f"{row.world:36}{row.requests:10}{shares}")
        rows.append(row)
    return rows


def show_over_time(trials: int, say: Say) -> list[OverTime]:
    say(f"\nSessions, kinds and steps over time, {trials} runs each: share of answers\n")
    say(f"{'world':42}{'drops':>6}{'called':>9}{'high':>8}{'traffic or unknown':>20}")
    rows = []
    for row in over_time(trials):
        there = "yes" if row.drops else "no"
        say(f"{row.world:42}{there:>6}{row.called:9.1%}{row.high:8.1%}{row.moves:20.1%}")
        rows.append(row)
    return rows


def show_risk_sets(trials: int, say: Say) -> list[RiskSets]:
    say(f"\nConditional acceptance by risk sets, {trials} runs each, at the worst depth\n")
    say(f"{'world':28}{'informative':>12}{'off by':>9}{'as counted':>12}{'covered':>9}")
    rows = []
    for row in risk_sets(trials):
        there = "yes" if row.informative else "no"
        shares = f"{row.off:9.3f}{row.off_counted:12.3f}{row.covered:9.1%}"
        say(f"{row.world:28}{there:>12}{shares}")
        rows.append(row)
    return rows


def show_clusters(trials: int, say: Say) -> list[Clustered]:
    say(f"\nRepeated prompts and sessions, {trials} runs each\n")
    say(
        f"{'world':26}{'clusters':>9}{'covered':>9}{'by request':>12}{'intervals':>11}{'design':>8}"
        f"{'unpaired':>10}{'paired':>9}"
    )
    rows = []
    for row in worlds(trials):
        shares = f"{row.covered:9.1%}{row.by_request:12.1%}{row.intervals:11.1%}"
        calls = f"{row.unpaired:10.1%}{row.paired:9.1%}"
        say(f"{row.world:26}{row.clusters:9}{shares}{row.design_effect:8.1f}{calls}")
        rows.append(row)
    return rows


def show_label_mix(trials: int, say: Say) -> list[OtherMix]:
    say(f"\nTwo runs with other mixes of two labels, {trials} pairs each: share called different\n")
    say(
        f"{'share of the easy label':26}{'one drafter':>12}{'as served':>11}{'a worse one':>13}"
        f"{'gate':>8}{'gate, worse':>13}"
    )
    rows = []
    for row in other_mixes(trials):
        say(
            f"{row.mix:26}{row.called:12.1%}{row.as_served:11.1%}{row.found:13.1%}"
            f"{row.gate:8.1%}{row.gate_found:13.1%}"
        )
        rows.append(row)
    return rows


def show_text_kinds(trials: int, say: Say) -> list[TextKinds]:
    say(f"\nKinds of text, {trials} runs each: share in which each finding is made\n")
    say(f"{'world':34}{'a region accepts less':>23}{'begins accept less':>20}")
    rows = []
    for row in text_kinds(trials):
        say(f"{row.world:34}{row.region:23.1%}{row.begin:20.1%}")
        rows.append(row)
    return rows


def show_high_findings(trials: int, say: Say) -> list[HighFindings]:
    trials = min(trials, ANALYSES)
    say(f"\nHealthy runs, {trials} analyses each: share with a finding of that severity\n")
    say(f"{'world':34}{'high':>8}{'medium':>8}  commonest")
    rows = []
    for row in high_findings(trials):
        say(f"{row.world:34}{row.high:8.1%}{row.medium:8.1%}  {row.commonest}")
        rows.append(row)
    return rows


def show_parting(trials: int, say: Say) -> list[Parted]:
    say("\nTwo drafters: share of pairs that part (equal ones: at most 6.8 % wanted)\n")
    head = f"{'pairs':>6}{'parted':>9}{'from':>7}{'bound':>9}"
    say(f"{'run':32}{'second drafter':20}{'pairing':10}{head}")
    rows = []
    for name, truth in RUNS.items():
        for world in WORLDS:
            for paired in (True, False):
                row = parted(name, truth, world, trials, paired=paired)
                first = "" if row.first is None else f"{row.first:.1f}"
                bound = "" if row.bound is None else f"{row.bound:.1%}"
                say(
                    f"{row.run:32}{row.world:20}{row.pairing:10}{row.pairs:6}{row.parted:9.1%}"
                    f"{first:>7}{bound:>9}"
                )
                rows.append(row)
    return rows


Say = Callable[[str], None]


def show_attention_drift(trials: int, say: Say) -> list[Drifts]:
    say(f"\nAttention drift, {trials} recordings each: share of answers\n")
    say(f"{'world':58}{'truth':>10}{'drift':>8}{'no drift':>10}{'cannot tell':>13}")
    rows = []
    for row in drifts(trials):
        shares = f"{row.drift:8.1%}{row.no_drift:10.1%}{row.cannot_tell:13.1%}"
        say(f"{row.world:58}{row.truth:>10}{shares}")
        rows.append(row)
    return rows


def show_k_advice(trials: int, say: Say) -> list[Advised]:
    say(f"\nAdvice on K, {trials} searches each, from K = 8 on; runs differ by 5 %\n")
    say(
        f"{'world':14}{'bounds hold':>13}{'covered':>9}{'runs':>6}{'commanded':>11}"
        f"{'within 5 %':>12}{'regret':>8}{'of all':>8}"
    )
    rows = []
    for row in advice_in_worlds(trials):
        say(
            f"{row.world:14}{row.held:13.1%}{row.held_measured:9.1%}{row.runs:6.1f}"
            f"{row.commanded:11.1%}{row.regret_kept:12.1%}{row.regret:8.2%}{row.final_regret:8.2%}"
        )
        rows.append(row)
    return rows


LENGTH_TRIALS = 40
"""Largest number of runs for acceptance lengths, which are means and need few."""


def show_cut_anew(trials: int, say: Say) -> list[CutAnew]:
    say("\nAcceptance length at a smaller K: largest relative error of the mean\n")
    say(f"{'world':20}{'cut anew':>10}{'cut off':>10}")
    rows = []
    for row in cut_anew(min(trials, LENGTH_TRIALS)):
        say(f"{row.world:20}{row.anew:10.1%}{row.cut_off:10.1%}")
        rows.append(row)
    return rows


def show_ablations(trials: int, say: Say) -> list[Ablated]:
    seeds = min(trials, SEEDS)
    say(
        f"\nDrafters with a known cause, {seeds} runs each: share whose part of the loss is found\n"
    )
    say(f"{'cause':16}{'part':10}{'made':>6}{'loss':>9}{'found':>9}{'off by':>9}")
    rows = []
    for row in ablations(trials):
        made = "yes" if row.made else "no"
        shares = f"{row.loss:+9.1%}{row.found:9.1%}{row.off:+9.1%}"
        say(f"{row.world:16}{row.part:10}{made:>6}{shares}")
        rows.append(row)
    return rows


def show_shared_steps(trials: int, say: Say) -> list[SharedSteps]:
    say(f"\nMean times of requests served at once, {trials} runs each: intervals hold the truth\n")
    say(f"{'at once':>8}{'requests':>10}{'over requests':>15}{'over time too':>15}{'wider':>7}")
    rows = []
    for row in shared_steps(trials):
        held = f"{row.over_requests:15.1%}{row.covered:15.1%}"
        say(f"{row.at_once:8}{row.requests:10}{held}{row.wider:7.2f}")
        rows.append(row)
    return rows


TABLES = {
    "coverage": show_coverage,
    "false_calls": show_calls,
    "gate": show_gates,
    "changes": show_cuts,
    "circumstances": show_circumstances,
    "parting": show_parting,
    "several_k": show_several_k,
    "within_request": show_within_request,
    "attention_drift": show_attention_drift,
    "unfinished": show_unfinished,
    "over_time": show_over_time,
    "risk_sets": show_risk_sets,
    "k_advice": show_k_advice,
    "cut_anew": show_cut_anew,
    "clusters": show_clusters,
    "label_mix": show_label_mix,
    "text_kinds": show_text_kinds,
    "high_findings": show_high_findings,
    "ablations": show_ablations,
    "shared_steps": show_shared_steps,
}


def main(argv: list[str] | None = None, say: Say = print) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--json", type=Path, help="tables that are not asked for stay as they are")
    parser.add_argument("--only", choices=TABLES, nargs="+", default=list(TABLES))
    wanted = parser.parse_args(argv)
    missed: list[str] = []
    for name in wanted.only:
        rows = TABLES[name](wanted.trials, say)
        missed += breaches(name, rows, wanted.trials)
        if wanted.json:
            plain = [{f: getattr(r, f) for f in r.__slots__} for r in rows]
            keep(wanted.json, name, plain, wanted.trials)
    for line in missed:
        say(f"breach: {line}")
    return 1 if missed else 0


def keep(path: Path, name: str, rows: list[dict[str, Any]], trials: int) -> None:
    """Add a table and its number of trials to the results as soon as it is complete: all tables
    together take an hour."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content[name] = rows
    content["trials"] = {**content.get("trials", {}), name: trials}
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
