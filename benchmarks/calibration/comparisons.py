"""Whether like is compared with like: two runs, or a run and its baseline, that differ in more than
their drafter, and their twins in which nothing else differs.

Each world of a fault is drawn with one drafter (or with speculation that costs time) and something
else that differs, which decides the figures; what a world allows to be answered is with it. Its
twin has no such difference, and a drafter that is worse; that must be found. Answers are those of a
whole analysis of two trace files: the first screen's, the finding about depths, the sentence of
`driftscope compare`, and the gate that requires an acceptance length to be no worse. Wanted: wrong
in at most 6.8 % of 400 pairs of runs, found in 80 % of the twins, and a gate that gives the answer
of the first screen in all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from support.simulate import Cost, Prompts, Truth
from support.simulate.draw import difficulty
from support.simulate.sums import side
from support.simulate.write import simulate

from benchmarks.calibration.table import Rate, Table, false, power
from driftscope.analysis.compare import comparison, verdict
from driftscope.analysis.gate import Outcome, rule_of
from driftscope.analysis.pairing import BY_DIGEST, Pairing
from driftscope.cli.gate_run import judge_analysis
from driftscope.findings.catalogue import Analysis
from driftscope.findings.finding import Answer, Topic
from driftscope.findings.first_screen import State
from driftscope.pipeline import Inputs, analyze, conclude, measure
from driftscope.trace.reader import Trace, read_trace

K = 4
RUN = Truth(
    k=K,
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
ONE_LENGTH = replace(RUN, prompts=(Prompts(tokens=(512, 512)),))
OTHER_PROMPTS = replace(
    RUN, prompts=(Prompts(tokens=(512, 512), shift=-0.6),), prompts_seed=12, seed=9
)
"""Harder ones, of the same length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A pair of runs that something else than the drafter tells apart, and its twin."""

    name: str
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


SHORT = Prompts(tokens=(40, 60))
ALONG = replace(RUN, requests=120, prompts=(SHORT,), context=-0.45, between=0.3)
"""Acceptance that falls with the position in the answer."""


def _sampled(share: float) -> tuple[Prompts, ...]:
    return (
        Prompts(temperature=0.0, share=1 - share),
        Prompts(temperature=1.0, share=share, shift=-1.2),
    )


def _mixed(code: float) -> tuple[Prompts, ...]:
    return (
        Prompts(label="code", share=code, shift=0.7),
        Prompts(label="chat", share=1 - code, shift=-0.7),
    )


SESSIONS = replace(
    RUN, requests=120, sessions=20, kind_by_session=True, between=0.3, prompts=_mixed(0.35)
)

WORLDS = (
    World(
        name="A1 hardest prompts missing",
        first=replace(RUN, requests=200),
        second=replace(RUN, requests=200, seed=9, conditional=WORSE),
        twin=replace(RUN, requests=200, seed=9),
        missing=0.09,
        allowed=(Answer.NO, Answer.CANNOT_TELL),
        right=Answer.YES,
    ),
    World(
        name="A4a longer answers",
        first=ALONG,
        second=replace(ALONG, rounds=60, seed=9),
        twin=replace(ALONG, seed=9, conditional=tuple(0.85 * rate for rate in WORSE)),
    ),
    World(
        name="A4b more sampled requests",
        first=replace(RUN, prompts=_sampled(0.2)),
        second=replace(RUN, prompts=_sampled(0.6), seed=9),
        twin=replace(RUN, prompts=_sampled(0.2), seed=9, conditional=WORSE),
    ),
    World(
        name="A6 smaller K",
        first=replace(RUN, k=8, conditional=(0.8,) * 8),
        second=replace(RUN, k=3, conditional=(0.8,) * 3, seed=9),
        allowed=(Answer.YES, Answer.CANNOT_TELL),
        twin=replace(RUN, k=3, conditional=(0.65,) * 3, seed=9),
    ),
    World(
        name="A7 other prompts of one length",
        first=ONE_LENGTH,
        second=OTHER_PROMPTS,
        twin=replace(ONE_LENGTH, conditional=WORSE, seed=9),
    ),
    World(
        name="A7 the same, without digests",
        first=replace(ONE_LENGTH, digests=False),
        second=replace(OTHER_PROMPTS, digests=False),
        twin=replace(RUN, digests=False, conditional=WORSE, seed=9),
        twin_of=replace(RUN, digests=False),
    ),
    World(
        name="another load, the same prompts",
        first=RUN,
        second=replace(RUN, batches=(24,), seed=9),
        allowed=(Answer.YES, Answer.CANNOT_TELL),
        twin=replace(RUN, batches=(24,), conditional=WORSE, seed=9),
    ),
    World(
        name="A16 few sessions, another mix",
        first=SESSIONS,
        second=replace(SESSIONS, prompts=_mixed(0.65), prompts_seed=12, seed=9),
        twin=replace(SESSIONS, conditional=WORSE, seed=9),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Shares of the pairs of runs of one world."""

    world: str
    wrong: float
    """Share of the confounded pairs with an answer that is wrong."""
    acts: float | None
    """Share of the confounded pairs whose first screen asks for something because of them."""
    cannot_tell: float | None
    """Share of the confounded pairs about which the first screen cannot tell."""
    found: float
    """Share of the twins about which the right answer is given."""
    agree: float | None
    """Share of all pairs in which the gate gives the answer of the first screen."""


NO_WORSE = "no_worse(acceptance.mean_length, 5%)"
GATES = {Outcome.HELD: Answer.YES, Outcome.BROKEN: Answer.NO, Outcome.UNDECIDED: Answer.CANNOT_TELL}


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
        told = self.differs and Answer.NO not in allowed
        return told or self.answer not in allowed or self.gate not in allowed


def said_of(first: Trace, second: Trace) -> Said:
    """Return what is concluded about the second run, with the first as baseline."""
    measured = measure(Inputs(sources=[second], labels=["new"], baseline=first))
    analysis = conclude(measured.runs, (), measured.baseline)
    (answer,) = [about for about in analysis.answers if about.topic is Topic.ACCEPTANCE]
    (judged,) = judge_analysis([rule_of(NO_WORSE, required=True)], analysis, measured.baseline)
    comparison = analysis.cases[0].comparison
    assert comparison is not None
    told = verdict(comparison).partition(";")[0]
    return Said(
        answer=answer.answer or Answer.CANNOT_TELL,
        gate=GATES[judged.outcome],
        differs=any(words in told for words in (" accepts more from ", " has the longer "))
        or any(f.id == "runs_part" and f.asks for f in analysis.findings),
        acts=_acts(analysis),
    )


def _acts(analysis: Analysis) -> bool:
    screen = analysis.screen
    asks = screen.state in (State.ACT, State.LOOK) and screen.subject is None
    return asks and bool(screen.lead.reference)


def _trace(truth: Truth, missing: float = 0.0) -> Trace:
    """Return a simulated run, without the rows of the hardest prompts."""
    with tempfile.TemporaryDirectory() as folder:
        trace = read_trace(simulate(Path(folder) / "run", truth))
    hardest = np.argsort(difficulty(truth))[: round(missing * truth.requests)]
    lost = pa.array([f"req-{n}" for n in hardest.tolist()], pa.string())
    tables = {record: getattr(trace, record) for record in ("draft", "verify", "request")}
    return replace(
        trace,
        **{
            record: rows.filter(pc.invert(pc.is_in(rows.column("request"), lost)))
            for record, rows in tables.items()
        },
    )


def _drawn(first: Truth, second: Truth, trial: int) -> tuple[Truth, Truth]:
    """Return two runs that are drawn anew; runs of the same prompts stay so."""
    seeds = 1000 * (trial + 1)
    return (
        replace(first, seed=2 * trial, prompts_seed=seeds + first.prompts_seed),
        replace(second, seed=2 * trial + 1, prompts_seed=seeds + second.prompts_seed),
    )


def of_world(world: World, trials: int) -> Compared:
    """Return the rates of one world."""
    pairs = (world.first, world.second), (world.twin_of or world.first, world.twin)
    confounded, twins = (
        [
            said_of(_trace(first), _trace(second, world.missing))
            for first, second in (_drawn(*pair, trial) for trial in range(trials))
        ]
        for pair in pairs
    )
    every = [*confounded, *twins]
    return Compared(
        world=world.name,
        wrong=sum(said.is_wrong(world.allowed) for said in confounded) / trials,
        acts=sum(said.acts for said in confounded) / trials,
        cannot_tell=sum(said.answer is Answer.CANNOT_TELL for said in confounded) / trials,
        found=sum(said.answer is world.right for said in twins) / trials,
        agree=sum(said.answer is said.gate for said in every) / len(every),
    )


COSTLY = Cost(draft_s=0.012, depth_s=0.004)
"""A drafter that costs more time than it saves."""
CHEAP = Cost(draft_s=0.0004, depth_s=0.0004)
CROWDED, QUIET = (24,), (2,)
"""Numbers of requests at once."""


def _other_load(trials: int) -> Compared:
    """Return what is said of speculation that costs time, against a baseline of another load; and
    of speculation that pays, at the same load."""
    costs = replace(RUN, cost=COSTLY, batches=QUIET, requests=120)
    saves = replace(RUN, cost=CHEAP, batches=QUIET, requests=120)
    said: dict[bool, list[tuple[Answer, bool]]] = {True: [], False: []}
    for trial in range(trials):
        for same, run, batches in ((False, costs, CROWDED), (True, saves, QUIET)):
            plain, mine = _drawn(replace(replace(run, batches=batches), k_zero_above=0), run, trial)
            inputs = Inputs(sources=[_trace(mine)], labels=["run"], baseline=_trace(plain))
            said[same].append(_pays(analyze(inputs)))
    return Compared(
        world="A3 baseline of another load",
        wrong=sum(answer is not Answer.CANNOT_TELL for answer, _ in said[False]) / trials,
        acts=sum(acts for _, acts in said[False]) / trials,
        cannot_tell=sum(answer is Answer.CANNOT_TELL for answer, _ in said[False]) / trials,
        found=sum(answer is Answer.YES for answer, _ in said[True]) / trials,
        agree=None,
    )


def _pays(analysis: Analysis) -> tuple[Answer, bool]:
    """Return whether speculation pays, and whether the first screen asks for something for it."""
    about = (*analysis.findings, *analysis.answers)
    (answer,) = [found.answer for found in about if found.topic is Topic.PAYS and found.answer]
    screen = analysis.screen
    return answer, screen.lead.topic is Topic.PAYS and screen.state is State.ACT


LONG = replace(RUN, requests=400, rounds=400, between=0.2)
HARDLY, CLEARLY = 0.997, 0.95
"""Factors of the rates of a drafter that is worse by 0.4 % of the acceptance length, and by 6 %."""


def _no_matter(trials: int) -> Compared:
    """Return what is said of a difference that does not matter, over 160,000 rounds of the same
    prompts, and of one that does."""
    differs = {
        factor: [_differs(factor, trial) for trial in range(trials)] for factor in (HARDLY, CLEARLY)
    }
    return Compared(
        world="A11 a difference of 0.4 %",
        wrong=sum(differs[HARDLY]) / trials,
        acts=None,
        cannot_tell=None,
        found=sum(differs[CLEARLY]) / trials,
        agree=None,
    )


def _differs(factor: float, trial: int) -> bool:
    rates = tuple(factor * rate for rate in LONG.conditional)
    first, second = (side(truth) for truth in _drawn(LONG, replace(LONG, conditional=rates), trial))
    rows = np.arange(len(first.labels))
    pairing = Pairing(how=BY_DIGEST, first=rows, second=rows, alone=0)
    return any(row.differs for row in comparison(first, second, ("a", "b"), pairing).differences)


def comparisons(trials: int) -> Iterator[Compared]:
    """Yield the rates of every world."""
    for world in WORLDS:
        yield of_world(world, trials)
    yield _other_load(trials)
    yield _no_matter(min(trials, MOST_LONG))


MOST_LONG = 40
"""Number of pairs of long runs."""


def _rates(row: Compared, trials: int) -> Iterator[Rate]:
    yield false("wrong", row.wrong, trials)
    yield power("found in the twin", row.found, trials, least=0.8)
    if row.agree is not None:
        yield Rate(name="gate and first screen agree", value=row.agree, least=1.0)


COMPARISONS = Table(
    name="comparisons",
    title="Two runs that differ in more than their drafter, and their twins, {trials} pairs each",
    rows=comparisons,
    rates=_rates,
    most_trials=200,
)
