"""Comparisons and gates: two runs of one truth, of two drafters, and of two that differ in more.

Wanted: two runs of one drafter differ in at most 6.8 % of the pairs (5 %, and 1.64 standard errors
of 400 pairs), also where they serve other shares of two labels; a drafter that is worse on both
labels is found. A world of `COMPARISONS` is drawn with one drafter (or with
speculation that costs time) and something else that differs, which decides the figures; its twin
has no such difference, and a drafter that is worse, which must be found by a whole analysis of two
trace files: the first screen's answer, the finding about depths, the sentence of `driftscope
compare`, and the gate that requires an acceptance length to be no worse.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from support.simulate import Cost, Prompts, Truth
from support.simulate.draw import difficulty
from support.simulate.sums import side

from benchmarks.calibration.estimates import RUNS, twice
from benchmarks.calibration.runs import compared, differ, trace_of
from benchmarks.calibration.table import FOUND, MOSTLY, NEVER, Bound, Figures, table
from driftscope.analysis.baseline_relation import relation_of
from driftscope.analysis.comparability import NO_DIFFERENCE
from driftscope.analysis.compare import verdict
from driftscope.analysis.figures.results import acceptance_of
from driftscope.analysis.figures.rounds import Side
from driftscope.analysis.gate import RuleResult, RunFacts, judge, rule_of
from driftscope.cli.gate_run import judge_analysis
from driftscope.findings.finding import Answer, Topic
from driftscope.findings.first_screen import State
from driftscope.pipeline import Inputs, analyze, conclude, measure
from driftscope.trace.reader import Trace

GATE = "acceptance.mean_length < baseline.acceptance.mean_length"
RULES = (GATE, "acceptance.marginal[-1] < baseline.acceptance.marginal[-1]")
TWICE = {
    f"{name}, {'paired' if paired else 'unpaired'}": (truth, paired)
    for name, truth in RUNS.items()
    for paired in (False, True)
}
"""Truth of two runs, and whether they are of the same prompts."""


def _breaks(rules: Sequence[str], baseline: Side, run: Side, *, paired: bool = False) -> bool:
    """Return whether a run breaks a rule."""
    facts = RunFacts(
        run=_figures(run),
        baseline=_figures(baseline),
        has_finding=lambda _: None,
        relation=relation_of([compared(baseline, run, paired=paired)], NO_DIFFERENCE),
    )
    judged = judge([rule_of(text) for text in rules], [("run", facts)])
    return any(row.outcome is RuleResult.BROKEN for row in judged)


def _figures(run: Side) -> dict[str, Any]:
    """Return the figures in the form of the JSON report."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(acceptance_of(run.rounds, spread=True))))
    return {"acceptance": found}


@table(
    "false_calls",
    "Two runs of the same truth, {trials} comparisons: share with any difference",
    worlds=TWICE,
    wanted=lambda _: {"called": NEVER},
)
def false_calls(world: tuple[Truth, bool], trial: int) -> Figures:
    """Return whether two runs of one truth are called different."""
    truth, paired = world
    return {"called": differ(*twice(truth, trial, paired=paired), paired=paired)}


@table(
    "gate",
    "Two runs of the same truth, {trials} gates: share that fails",
    worlds=TWICE,
    wanted=lambda _: {"called": NEVER},
)
def false_gates(world: tuple[Truth, bool], trial: int) -> Figures:
    """Return whether a run fails the gate whose baseline is another run of its truth."""
    truth, paired = world
    return {"called": _breaks(RULES, *twice(truth, trial, paired=paired), paired=paired)}


EASY, HARD = 0.6, -0.6
"""Logit shifts of the two labels."""
MIXES = {"50 % and 50 %": (0.5, 0.5), "35 % and 65 %": (0.35, 0.65), "10 % and 90 %": (0.1, 0.9)}
"""Share of the easy label in each of two runs."""


def _mix(seed: int, easy: float, shift: float = 0.0) -> Side:
    kinds = (
        Prompts(label="easy", share=easy, shift=EASY + shift),
        Prompts(label="hard", share=1 - easy, shift=HARD + shift),
    )
    truth = Truth(requests=200, rounds=20, prompts=kinds, seed=seed, prompts_seed=100_000 + seed)
    return side(truth)


@table(
    "label_mix",
    "Two runs with other mixes of two labels, {trials} pairs each: share called different",
    worlds=MIXES,
    wanted=lambda _: {"called": NEVER, "gate": NEVER, "found": FOUND, "gate_found": FOUND},
)
def other_mixes(mix: tuple[float, float], trial: int) -> Figures:
    """Return whether two runs of one drafter are called different, with and without a common mix of
    labels, and break GATE; and whether a worse one, which serves more of the easy label, does."""
    first, second = mix
    a, b = _mix(2 * trial, first), _mix(2 * trial + 1, second)
    worse = _mix(2 * trial + 1, second, -0.5)
    unlabelled = (replace(run, labels=("",) * len(run.labels)) for run in (a, b))
    return {
        "called": differ(a, b),
        "as_served": differ(*unlabelled),
        "found": differ(a, worse),
        "gate": _breaks([GATE], a, b),
        "gate_found": _breaks([GATE], a, worse),
    }


RUN = Truth(
    k=4,
    requests=80,
    rounds=15,
    conditional=(0.82, 0.78, 0.75, 0.72),
    batches=(4,),
    near=0.0,
    self_last=0.2,
    sink=(0.3, 0.29),
    rates=(0.02,),
)
WORSE = tuple(0.85 * rate for rate in RUN.conditional)
"""Rates of a drafter that accepts clearly less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonWorld:
    """A pair of runs that something else than the drafter tells apart, and its twin."""

    first: Truth
    second: Truth
    """A run of the same drafter, unless NO is allowed, and something else that differs."""
    twin: Truth
    """A run of a worse drafter, unless YES is right, and nothing else that differs."""
    twin_of: Truth | None = None
    """First run of the twin; None: `first`."""
    missing: float = 0.0
    """Share of the prompts, the hardest, of which the second run of either pair has no rows."""
    allowed: tuple[Answer, ...] = (Answer.CANNOT_TELL,)
    """Answers about the confounded pair that are not wrong."""
    right: Answer = Answer.NO
    """Answer about the twin."""

    def __call__(self, trial: int) -> Figures:
        """Return whether an answer about the confounded pair is wrong, whether the first screen
        asks for something because of it or cannot tell, whether the right answer about the twin is
        given, and whether the gate gives the answers of the first screen."""
        pairs = ((self.first, self.second), (self.twin_of or self.first, self.twin))
        confounded, twin = (
            _said_of(trace_of(one), _trace(other, self.missing))
            for one, other in (_anew(*pair, trial) for pair in pairs)
        )
        return {
            "wrong": confounded.is_wrong(self.allowed),
            "acts": confounded.acts,
            "cannot_tell": confounded.answer is Answer.CANNOT_TELL,
            "found": twin.answer is self.right,
            "agree": [said.answer is said.gate for said in (confounded, twin)],
        }


def _second_run(run: Truth, **facts: Any) -> Truth:
    return replace(run, seed=9, **facts)


def _sampled(share: float) -> tuple[Prompts, ...]:
    return (
        Prompts(temperature=0.0, share=1 - share),
        Prompts(temperature=1.0, share=share, shift=-1.2),
    )


def _labelled(code: float) -> tuple[Prompts, ...]:
    return (
        Prompts(label="code", share=code, shift=0.7),
        Prompts(label="chat", share=1 - code, shift=-0.7),
    )


ONE_LENGTH = replace(RUN, prompts=(Prompts(tokens=(512, 512)),))
HARDER = _second_run(RUN, prompts=(Prompts(tokens=(512, 512), shift=-0.6),), prompts_seed=12)
"""Other prompts, harder ones, of the same length."""
ALONG = replace(RUN, requests=120, prompts=(Prompts(tokens=(40, 60)),), context=-0.45, between=0.3)
"""Acceptance that falls with the position in the answer."""
SESSIONS = replace(
    RUN, requests=120, sessions=20, kind_by_session=True, between=0.3, prompts=_labelled(0.35)
)
MANY = replace(RUN, requests=200)
NO_WORSE = (Answer.YES, Answer.CANNOT_TELL)
WORLDS: dict[str, ComparisonWorld] = {
    "A1 hardest prompts missing": ComparisonWorld(
        first=MANY,
        second=_second_run(MANY, conditional=WORSE),
        twin=_second_run(MANY),
        missing=0.09,
        allowed=(Answer.NO, Answer.CANNOT_TELL),
        right=Answer.YES,
    ),
    "A4a longer answers": ComparisonWorld(
        first=ALONG,
        second=_second_run(ALONG, rounds=60),
        twin=_second_run(ALONG, conditional=tuple(0.85 * rate for rate in WORSE)),
    ),
    "A4b more sampled requests": ComparisonWorld(
        first=replace(RUN, prompts=_sampled(0.2)),
        second=_second_run(RUN, prompts=_sampled(0.6)),
        twin=_second_run(RUN, prompts=_sampled(0.2), conditional=WORSE),
    ),
    "A6 smaller K": ComparisonWorld(
        first=replace(RUN, k=8, conditional=(0.8,) * 8),
        second=_second_run(RUN, k=3, conditional=(0.8,) * 3),
        allowed=NO_WORSE,
        twin=_second_run(RUN, k=3, conditional=(0.65,) * 3),
    ),
    "A7 other prompts of one length": ComparisonWorld(
        first=ONE_LENGTH, second=HARDER, twin=_second_run(ONE_LENGTH, conditional=WORSE)
    ),
    "A7 the same, without digests": ComparisonWorld(
        first=replace(ONE_LENGTH, digests=False),
        second=replace(HARDER, digests=False),
        twin=_second_run(RUN, digests=False, conditional=WORSE),
        twin_of=replace(RUN, digests=False),
    ),
    "another load, the same prompts": ComparisonWorld(
        first=RUN,
        second=_second_run(RUN, batches=(24,)),
        allowed=NO_WORSE,
        twin=_second_run(RUN, batches=(24,), conditional=WORSE),
    ),
    "A16 few sessions, another mix": ComparisonWorld(
        first=SESSIONS,
        second=_second_run(SESSIONS, prompts=_labelled(0.65), prompts_seed=12),
        twin=_second_run(SESSIONS, conditional=WORSE),
    ),
}
GATES = {
    RuleResult.HELD: Answer.YES,
    RuleResult.BROKEN: Answer.NO,
    RuleResult.UNDECIDED: Answer.CANNOT_TELL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Answers about one pair of runs."""

    answer: Answer
    """Answer of the first screen."""
    gate: Answer
    differs: bool
    """Whether a finding or the sentence of `driftscope compare` says that acceptance differs."""
    acts: bool
    """Whether the first screen asks for something because of the comparison."""

    def is_wrong(self, allowed: tuple[Answer, ...]) -> bool:
        """Whether an answer is none of those allowed. A difference may be told only of drafters
        that differ."""
        called = self.differs and Answer.NO not in allowed
        return called or self.answer not in allowed or self.gate not in allowed


def _said_of(first: Trace, second: Trace) -> Said:
    """Return what is concluded about the second run, with the first as baseline."""
    measured = measure(Inputs(sources=[second], labels=["new"], baseline=first))
    analysis = conclude(measured.runs, (), measured.baseline)
    (answer,) = [about for about in analysis.answers if about.topic is Topic.ACCEPTANCE]
    rule = rule_of("no_worse(acceptance.mean_length, 5%)", required=True)
    (judged,) = judge_analysis([rule], analysis, measured.baseline)
    comparison, screen = analysis.cases[0].comparison, analysis.screen
    assert comparison is not None
    sentence = verdict(comparison).partition(";")[0]
    asks = screen.state in (State.ACT, State.LOOK) and screen.subject is None
    return Said(
        answer=answer.answer or Answer.CANNOT_TELL,
        gate=GATES[judged.outcome],
        differs=any(words in sentence for words in (" accepts more from ", " has the longer "))
        or any(f.id == "runs_part" and f.asks for f in analysis.findings),
        acts=asks and bool(screen.lead.reference),
    )


def _trace(truth: Truth, missing: float) -> Trace:
    """Return a simulated run, without the rows of the hardest prompts."""
    trace = trace_of(truth)
    hardest = np.argsort(difficulty(truth))[: round(missing * truth.requests)]
    lost = pa.array([f"req-{n}" for n in hardest.tolist()], pa.string())
    kept = {
        record: rows.filter(pc.invert(pc.is_in(rows.column("request"), lost)))
        for record in ("draft", "verify", "request")
        for rows in [getattr(trace, record)]
    }
    return replace(trace, **kept)


def _anew(first: Truth, second: Truth, trial: int) -> tuple[Truth, Truth]:
    """Return two runs that are drawn anew; runs of the same prompts stay so."""
    seeds = 1000 * (trial + 1)
    return (
        replace(first, seed=2 * trial, prompts_seed=seeds + first.prompts_seed),
        replace(second, seed=2 * trial + 1, prompts_seed=seeds + second.prompts_seed),
    )


CROWDED, QUIET = (24,), (2,)
"""Numbers of requests at once."""
COSTS = replace(RUN, cost=Cost(draft_s=0.012, depth_s=0.004), batches=QUIET, requests=120)
"""A drafter that costs more time than it saves."""
SAVES = replace(COSTS, cost=Cost(draft_s=0.0004, depth_s=0.0004))


LATER = replace(SAVES, rounds=8, along=-0.45, prompts=(Prompts(tokens=(40, 60)),))
"""A drafter that saves time at the begin of answers only, which are cut there."""


def _baseline_trial(first: Truth, baseline: Truth) -> Callable[[int], Figures]:
    """Return a trial of what is said of speculation beside a baseline that tells nothing, and of
    speculation that pays, beside a server without it that did the same."""

    def trial_of(trial: int) -> Figures:
        pairs = ((first, baseline), (SAVES, SAVES))
        (answer, acts), (twin, _) = (_pays(*runs, trial) for runs in pairs)
        untold = answer is Answer.CANNOT_TELL
        return {
            "wrong": not untold,
            "acts": acts,
            "cannot_tell": untold,
            "found": twin is Answer.YES,
            "agree": None,
        }

    return trial_of


def _pays(run: Truth, baseline: Truth, trial: int) -> tuple[Answer, bool]:
    """Return whether speculation pays beside a baseline, which is served without it, and whether
    the first screen asks for something for it."""
    plain, run_k = _anew(replace(baseline, k_zero_above=0), run, trial)
    analysis = analyze(Inputs(sources=[trace_of(run_k)], labels=["run"], baseline=trace_of(plain)))
    about = (*analysis.findings, *analysis.answers)
    (answer,) = [found.answer for found in about if found.topic is Topic.PAYS and found.answer]
    screen = analysis.screen
    return answer, screen.lead.topic is Topic.PAYS and screen.state is State.ACT


@table(
    "comparisons",
    "Two runs that differ in more than their drafter, and their twins, {trials} pairs each",
    worlds={
        **WORLDS,
        "A3 baseline of another load": _baseline_trial(COSTS, replace(COSTS, batches=CROWDED)),
        "answers end earlier than the baseline's": _baseline_trial(
            LATER, replace(LATER, rounds=60)
        ),
    },
    wanted=lambda _: {"wrong": NEVER, "found": MOSTLY, "agree": Bound(least=1.0)},
    most_trials=200,
)
def told_apart(world: Callable[[int], Figures], seed: int) -> Figures:
    """Return what is said of one pair and its twin."""
    return world(seed)


LONG = replace(RUN, requests=400, rounds=400, between=0.2)


@table(
    "small_differences",
    "A small difference between long runs, {trials} pairs each: share told",
    worlds={"A11 0.4 % of the acceptance length": 0.997, "6 % of the acceptance length": 0.95},
    wanted=lambda factor: {"told": NEVER if factor > 0.99 else MOSTLY},
    most_trials=40,
)
def small_difference(factor: float, trial: int) -> Figures:
    """Return whether a difference is told over 160,000 rounds of the same prompts."""
    worse = replace(LONG, conditional=tuple(factor * rate for rate in LONG.conditional))
    runs = (side(truth) for truth in _anew(LONG, worse, trial))
    return {"told": differ(*runs, paired=True)}
