"""Changes over time: runs without one, steps, sessions, other traffic, and unfinished requests.

Wanted: a drop is reported in at most 6.8 % of 400 runs of a drafter that does not change, if
sessions are known or kinds of requests are labelled, and no drop of high severity where neither is;
also where a stationary server is read while it runs. A step of -0.7 on the logit of acceptance is
found in at least 95 % of the runs of independent requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.random import RandomState
from support.simulate import Prompts, Truth
from support.simulate.sums import series

from benchmarks.calibration.estimates import RUNS
from benchmarks.calibration.runs import Floats, Ints, accepted, chance, changed, findings_of
from benchmarks.calibration.table import (
    FOUND,
    MOSTLY,
    NEVER,
    Bound,
    Figures,
    found,
    means,
    table,
    within,
)
from driftscope.analysis.figures.change_points import Changes, Series, changes
from driftscope.analysis.statistics.changes import Lifetimes, selection_of
from driftscope.findings.finding import Answer, Severity
from driftscope.findings.rules_changes import (
    drop_of,
    explanation_of,
    fall_of,
    is_sure,
    severity_of,
)

STEP = -0.7
"""Logit shift that lowers the acceptance length of these runs by about a quarter."""
NEAR = 0.1
"""Tolerance for the position of a change, as a share of the run."""


@table(
    "changes",
    "A change over time, {trials} runs each: share in which one is found",
    worlds=RUNS,
    wanted=lambda _: {"flat": NEVER},
)
def cuts(truth: Truth, seed: int) -> Figures:
    """Return whether a change is found in a run without one, in the same with a step half-way, and
    there within NEAR of its position."""
    run = replace(truth, seed=10_000 + seed, prompts_seed=50_000 + seed)
    flat, found = (changes(series(one)) for one in (run, replace(run, change=(0.5, STEP))))
    points = found.points if found else ()
    return {
        "flat": bool(flat and flat.points),
        "step": bool(points),
        "near": any(abs(p.time_s / truth.requests - 0.5) <= NEAR for p in points),
    }


TINY = 1e-9
"""Shift of labels that do not change, whose runs have them."""
LOGITS = (1.4, 0.94, 0.66, 0.41, 0.2, 0.0, -0.16)
"""Logit of acceptance at each depth, given the depth before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWorld:
    """Truth of one world; effects are on the logit of acceptance."""

    requests: int = 200
    sessions_of: int = 1
    """Number of requests of a session, which follow each other."""
    interleaved: bool = False
    """Whether all sessions go on for the whole run instead."""
    keyed: bool = False
    """Whether the recording says which requests belong to one session."""
    alike: float = 0.8
    """Standard deviation of the sessions' own shift."""
    own: float = 0.5
    """Standard deviation of the requests' own shift."""
    nights: float = 0.0
    """Shift of requests of another kind, 9 in 10 of those at night and 1 in 10 by day."""
    labelled: bool = False
    """Whether both kinds have a label."""
    canary: int = 0
    """Number of prompts that are sent again and again, in every fourth request."""
    known: bool = False
    """Whether the prompts of the other requests are known, each sent once."""
    traffic: float = 0.0
    """Shift of all requests but the canary's from half of the run on."""
    step: float = 0.0
    """Shift of all requests from half of the run on: a change of the drafter."""
    ends: bool = False
    """Whether the drafter is what it was in the last quarter."""
    tenants: float = 0.0
    """Shift of the sessions that begin in the second half: harder traffic, the same drafter."""
    going: int = 0
    """Number of sessions, beside those, that go on for the whole run."""
    opposite: float = 0.0
    """Shift of requests of one label, and minus that of the other's, from half of the run on."""
    slopes: bool = False
    """Whether that shift grows over the run instead."""
    other_share: float = 0.5
    """Share of the requests of the label that loses."""

    @property
    def drops(self) -> bool:
        """Whether the drafter really loses acceptance, of all requests or of a label's."""
        return self.step < 0 or self.opposite < -TINY

    @property
    def costly_traffic(self) -> bool:
        """Whether other traffic costs about a quarter of the tokens, and can be told as such."""
        return (self.nights < 0 and self.labelled) or self.traffic < 0 or bool(self.going)

    @property
    def quiet(self) -> bool:
        """Whether nothing changes over time."""
        return not (self.nights or self.traffic or self.step or self.tenants or self.opposite)

    @property
    def crossing(self) -> bool:
        """Whether sessions that go on, or prompts that come again, can show it."""
        return self.interleaved or bool(self.canary) or bool(self.going)


WORLDS = {
    "independent requests": ChangeWorld(alike=0.0, own=0.6),
    "sessions of 5, key": ChangeWorld(sessions_of=5, keyed=True),
    "sessions of 20, key": ChangeWorld(requests=800, sessions_of=20, keyed=True),
    "40 sessions interleaved, key": ChangeWorld(
        requests=400, sessions_of=10, interleaved=True, keyed=True
    ),
    "day and night, labelled": ChangeWorld(nights=-1.5, labelled=True),
    "other traffic, canary": ChangeWorld(requests=400, traffic=-1.0, canary=20),
    "sessions of 5, no key": ChangeWorld(sessions_of=5),
    "sessions of 20, no key": ChangeWorld(requests=400, sessions_of=20),
    "day and night, no label": ChangeWorld(nights=-1.5),
    "a step, independent requests": ChangeWorld(alike=0.0, own=0.6, step=STEP),
    "a step that ends, independent requests": ChangeWorld(alike=0.0, own=0.4, step=-1.5, ends=True),
    "a step, sessions of 5, key": ChangeWorld(requests=400, sessions_of=5, keyed=True, step=STEP),
    "a step of -1.2, sessions of 10, key": ChangeWorld(
        requests=400, sessions_of=10, keyed=True, step=-1.2
    ),
    "a step, 40 sessions interleaved, key": ChangeWorld(
        requests=400, sessions_of=10, interleaved=True, keyed=True, step=STEP
    ),
    "a step, canary": ChangeWorld(requests=400, canary=20, step=STEP),
    "60 sessions of 4, new tenants": ChangeWorld(
        requests=240, sessions_of=4, keyed=True, tenants=-1.0
    ),
    "new tenants, 20 sessions go on as before": ChangeWorld(
        requests=480, sessions_of=4, keyed=True, tenants=-1.0, going=20
    ),
    "a step, 20 sessions go on": ChangeWorld(
        requests=480, sessions_of=4, keyed=True, step=-1.2, going=20
    ),
    "two labels, no change": ChangeWorld(alike=0.0, own=0.6, opposite=-TINY),
    "labels move apart": ChangeWorld(alike=0.0, own=0.6, opposite=-0.6),
    "labels drift apart": ChangeWorld(alike=0.0, own=0.6, opposite=-0.9, slopes=True),
    "a label of 20 % loses": ChangeWorld(
        requests=400, alike=0.0, own=0.6, opposite=-1.2, other_share=0.2
    ),
}


def series_of(world: ChangeWorld, seed: int) -> Series:
    """Draw one run."""
    random = RandomState(seed)
    n = world.requests
    sessions = -(-n // world.sessions_of)
    session = np.arange(n) % sessions if world.interleaved else np.arange(n) // world.sessions_of
    going = (np.arange(n) % 4 == 0) & (world.going > 0)
    session = np.where(going, sessions + np.arange(n) // 4 % max(world.going, 1), session)
    sessions += world.going
    late, night = np.arange(n) >= n // 2, (np.arange(n) * 4 // n) % 2 == 1
    other = random.random_sample(n) < np.where(night, 0.9, 0.1)
    loses = random.random_sample(n) < world.other_share
    change = np.linspace(-1.0, 1.0, n) if world.slopes else late.astype(np.float64)
    prompt = np.where(np.arange(n) % 4 == 0, random.randint(0, max(world.canary, 1), n), -1)
    prompt = np.where(world.canary > 0, prompt, -1)
    code = np.where((prompt < 0) & world.known, n + np.arange(n), prompt)
    shift = world.alike * random.standard_normal(sessions)[session]
    shift += world.own * random.standard_normal(n)
    of_prompt = (world.alike + world.own) * random.standard_normal(max(world.canary, 1))
    shift = np.where(prompt >= 0, of_prompt[prompt], shift)
    changed_drafter = late & (np.arange(n) * 4 < 3 * n) if world.ends else late
    shift += world.nights * other + world.step * changed_drafter
    shift += world.traffic * (late & (prompt < 0))
    shift += world.tenants * (late & ~going)
    shift += world.opposite * change * np.where(loses, 1.0, -1.0 if world.other_share == 0.5 else 0)
    rounds = random.randint(12, 37, n)
    of = np.repeat(np.arange(n), rounds)
    tokens_accepted = accepted(random, chance(np.array(LOGITS) + shift[of][:, None]))
    tokens = np.bincount(of, 1.0 + tokens_accepted, n)
    return Series(
        start_s=np.arange(n, dtype=np.float64),
        end_s=float(n),
        tokens=tokens,
        rounds=rounds.astype(np.float64),
        labels=np.where(loses, "a", "b")
        if world.opposite
        else np.where(other & world.labelled, "other", "usual"),
        cluster=session if world.keyed else None,
        prompt=code if world.canary else None,
    )


def high(made: Changes | None) -> bool:
    """Whether a drop of high severity is reported."""
    found = drop_of(made)
    return found is not None and severity_of(found[1]) is Severity.HIGH


def moves(made: Changes | None) -> bool:
    """Whether acceptance is said to move with the traffic, or not to be told from it."""
    if made is None or drop_of(made) is not None:
        return False
    has_change = bool(made.points) or made.raw is not None
    return has_change and explanation_of(made) is not None


def _reported(world: ChangeWorld) -> dict[str, Bound]:
    if world.drops:
        bound = MOSTLY if world.ends else FOUND
        return {"called": bound, "high": bound} if world.crossing else {"called": bound}
    wanted = {"high": NEVER}
    if world.crossing or world.quiet:
        wanted["called"] = NEVER
    if world.costly_traffic or (world.quiet and not world.keyed and world.sessions_of > 1):
        wanted["moves"] = found(0.5)
    if world.costly_traffic or world.quiet:
        wanted["asked"] = FOUND if world.costly_traffic else NEVER
    return wanted


@table(
    "over_time",
    "Sessions, kinds and steps over time, {trials} runs each: share of answers",
    worlds=WORLDS,
    wanted=_reported,
)
def over_time(world: ChangeWorld, seed: int) -> Figures:
    """Return what is reported of one run: a drop, one of high severity, acceptance that moves with
    traffic, and a fall of a fifth with the traffic that asks for a look."""
    result = changes(series_of(world, seed))
    fall = fall_of(result)
    return {
        "called": drop_of(result) is not None,
        "high": high(result),
        "moves": moves(result),
        "asked": bool(result and fall and moves(result) and is_sure(result, fall)),
    }


TWO_REPLICAS = Truth(requests=240, rounds=12, replicas=2)
TWO_LABELS = (Prompts(label="easy", shift=0.6), Prompts(label="hard", shift=-0.6))


@table(
    "replicas",
    "Replicas, {trials} runs each: share of answers",
    worlds={
        "one replica loses": replace(TWO_REPLICAS, replica_shift=-1.0),
        "replicas are alike": TWO_REPLICAS,
        "one replica serves what is hard": replace(
            TWO_REPLICAS, prompts=TWO_LABELS, kind_by_replica=True
        ),
    },
    wanted=lambda truth: {"blamed": FOUND if truth.replica_shift else NEVER},
)
def of_replicas(truth: Truth, seed: int) -> Figures:
    """Return whether a replica of one run is blamed."""
    findings = findings_of(replace(truth, seed=seed, prompts_seed=1000 + seed))
    found = [one for one in findings if one.id == "replica_differs" and one.answer is Answer.NO]
    return {"blamed": bool(found)}


DRAFTED = 4
FIRST = 0.6
"""Logit of acceptance at each depth, given the depth before."""
CERTAIN = 0.005
"""Largest bias of the mean acceptance length, as a share of it."""
SLOTS, LASTS_S = 64, 600
"""Places of a server, each round of which takes one second, and the time that was recorded."""
MEDIAN_ROUNDS, ROUNDS_SPREAD = 40.0, 0.5
"""Median number of rounds of an answer, and the standard deviation of its logarithm."""
BETWEEN = 0.5
"""Standard deviation of the requests' own logit shift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How acceptance goes with the length of answers."""

    ease: float = 0.0
    """Logit shift for each standard deviation of the logarithm of the rounds of an answer."""
    along: float = 0.0
    """Logit shift for each e-fold of the rounds of an answer so far."""

    def shifts(self, random: RandomState, ease: Floats) -> Floats:
        """Draw the logit of requests of this ease."""
        return FIRST + self.ease * ease + BETWEEN * random.standard_normal(len(ease))

    def tokens(self, random: RandomState, shift: Floats, rounds: Ints) -> Floats:
        """Draw the tokens of requests of so many rounds."""
        of = np.repeat(np.arange(len(rounds)), rounds)
        nth = np.arange(len(of)) - np.repeat(np.cumsum(rounds) - rounds, rounds)
        logit = shift[of] + self.along * (np.log1p(nth) - np.log(MEDIAN_ROUNDS))
        chances = np.broadcast_to(chance(logit)[:, None], (len(of), DRAFTED))
        return np.bincount(of, 1.0 + accepted(random, chances), len(rounds))


SERVERS = {
    "long answers are easy": Server(ease=0.7),
    "acceptance rises along an answer": Server(along=0.7),
    "both": Server(ease=0.6, along=0.6),
    "neither": Server(),
}


def recording(world: Server, seed: int) -> tuple[Lifetimes, Floats]:
    """Draw one recording: its requests in order of their start, and their tokens."""
    random = RandomState(seed)
    parts = [_slot(world, random) for _ in range(SLOTS)]
    start, rounds, whole, tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    lives = Lifetimes(
        start_s=start[order],
        last_s=(start + rounds)[order],
        end_s=np.full(len(start), float(LASTS_S)),
        ended=(rounds == whole)[order],
        rounds=rounds[order].astype(np.int64),
    )
    return lives, tokens[order]


def _slot(world: Server, random: RandomState) -> tuple[Floats, ...]:
    """Return start, recorded rounds, all rounds and tokens of the requests of one slot."""
    ease = random.standard_normal(int(4 * LASTS_S / MEDIAN_ROUNDS) + 20)
    whole = _rounds(ease)
    begin = random.random_sample() + np.concatenate([[0.0], np.cumsum(whole)[:-1]])
    has_begun = begin < LASTS_S - 1
    whole, begin = whole[has_begun], begin[has_begun]
    recorded = np.minimum(whole, np.floor(LASTS_S - begin))
    shift = world.shifts(random, ease[has_begun])
    return begin, recorded, whole, world.tokens(random, shift, recorded.astype(int))


def _rounds(ease: Floats) -> Floats:
    return np.maximum(np.rint(MEDIAN_ROUNDS * np.exp(ROUNDS_SPREAD * ease)), 1.0)


@cache
def true_length(world: Server, requests: int = 200_000) -> float:
    """Return the acceptance length over whole requests, to about 0.1 %."""
    random = RandomState(1)
    ease = random.standard_normal(requests)
    rounds, shift = _rounds(ease).astype(int), world.shifts(random, ease)
    parts = np.array_split(np.arange(requests), 50)
    tokens = sum(world.tokens(random, shift[p], rounds[p]).sum() for p in parts)
    return float(tokens / rounds.sum())


def _biases(world: Server, made: Sequence[Figures]) -> Figures:
    """Return the mean acceptance length over that of whole requests, minus 1, as the bias."""
    row = means(world, made)
    true = true_length(world)
    return {name: value / true - 1 if "bias" in name else value for name, value in row.items()}


@table(
    "unfinished",
    "A stationary server read while it runs, {trials} recordings each",
    worlds=SERVERS,
    summary=_biases,
    wanted=lambda _: {"cohort_changed": NEVER, "cohort_bias": within(CERTAIN)},
    formats={f"{choice}_bias": "+.2%" for choice in ("cohort", "all", "finished")},
)
def unfinished(world: Server, seed: int) -> Figures:
    """Return for each choice of requests whether a change is found, their acceptance length, and
    the share of rounds used."""
    lives, tokens = recording(world, seed)
    end_s, out = float(lives.end_s.max()), dict[str, float]()
    every = np.ones(len(tokens), dtype=np.bool_)
    choices = {"cohort": selection_of(lives).kept, "all": every, "finished": lives.ended}
    for choice, chosen in choices.items():
        chosen_tokens, rounds = tokens[chosen], lives.rounds[chosen]
        moves = changed(chosen_tokens, rounds, start_s=lives.start_s[chosen], end_s=end_s)
        out[f"{choice}_changed"] = moves
        out[f"{choice}_bias"] = float(chosen_tokens.sum() / rounds.sum())
        out[f"{choice}_kept"] = float(rounds.sum() / lives.rounds.sum())
    return out
