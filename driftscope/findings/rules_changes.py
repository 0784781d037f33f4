"""Rules about change over time: acceptance falls at a moment or decays, or the traffic changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from driftscope.analysis.circumstances import kept_of, usable
from driftscope.analysis.comparability import Claim, comparability_of_parts
from driftscope.analysis.figures.change_points import (
    ALPHA,
    MOST_ALIKE,
    POWERS,
    PROMPT,
    AcceptanceLevel,
    ChangePoint,
    Changes,
)
from driftscope.analysis.number_words import count, lasted, listed, moment, number, percent
from driftscope.analysis.pairing import pair_sides
from driftscope.analysis.query.row_filters import Update
from driftscope.analysis.statistics.changes import LEAST
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.strata import ENOUGH_REQUESTS
from driftscope.findings.case import Case, Need, Threshold, entry
from driftscope.findings.finding import (
    Answer,
    Finding,
    Headline,
    Severity,
    Topic,
    Trust,
    figure,
    judged,
)

DROPPED_BELOW = Threshold(
    name="DROPPED_BELOW",
    value=0.9,
    means="accepted tokens per round, after over before, at the same mix of requests",
    source="driftscope: at this loss the best K begins to change",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Explanation:
    """Reason why a change over time is no finding about the drafter."""

    why: str
    advice: str


FELL_BELOW = Threshold(
    name="FELL_BELOW",
    value=0.8,
    means="tokens per round, after over before, whatever the mix of requests",
    source="the alert DriftscopeAcceptanceFell: what users lose, whatever the reason",
)
"""The alert's bound; a run in which it would fire is not called healthy."""
SURE_BELOW = Threshold(
    name="SURE_BELOW",
    value=0.9,
    means="upper end of the 95% interval of that share, below which a fall asks for a look",
    source="half of the loss of FELL_BELOW; `make calibration`, table over_time",
)

UPDATE_BY_CHANCE = Threshold(
    name="UPDATE_BY_CHANCE",
    value=0.2,
    means="share of the requests that lie as near to an update of the weights as the change",
    source="driftscope: convention; `make calibration`, table updates",
)
"""Above it, an update that comes with a change may come with it by chance."""

_CANNOT_TELL = _Explanation(
    why="acceptance varies over time; session or traffic cannot be told from the drafter: send "
    "session ids or a canary",
    advice="Send a session id with every request, or a canary: the same prompts again and again. "
    f"The least is {2 * LEAST} sessions or prompts on both sides of the change.",
)
LEAST_OVERLAP = 0.1
"""Share of the rounds of one kind before and after a change, below which the kind of request says
no more than the time."""
_ENOUGH = Need[Case](
    words=f"{2 * LEAST} clusters of requests (sessions where they are known) with a round, most of "
    "them recorded whole",
    met=lambda case: case.run.changes is not None,
)
_ALPHA = Threshold(
    name="ALPHA",
    value=ALPHA,
    means="share of random orders of the same clusters that may show a step as large",
    source="convention; `make calibration` measures the resulting false-positive rate",
)
DECAYED_BELOW = Threshold(
    name="DECAYED_BELOW",
    value=0.9,
    means="accepted tokens per round, last quarter over first",
    source="driftscope: at this loss the best K begins to change; reported without "
    "figures in vllm#41838",
)
MIX_SHIFT = Threshold(
    name="MIX_SHIFT",
    value=0.1,
    means="change of a label's share of the rounds that lowers the confidence",
    source="driftscope",
)
"""Between the first and the last quarter; beyond it the mix of requests, not time, may explain a
decay."""


@entry(
    title="Acceptance drops at a moment",
    topic=Topic.WHERE,
    thresholds=(DROPPED_BELOW, _ALPHA, UPDATE_BY_CHANCE),
    need=_ENOUGH,
)
def acceptance_drops(case: Case) -> Finding | None:
    """Requests that start after some moment of the run, or those of one label, accept clearly fewer
    tokens than requests of the same kind before it, and a step describes this better than a slope.
    If the served weights were updated then, the finding names the update. The moment is estimated
    from the data. Kind: label, context length, structured output, temperature and batch size. It is
    of high severity only if sessions that go on across the moment, or prompts that come again, show
    it as well, and for information if another run that answered the same prompts falls at the same
    ones."""
    found = drop_of(case.run.changes)
    if found is None:
        return None
    changes, drop, label = found
    kept, spread = kept_after(drop)
    before = next(level for level in changes.levels if level.end_s == drop.time_s)
    after = next(level for level in changes.levels if level.start_s == drop.time_s)
    since_s = drop.time_s - changes.levels[0].start_s
    is_over = after is not changes.levels[-1]
    lasting = f"in the {lasted(after.end_s - after.start_s)} after it" if is_over else "since"
    until = f" and time_s < {after.end_s:.0f}" if is_over else ""
    trust, because = judged(
        min(before.requests, after.requests),
        spread,
        below=DROPPED_BELOW.value,
        assumed=_assumed(changes, drop),
    )
    under = f' under "{label}"' if label else ""
    harder = _fell_elsewhere(case, drop)
    doubt = "" if confirming(drop) else harder or _else_between(case, drop.time_s, label)
    felt = not label and drop.after < FELL_BELOW.value * drop.before
    update = _update_at(case, drop.time_s)
    updated = ""
    if update is not None:
        models = listed([f"the {model}" for model in update.models])
        updated = f"; {models} got other weights at {moment(update.time_s)} ({update.name})"
    return Finding(
        title="" if update is None else "Acceptance drops with an update of the weights",
        severity=severity_of(drop)
        if not doubt
        else Severity.MEDIUM
        if felt and not harder
        else Severity.INFO,
        answer=Answer.CANNOT_TELL if doubt else Answer.NO if trust is not Trust.LOW else None,
        statement=f"acceptance{under} fell at {moment(drop.time_s)} ({lasted(since_s)} into the "
        f"run): a round yields {number(drop.after)} tokens {lasting}, {number(drop.before)} "
        f"before; at the same mix of requests {percent(kept)} of the accepted tokens remain"
        f"{drop_by_label(case.run.changes, label)}{_anchor(drop)}{doubt}{updated}",
        evidence={
            **_evidence(changes, drop),
            "update": None if update is None else update.number,
            "threshold": DROPPED_BELOW.value,
        },
        confidence=trust,
        because=because,
        advice=_HARDER_PROMPTS
        if harder
        else _ADVICE_OF_UPDATE
        if update is not None
        else f"Look at what happened to the server around {moment(drop.time_s)}: a deployment, "
        "other weights, templates or sampling parameters, another kind of traffic. Analyse this "
        f"run again with `--where 'time_s >= {drop.time_s:.0f}{until}'`: it shows which requests "
        "accept less.",
        cost_tps=case.cost_of_losing(
            [level for level in changes.levels if level.start_s >= drop.time_s], drop.before
        ),
        headline=Headline.WORSE
        if felt and not harder and trust is not Trust.LOW
        else Headline.NEVER,
        estimate=drop.after / drop.before,
    )


_HARDER_PROMPTS = (
    "Nothing to fix. A list of prompts in an order, such as one sorted by task, looks like this: "
    "shuffle it, or send it several times."
)
_ADVICE_OF_UPDATE = (
    "A drafter predicts the weights that it was trained with: send the drafter's own new weights "
    "with each update of the target, or train it again on the new target. `--by weights` shows "
    "the acceptance after each update."
)


def _update_at(case: Case, time_s: float) -> Update | None:
    """Return the update of the weights nearest to a moment, unless some update would be as near to
    any moment: more than UPDATE_BY_CHANCE of the requests begin within this distance of one."""
    side, updates = case.run.side, case.run.updates
    if not updates or side is None or side.requests is None:
        return None
    begun = np.sort(side.requests.arrival_s)
    moment, *places = np.searchsorted(begun, [time_s, *(update.time_s for update in updates)])
    distance, update = min(
        (abs(int(place - moment)), update.number)
        for place, update in zip(places, updates, strict=True)
    )
    near = (2 * distance + 1) * len(updates)
    return updates[update - 1] if near <= UPDATE_BY_CHANCE.value * len(begun) else None


def _fell_elsewhere(case: Case, drop: ChangePoint) -> str:
    """Return a clause on another run that answered the same prompts and loses at least half as much
    at those of the later requests: the prompts are harder then; "" if there is none."""
    side, share = case.run.side, kept_after(drop)[0]
    if side is None or side.requests is None:
        return ""
    for other in case.others:
        pairing = pair_sides(side, other.side) if other.side is not None else None
        if other.side is None or pairing is None or not len(pairing.first):
            continue
        early = side.requests.arrival_s[pairing.first] < drop.time_s
        rounds = other.side.rounds
        tokens, weights = rounds.comparable_tokens()[:, 0], rounds.rounds
        rows = [np.isin(rounds.request, pairing.second[which]) for which in (early, ~early)]
        if not all(weights[row].sum() for row in rows):
            continue
        before, after = (tokens[row].sum() / weights[row].sum() - 1 for row in rows)
        if before > 0 and after / before <= (1 + share) / 2:
            return (
                f"; {other.label}, which answered the same prompts, keeps "
                f"{percent(after / before)} at those of the later requests: they are harder"
            )
    return ""


def _else_between(case: Case, time_s: float, label: str) -> str:
    """Return a clause on what else differs between the requests before and after a moment, and may
    explain a drop; "" if nothing does."""
    side = case.run.side
    side = side.labelled(label) if side is not None and label else side
    if side is None or side.requests is None:
        return ""
    early = side.requests.arrival_s[side.rounds.request] < time_s
    return comparability_of_parts(
        side.of(early), side.of(~early), "the earlier and the later requests", same_mix=True
    ).doubt(Claim.ACCEPTANCE)


def drop_of(changes: Changes | None) -> tuple[Changes, ChangePoint, str] | None:
    """Return the changes with the worst drop, the drop and its label: of all requests ("") or,
    unless all requests fall as well, of one label; None if there is none.

    Movements of labels may cancel in the run, whether they are steps or slopes. A drop of the run
    that is not clear of the threshold gives way to one of a label that is.
    """
    if changes is None:
        return None
    drop, dropped = worst_drop(changes), _dropped_labels(changes)
    worst = min(dropped, key=lambda found: kept_after(found[1])[0], default=None)
    if drop is not None:
        blurred = worst is not None and is_clear(worst[1]) and not is_clear(drop)
        return worst if blurred else (changes, drop, "")
    if any(kept_after(point)[0] < 1.0 for point in changes.points):
        return None
    return worst


def _dropped_labels(changes: Changes) -> list[tuple[Changes, ChangePoint, str]]:
    return [
        (alone, drop, label)
        for label, alone in changes.by_label.items()
        if (drop := worst_drop(alone, gradual=True)) is not None
    ]


def drop_by_label(changes: Changes | None, label: str) -> str:
    """Return a clause on the labels of a run that drops, if some drop and others do not; "" for a
    drop of one `label`."""
    if changes is None or label:
        return ""
    dropped = {name for _, _, name in _dropped_labels(changes)}
    others = [name for name, alone in changes.by_label.items() if not alone.points]
    if not dropped or not others:
        return ""
    kept, lost = (listed([f'"{name}"' for name in names]) for names in (others, sorted(dropped)))
    return f"; it shows under {lost}, and not under {kept}"


@entry(
    title="Acceptance moves over time, by itself no sign of the drafter",
    topic=Topic.WHERE,
    thresholds=(
        FELL_BELOW,
        SURE_BELOW,
        _ALPHA,
        Threshold(
            name="MOST_ALIKE",
            value=MOST_ALIKE,
            means="autocorrelation of neighbouring requests times the root of their number",
            source="the upper end of a 95% interval around none (Bartlett 1946)",
        ),
    ),
    need=_ENOUGH,
)
def acceptance_moves(case: Case) -> Finding | None:
    """Acceptance changes over time, but requests of one kind or the same prompts accept as before,
    or requests that follow each other are alike and the recording does not say which belong to one
    session: then the drafter cannot be told from the traffic. It asks for a look if a round yields
    less than FELL_BELOW of what it yielded before, which users feel whatever the reason."""
    changes = case.run.changes
    if changes is None or drop_of(changes) is not None:
        return None
    fall = fall_of(changes)
    moved = fall or max((*changes.points, changes.raw), key=_size)
    explanation = explanation_of(changes)
    if moved is None or explanation is None:
        return None
    harder = "" if fall is None else _fell_elsewhere(case, fall)
    sure = fall is not None and not harder and is_sure(changes, fall)
    if fall is None:
        moved_words = (
            f"rounds of requests that start before {moment(moved.time_s)} yield "
            f"{number(moved.before)} tokens, rounds of later requests {number(moved.after)}"
        )
    else:
        level = _level_from(changes, fall)
        last = level is None or level is changes.levels[-1]
        lasts = "" if last or level is None else f" for {lasted(level.end_s - level.start_s)}"
        moved_words = (
            f"from {moment(fall.time_s)} on{lasts}, a round yields {number(fall.after)} tokens, "
            f"{percent(fall.after / fall.before)} of the {number(fall.before)} before"
        )
    return Finding(
        severity=Severity.INFO if fall is None or harder else Severity.MEDIUM,
        title="" if fall is None else "Acceptance fell with the traffic",
        statement=f"{moved_words}: {explanation.why}{_came(moved)}{harder}",
        evidence=_evidence(changes, moved),
        confidence=Trust.MEDIUM if sure or (fall is None and changes.keyed) else Trust.LOW,
        because="sessions are recorded" if changes.keyed else _assumed(changes, moved)[0],
        advice=_HARDER_PROMPTS
        if harder
        else explanation.advice
        if fall is None
        else _look(changes, fall, explanation),
        headline=Headline.WORSE if sure else Headline.NEVER,
        estimate=None if fall is None else fall.after / fall.before,
    )


def fall_of(changes: Changes | None) -> ChangePoint | None:
    """Return the change after which a round yields the smallest share of the tokens before it,
    whatever the reason; None if none is below FELL_BELOW."""
    if changes is None:
        return None
    points = (*changes.points, changes.raw) if changes.raw else changes.points
    fallen = [point for point in points if point.after < FELL_BELOW.value * point.before]
    return min(fallen, key=lambda point: point.after / point.before, default=None)


def is_sure(changes: Changes, fall: ChangePoint) -> bool:
    """Whether a fall is more than sessions or requests that differ: its interval is below
    SURE_BELOW, and neighbouring requests are not alike for unknown reasons."""
    if fall.interval is None or changes.neighbours_alike:
        return False
    return fall.before + fall.interval.high < SURE_BELOW.value * fall.before


def _level_from(changes: Changes, point: ChangePoint) -> AcceptanceLevel | None:
    """Return the level that a point begins; None for the change of the requests as they came."""
    return next((level for level in changes.levels if level.start_s == point.time_s), None)


def _came(point: ChangePoint) -> str:
    """Return in words the requests that came with a fall; "" if no kind explains it."""
    again = contradicting(point) is not None
    came = next((came for came in point.newcomers if came.kind != PROMPT or again), None)
    if came is None:
        return ""
    words = {
        PROMPT: "prompts that were not sent before",
        "label": f'requests labelled "{came.value}"',
        "structured": f"requests with structured output ({came.value})",
        "temperature": f"requests at temperature {came.value}",
        "context": "requests with about {:,} tokens of context",
        "batch": "requests in batches of about {:,}",
    }[came.kind]
    if came.kind in POWERS:
        words = words.format(2 ** int(came.value))
    before = f" (before: {percent(came.share_before)})" if came.kind != PROMPT else ""
    return (
        f"; {words} make up {percent(came.share_after)} of the rounds after it{before} and yield "
        f"{number(came.mean_length)}"
    )


def _look(changes: Changes, fall: ChangePoint, explanation: _Explanation) -> str:
    """Return what to do about a fall that comes with the traffic."""
    level = _level_from(changes, fall)
    until = (
        "" if level is None or level is changes.levels[-1] else f" and time_s < {level.end_s:.0f}"
    )
    find = (
        ""
        if _came(fall)
        else f"Find out what the requests since {moment(fall.time_s)} have in common, such as a "
        "chat template, a language, a label or their length. "
    )
    return (
        f"{find}Analyse this run again with `--where 'time_s >= {fall.time_s:.0f}{until}'`. If "
        "these requests were not meant, such as another template, repair it; if they were, a "
        "smaller K or a drafter trained on such text serves them better."
        f"{' ' + _CANNOT_TELL.advice if explanation.advice == _CANNOT_TELL.advice else ''}"
    )


def worst_drop(changes: Changes | None, *, gradual: bool = False) -> ChangePoint | None:
    """Return the change point after which the smallest share of accepted tokens remains; None if no
    point is a drop that traffic does not explain or, unless `gradual`, if the points stand for a
    slope."""
    if changes is None or (changes.gradual and not gradual):
        return None
    drops = [
        point
        for point in changes.points
        if kept_after(point)[0] < DROPPED_BELOW.value and _may_be_drafter(changes, point)
    ]
    return min(drops, key=lambda point: kept_after(point)[0], default=None)


def _may_be_drafter(changes: Changes, point: ChangePoint) -> bool:
    """Whether traffic is no explanation: the same prompts or sessions confirm the drop or, without
    enough of them, nothing speaks for traffic."""
    if anchors(point):
        return confirming(point) is not None
    return changes.keyed or not changes.neighbours_alike


def kept_after(point: ChangePoint) -> tuple[float, Interval | None]:
    """Return accepted tokens after the point over those before it, at the same mix of requests,
    with the 95% interval."""
    if point.adjusted is None:
        return _share(point, point.difference, point.interval)
    return _share(point, point.adjusted, point.adjusted_interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Accepted tokens that the same prompts, or the same sessions, keep across a change."""

    noun: str
    number: int
    difference: float
    """Tokens per round, after minus before."""
    kept: Interval
    """95% interval of the share kept."""


def anchors(point: ChangePoint) -> list[Anchor]:
    """Return what came both before and after the point, and tells the drafter from the traffic:
    prompts that were sent again, and sessions that went on, if there are enough."""
    both = (
        ("prompt", point.prompts, point.anchored, point.anchored_interval),
        ("session", point.sessions, point.going_on, point.going_on_interval),
    )
    return [
        Anchor(noun=noun, number=number, difference=difference, kept=kept)
        for noun, number, difference, interval in both
        if difference is not None and (kept := _share(point, difference, interval)[1])
    ]


def contradicting(point: ChangePoint) -> Anchor | None:
    """Return the prompts or sessions that surely kept more than DROPPED_BELOW; None if there are
    none."""
    sure = (anchor for anchor in anchors(point) if anchor.kept.low > DROPPED_BELOW.value)
    return next(sure, None)


def confirming(point: ChangePoint) -> Anchor | None:
    """Return the prompts or sessions that surely accept less after the point, unless others
    contradict them; None if there are none."""
    sure = (anchor for anchor in anchors(point) if anchor.kept.high < 1.0)
    return None if contradicting(point) else next(sure, None)


def _share(
    point: ChangePoint, difference: float, spread: Interval | None
) -> tuple[float, Interval | None]:
    accepted = point.before - 1.0
    if accepted <= 0:
        return 1.0, None
    around = spread and Interval.between(1 + spread.low / accepted, 1 + spread.high / accepted)
    return 1 + difference / accepted, around


def severity_of(drop: ChangePoint) -> Severity:
    """Return HIGH only for a loss that is clear of the threshold, and that sessions which go on or
    repeated prompts show as well: new sessions may be other traffic."""
    return Severity.HIGH if is_clear(drop) and confirming(drop) else Severity.MEDIUM


def is_clear(drop: ChangePoint) -> bool:
    """Whether the 95% interval of what a drop keeps is clear of the threshold."""
    spread = kept_after(drop)[1]
    return spread is not None and spread.high < DROPPED_BELOW.value


def _assumed(changes: Changes, point: ChangePoint) -> list[str]:
    if confirming(point):
        return []
    if changes.keyed:
        return ["hardly a session or prompt goes on across it, so other users may explain it"]
    return ["the recording does not say which requests belong to one session"]


def _size(point: ChangePoint | None) -> float:
    return -1.0 if point is None else abs(point.difference)


def explanation_of(changes: Changes) -> _Explanation | None:
    """Return why the change is no finding about the drafter; None if it may be one, or if it is a
    rise or small."""
    kept = next(filter(None, map(contradicting, changes.points)), None)
    if kept is not None:
        return _Explanation(
            why=f"the same {count(kept.number, kept.noun)} accept as before, so the traffic "
            "changed",
            advice="Nothing to fix. Compare runs on equal prompts.",
        )
    open_points = (point for point in changes.points if not confirming(point))
    unsure = next((anchor for point in open_points for anchor in anchors(point)), None)
    if unsure is not None:
        # The width of the kept share's interval falls with the root of their number.
        ratio = (unsure.kept.high - unsure.kept.low) / (1.0 - DROPPED_BELOW.value)
        needed = math.ceil(unsure.number * max(ratio, 1.0) ** 2)
        return _Explanation(
            why=f"the same {count(unsure.number, unsure.noun)} neither confirm nor exclude it, so "
            "traffic cannot be told from the drafter",
            advice="Send more prompts again and again, or go on with more sessions: about "
            f"{needed:,} {unsure.noun}s on both sides of the change would decide.",
        )
    if changes.neighbours_alike:
        return _CANNOT_TELL
    if changes.points:
        return None
    of = "of requests or sessions" if changes.keyed else "of requests"
    if changes.raw is not None and changes.raw.overlap < LEAST_OVERLAP:
        return _Explanation(
            why=f"the mix {of} changed as a whole at that moment, so the traffic cannot be told "
            "from the drafter",
            advice=_CANNOT_TELL.advice,
        )
    return _Explanation(
        why=f"acceptance moved with the mix {of}: those of one kind accept as before",
        advice="Nothing to fix. Look at the figures by label and by context to see which requests "
        "came and went.",
    )


def _anchor(drop: ChangePoint) -> str:
    anchor = confirming(drop)
    if anchor is None:
        return ""
    again = "came again" if anchor.noun == "prompt" else "went on"
    return (
        f", and {count(anchor.number, anchor.noun)} that {again} yield "
        f"{number(-anchor.difference)} tokens less"
    )


def _evidence(changes: Changes, point: ChangePoint) -> dict[str, float | int | None]:
    kept, spread = kept_after(point)
    return {
        "time_s": point.time_s,
        "mean_length_before": point.before,
        "mean_length_after": point.after,
        **figure("difference", point.difference, point.interval),
        "difference_same_mix": point.same_mix,
        **figure("difference_adjusted", point.adjusted, point.adjusted_interval),
        **figure("difference_same_prompts", point.anchored, point.anchored_interval),
        "prompts": point.prompts,
        **figure("difference_same_sessions", point.going_on, point.going_on_interval),
        "sessions": point.sessions,
        **figure("kept", kept, spread),
        "p": point.p,
        "clusters": changes.clusters,
        "autocorrelation": changes.autocorrelation,
    }


@entry(
    title="Acceptance decays over the run",
    topic=Topic.WHERE,
    thresholds=(DECAYED_BELOW, MIX_SHIFT),
    need=Need[Case](
        words=f"{ENOUGH_REQUESTS} requests in the first quarter of the run and in a later one",
        met=lambda case: len(usable(case.run.groups.time)) > 1,
    ),
)
def acceptance_decays(case: Case) -> Finding | None:
    """Requests that begin in the last quarter of a run accept clearly fewer tokens than those of
    the first quarter, without a single moment of change."""
    groups, changes = usable(case.run.groups.time), case.run.changes
    # Requests of one kind have to change, and traffic must be no explanation; too few requests to
    # test that are no objection.
    moves = changes is None or (bool(changes.points) and not changes.neighbours_alike)
    if worst_drop(changes) is not None or not moves:
        return None
    if len(groups) < 2 or groups[0].name != case.run.groups.time[0].name:
        return None
    first, last = groups[0], groups[-1]
    estimate = kept_of(first, last, tests=1)
    if estimate is None or not estimate[0] < DECAYED_BELOW.value:
        return None
    kept, spread = estimate
    shares = case.run.groups.shares.items()
    names = [label for label, share in shares if abs(share[-1] - share[0]) > MIX_SHIFT.value]
    shifted = listed([f'"{name}"' for name in names])
    assumed = [f"the mix of requests changed as well ({shifted})"] if shifted else []
    trust, because = judged(last.requests + first.requests, spread, below=1.0, assumed=assumed)
    return Finding(
        severity=Severity.MEDIUM,
        answer=Answer.NO if trust is not Trust.LOW else None,
        statement="rounds of requests in the first quarter of "
        f"{lasted(case.run.groups.duration_s)} yield {number(first.mean_length)} tokens, in "
        f"the last {number(last.mean_length)}",
        evidence={
            **figure("mean_length_first", first.mean_length, first.mean_length_interval),
            **figure("mean_length_last", last.mean_length, last.mean_length_interval),
            **figure("kept", kept, spread),
            "duration_s": case.run.groups.duration_s,
            "threshold": DECAYED_BELOW.value,
        },
        confidence=trust,
        because=because,
        advice=(_ADVICE_OF_UPDATE + " " if case.run.updates else "")
        + "Compare the early and the late requests (labels, context lengths, temperature). If "
        "they are alike, restart the engine and see whether acceptance recovers. If it does, the "
        "engine is at fault (prefix cache, drafter cache), which is worth a bug report.",
        cost_tps=case.cost_of_losing(groups[1:], first.mean_length),
    )
