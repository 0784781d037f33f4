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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from support.simulate import Cost, Prompts, Truth
from support.simulate.draw import difficulty
from support.simulate.sums import side
from support.simulate.write import simulate

from benchmarks.calibration.table import Figures, Rate, Table, false, mean_of, power
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

WORLDS: dict[str, World] = {
    "A1 hardest prompts missing": World(
        first=replace(RUN, requests=200),
        second=replace(RUN, requests=200, seed=9, conditional=WORSE),
        twin=replace(RUN, requests=200, seed=9),
        missing=0.09,
        allowed=(Answer.NO, Answer.CANNOT_TELL),
        right=Answer.YES,
    ),
    "A4a longer answers": World(
        first=ALONG,
        second=replace(ALONG, rounds=60, seed=9),
        twin=replace(ALONG, seed=9, conditional=tuple(0.85 * rate for rate in WORSE)),
    ),
    "A4b more sampled requests": World(
        first=replace(RUN, prompts=_sampled(0.2)),
        second=replace(RUN, prompts=_sampled(0.6), seed=9),
        twin=replace(RUN, prompts=_sampled(0.2), seed=9, conditional=WORSE),
    ),
    "A6 smaller K": World(
        first=replace(RUN, k=8, conditional=(0.8,) * 8),
        second=replace(RUN, k=3, conditional=(0.8,) * 3, seed=9),
        allowed=(Answer.YES, Answer.CANNOT_TELL),
        twin=replace(RUN, k=3, conditional=(0.65,) * 3, seed=9),
    ),
    "A7 other prompts of one length": World(
        first=ONE_LENGTH,
        second=OTHER_PROMPTS,
        twin=replace(ONE_LENGTH, conditional=WORSE, seed=9),
    ),
    "A7 the same, without digests": World(
        first=replace(ONE_LENGTH, digests=False),
        second=replace(OTHER_PROMPTS, digests=False),
        twin=replace(RUN, digests=False, conditional=WORSE, seed=9),
        twin_of=replace(RUN, digests=False),
    ),
    "another load, the same prompts": World(
        first=RUN,
        second=replace(RUN, batches=(24,), seed=9),
        allowed=(Answer.YES, Answer.CANNOT_TELL),
        twin=replace(RUN, batches=(24,), conditional=WORSE, seed=9),
    ),
    "A16 few sessions, another mix": World(
        first=SESSIONS,
        second=replace(SESSIONS, prompts=_mixed(0.65), prompts_seed=12, seed=9),
        twin=replace(SESSIONS, conditional=WORSE, seed=9),
    ),
}


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


def of_world(world: World, trial: int) -> Figures:
    """Return whether an answer about the confounded pair is wrong, whether the first screen asks
    for something because of it or cannot tell, whether the right answer about the twin is given,
    and whether the gate gives the answers of the first screen."""
    first, second = _drawn(world.first, world.second, trial)
    confounded = said_of(_trace(first), _trace(second, world.missing))
    first, second = _drawn(world.twin_of or world.first, world.twin, trial)
    twin = said_of(_trace(first), _trace(second, world.missing))
    return {
        "wrong": confounded.is_wrong(world.allowed),
        "acts": confounded.acts,
        "cannot_tell": confounded.answer is Answer.CANNOT_TELL,
        "found": twin.answer is world.right,
        "agree": [said.answer is said.gate for said in (confounded, twin)],
    }


COSTLY = Cost(draft_s=0.012, depth_s=0.004)
"""A drafter that costs more time than it saves."""
CHEAP = Cost(draft_s=0.0004, depth_s=0.0004)
CROWDED, QUIET = (24,), (2,)
"""Numbers of requests at once."""


def _other_load(trial: int) -> Figures:
    """Return what is said of speculation that costs time, against a baseline of another load; and
    of speculation that pays, at the same load."""
    costs = replace(RUN, cost=COSTLY, batches=QUIET, requests=120)
    saves = replace(RUN, cost=CHEAP, batches=QUIET, requests=120)
    (answer, acts), (twin, _) = (
        _pays(run, batches, trial) for run, batches in ((costs, CROWDED), (saves, QUIET))
    )
    return {
        "wrong": answer is not Answer.CANNOT_TELL,
        "acts": acts,
        "cannot_tell": answer is Answer.CANNOT_TELL,
        "found": twin is Answer.YES,
        "agree": None,
    }


def _pays(run: Truth, batches: tuple[int, ...], trial: int) -> tuple[Answer, bool]:
    """Return whether speculation pays beside a server without it that has such batches, and whether
    the first screen asks for something for it."""
    plain, mine = _drawn(replace(replace(run, batches=batches), k_zero_above=0), run, trial)
    analysis = analyze(Inputs(sources=[_trace(mine)], labels=["run"], baseline=_trace(plain)))
    about = (*analysis.findings, *analysis.answers)
    (answer,) = [found.answer for found in about if found.topic is Topic.PAYS and found.answer]
    screen = analysis.screen
    return answer, screen.lead.topic is Topic.PAYS and screen.state is State.ACT


LONG = replace(RUN, requests=400, rounds=400, between=0.2)
HARDLY, CLEARLY = 0.997, 0.95
"""Factors of the rates of a drafter that is worse by 0.4 % of the acceptance length, and by 6 %."""


def _no_matter(trial: int) -> Figures:
    """Return whether a difference that does not matter, over 160,000 rounds of the same prompts, is
    told, and one that does."""
    wrong, found = _differs(HARDLY, trial), _differs(CLEARLY, trial)
    return {"wrong": wrong, "acts": None, "cannot_tell": None, "found": found, "agree": None}


def _differs(factor: float, trial: int) -> bool:
    rates = tuple(factor * rate for rate in LONG.conditional)
    first, second = (side(truth) for truth in _drawn(LONG, replace(LONG, conditional=rates), trial))
    rows = np.arange(len(first.labels))
    pairing = Pairing(how=BY_DIGEST, first=rows, second=rows, alone=0)
    return any(row.differs for row in comparison(first, second, ("a", "b"), pairing).differences)


MOST_LONG = 40
"""Number of pairs of long runs."""


def comparisons(world: World | Callable[[int], Figures], trials: int) -> Figures:
    """Return the rates of one world."""
    if isinstance(world, World):
        return mean_of(of_world)(world, trials)
    long = world is _no_matter
    return mean_of(lambda _, seed: world(seed))(world, min(trials, MOST_LONG) if long else trials)


def _rates(_: object, row: Figures, trials: int) -> Iterator[Rate]:
    yield false("wrong", row["wrong"], trials)
    yield power("found in the twin", row["found"], trials, least=0.8)
    yield Rate(name="gate and first screen agree", value=row["agree"], least=1.0)


COMPARISONS = Table(
    name="comparisons",
    title="Two runs that differ in more than their drafter, and their twins, {trials} pairs each",
    worlds={
        **WORLDS,
        "A3 baseline of another load": _other_load,
        "A11 a difference of 0.4 %": _no_matter,
    },
    figures=comparisons,
    rates=_rates,
    most_trials=200,
)
