"""Measure how often a whole analysis makes a finding of high severity about a healthy run.

Each finding has a bound of its own and is not corrected for the others, so all of them are tested
together here, on runs in which nothing is wrong with the drafter but something is tempting. Wanted:
at most 6.8 % of 400 runs have a finding of high severity (5 %, and 1.64 standard errors).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from support.simulate import Cost, Prompts, Truth

from benchmarks.calibration.runs import trace_of
from benchmarks.calibration.table import MOSTLY, NEVER, Bound, Figures, table
from driftscope.findings.causes import TRAINING
from driftscope.findings.finding import Finding, Severity
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.manifest import FED_AFTER, FED_BEFORE
from driftscope.vocabulary import Region

HEALTHY = Truth(
    k=5,
    requests=60,
    rounds=20,
    conditional=(0.86, 0.84, 0.82, 0.81, 0.8),
    growth=1.0,
    norm_output=True,
    near=0.2,
    self_last=0.2,
    sink=(0.3, 0.29),
    batches=(4,),
    aux=(1.0, 1.1, 1.2),
)
"""A drafter that accepts well, whose attention and hidden state do not change with depth."""
WORLDS = {
    "60 requests": HEALTHY,
    "12 requests": replace(HEALTHY, requests=12),
    "K = 1": replace(HEALTHY, k=1, near=0.0),
    "20 prompts x 6": replace(HEALTHY, requests=120, repeats=6, between=0.8),
    "12 sessions of 10": replace(HEALTHY, requests=120, sessions=12, alike=0.6),
    "long contexts are another label": replace(
        HEALTHY,
        requests=120,
        prompts=(
            Prompts(label="chat", tokens=(50, 400), shift=0.2),
            Prompts(label="documents", tokens=(4000, 9000), shift=-0.2),
        ),
    ),
    "chains of one round in four": replace(HEALTHY, requests=120, rates=(0.25,)),
    "the state grows, and acceptance is even": replace(HEALTHY, growth=1.9, norm_output=False),
    "an MTP head is fed before its norm, and acceptance is even": replace(
        HEALTHY, norm_output=False, fed_state=FED_BEFORE, fed=14.0
    ),
    "attention moves, and acceptance is even": replace(HEALTHY, near=0.2, self_last=0.45),
    "attention moves, more so in the harder 40 % of the text": replace(
        HEALTHY,
        self_last=0.4,
        regions={Region.PROSE: (0.6, 0.3), Region.CODE: (0.4, -0.7)},
        attends=0.3,
    ),
    "one label is harder": replace(
        HEALTHY,
        requests=120,
        prompts=(
            Prompts(label="code", tokens=(60, 400), shift=0.7),
            Prompts(label="chat", tokens=(60, 400), shift=-0.4),
        ),
    ),
    "busy and idle": replace(HEALTHY, requests=120, batches=(1, 12)),
}
FALLS = replace(HEALTHY, conditional=(0.86, 0.8, 0.72, 0.64, 0.56))
MTP = replace(FALLS, norm_output=False, fed_state=FED_BEFORE, fed=14.0)
MOVES, FED = "attention_moves_to_chain", "fed_unlike_input"
LOSING: dict[str, tuple[Truth, str, Bound]] = {
    "attention moves, and acceptance falls along the chain": (
        replace(FALLS, self_last=0.4),
        MOVES,
        MOSTLY,
    ),
    "an MTP head is fed before its norm, and acceptance falls": (MTP, FED, MOSTLY),
    "an MTP head is fed after its norm, and acceptance falls": (
        replace(MTP, norm_output=True, fed_state=FED_AFTER),
        FED,
        NEVER,
    ),
    "an MTP head is fed before a norm that changes little, and acceptance falls": (
        replace(MTP, fed=2.6),
        FED,
        NEVER,
    ),
}
"""Worlds in which acceptance is lost: with a finding, and how often it has high severity."""


def _findings(truth: Truth) -> tuple[Finding, ...]:
    return analyze(Inputs(sources=[trace_of(truth)], labels=["run"])).findings


def _commonest(_: object, made: Sequence[Figures]) -> Figures:
    shares = {n: sum(one[n] for one in made) / len(made) for n in ("high", "medium", "named")}
    ids = Counter(name for one in made for name in one["ids"]).most_common(1)
    return {**shares, "commonest": ids[0][0] if ids else ""}


@table(
    "high_findings",
    "Healthy runs, {trials} analyses each: share with a finding of that severity",
    worlds={name: (truth, "", NEVER) for name, truth in WORLDS.items()} | LOSING,
    summary=_commonest,
    wanted=lambda world: {"named": world[2]},
    most_trials=200,
)
def analysed(world: tuple[Truth, str, Bound], seed: int) -> Figures:
    """Return the findings of one run by id and severity; of high severity ones any, and that of
    this world; and any of medium severity."""
    truth, name, _ = world
    findings = _findings(replace(truth, seed=seed, prompts_seed=10_000 + seed))
    ids = {level: [f.id for f in findings if f.severity is level] for level in Severity}
    high, medium = ids[Severity.HIGH], ids[Severity.MEDIUM]
    named = bool(high) if name == "" else name in high
    return {"high": bool(high), "medium": bool(medium), "named": named, "ids": high + medium}


LOW = replace(
    HEALTHY, conditional=(0.25, 0.6, 0.6, 0.6, 0.6), requests=160, between=0.3, within=0.3
)
TRAINED = {
    "trained too little, and knows it": LOW,
    "wired wrongly, surer than it is right": replace(LOW, miscalibration=0.35),
    "accepts well, and knows it": HEALTHY,
}
"""A drafter that was trained for 16 minutes is 32 % sure of its first token and right in 29 %; one
whose draft ids are mapped wrongly is 40 % sure and never right."""


@table(
    "training",
    "Low acceptance, {trials} analyses each: share in which too little training is a cause",
    worlds=TRAINED,
    wanted=lambda truth: {"named": MOSTLY if truth is LOW else NEVER},
    most_trials=100,
)
def training(truth: Truth, seed: int) -> Figures:
    """Return whether too little training is named a cause of one run, or ruled out."""
    run = _findings(replace(truth, seed=seed, prompts_seed=10_000 + seed))
    causes = [cause for finding in run for cause in finding.causes if cause.supported]
    out = [cause for finding in run for cause in finding.ruled_out]
    return {
        "named": any(cause.cause == TRAINING.words for cause in causes),
        "ruled_out": any(cause.cause == TRAINING.words for cause in out),
    }


SLOWED: dict[str, tuple[Truth, Bound]] = {
    "steps as ever": (HEALTHY, NEVER),
    "steps as ever, busy and idle": (replace(HEALTHY, requests=120, batches=(1, 12)), NEVER),
    "steps of very different times": (replace(HEALTHY, cost=Cost(noise=0.4)), NEVER),
    "answers become longer": (replace(HEALTHY, longer=(0.5, 3.0)), NEVER),
    "acceptance falls": (replace(HEALTHY, change=(0.5, -1.5)), NEVER),
    "1.15 times as long from half-way on": (replace(HEALTHY, slowdown=(0.5, 1.0, 1.15)), NEVER),
    "1.6 times as long from half-way on": (replace(HEALTHY, slowdown=(0.5, 1.0, 1.6)), MOSTLY),
    "2 times as long for a fifth of the run": (replace(HEALTHY, slowdown=(0.4, 0.6, 2.0)), MOSTLY),
    "2.5 times as long, and acceptance falls": (
        replace(HEALTHY, slowdown=(0.5, 1.0, 2.5), change=(0.5, -1.5)),
        MOSTLY,
    ),
}


@table(
    "slowdowns",
    "Steps that become slower, {trials} analyses each: share in which that is found",
    worlds=SLOWED,
    wanted=lambda world: {"found": world[1]},
    most_trials=100,
)
def slowed(world: tuple[Truth, Bound], seed: int) -> Figures:
    """Return whether the steps of one run are found to take longer in a part of it."""
    findings = _findings(replace(world[0], seed=seed, prompts_seed=10_000 + seed))
    return {"found": any(finding.id == "steps_slow_down" for finding in findings)}
