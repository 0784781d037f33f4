"""How fast a run serves, compared with another run and with no speculation at all."""

from __future__ import annotations

from driftscope.analysis.cost.advice import Advice
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.first_screen.claim import Answer, Claim, Topic
from driftscope.analysis.first_screen.confounders import confounders, doubt, to_match
from driftscope.analysis.number_words import milliseconds, percent
from driftscope.analysis.statistics.intervals.interval import Interval, ratio

_WITHOUT = "Does speculation serve faster than no speculation?"
_RECORD = "to know, record the same prompts without speculation and add --baseline RUN"


def speed(case: Case) -> Claim:
    """Return whether speculation pays: measured against a baseline without it, or else estimated
    from the step times."""
    plain, mine = case.plain, case.run.latency
    if plain is not None:
        faster = speed_ratio(plain.latency, mine)
        if faster is not None:
            return _measured(case, plain.latency, *faster)
    return _estimated(case)


def speed_against(case: Case) -> Claim | None:
    """Return whether a run serves faster than the run that it is compared with; None if it is not
    compared, or if the two do not serve the same target."""
    other = case.reference
    if other is None or other.manifest.target != case.run.manifest.target:
        return None
    ratio = speed_ratio(other.latency, case.run.latency)
    if ratio is None:
        return None
    value, interval = ratio
    others, faster = confounders(case), _answer(interval, 1.0)
    words = {
        Answer.YES: f"serves {_by(value)} faster than {other.label}",
        Answer.NO: f"serves {_by(1 / value)} slower than {other.label}",
        Answer.CANNOT_TELL: f"whether it serves faster than {other.label} cannot be told",
    }[faster]
    answer = Answer.CANNOT_TELL if others else faster
    return Claim(
        topic=Topic.SPEED,
        run=case.run.label,
        question="Does the run serve faster than the run that it is compared with?",
        answer=answer,
        sentence=f"{words} ({_range(interval, slower=faster is Answer.NO)}; "
        f"{milliseconds(case.run.latency.tpot_s)} per token, compared with "
        f"{milliseconds(other.latency.tpot_s)}){doubt(others)}",
        estimate=value,
        interval=interval,
        reference=other.label,
        record=_wanted(answer, others),
    )


def _wanted(answer: Answer, others: list[str]) -> str:
    if answer is not Answer.CANNOT_TELL:
        return ""
    return to_match(others) if others else "record more requests of both"


def speed_ratio(slow: Latency, fast: Latency) -> tuple[float, Interval] | None:
    """Return the time per token of the first over that of the second, with its 95% interval; None
    if either is not known."""
    return ratio(slow.tpot_s, slow.tpot_s_interval, fast.tpot_s, fast.tpot_s_interval)


def _measured(case: Case, plain: Latency, ratio: float, interval: Interval) -> Claim:
    answer = _answer(interval, 1.0)
    words = {
        Answer.YES: f"speculation pays: {ratio:.2f}× as fast as without",
        Answer.NO: f"speculation costs time: {ratio:.2f}× as fast as without",
        Answer.CANNOT_TELL: f"whether speculation pays cannot be told: {ratio:.2f}× as fast as "
        "without",
    }[answer]
    return Claim(
        topic=Topic.SPEED,
        run=case.run.label,
        question=_WITHOUT,
        answer=answer,
        sentence=f"{words} ({interval.low:.2f}× to {interval.high:.2f}×, measured: "
        f"{milliseconds(case.run.latency.tpot_s)} per token, {milliseconds(plain.tpot_s)} without)",
        estimate=ratio,
        interval=interval,
        record="" if answer is not Answer.CANNOT_TELL else "record more requests of both",
    )


def _estimated(case: Case) -> Claim:
    advice = case.advice
    ratio = None if advice is None else model_ratio(advice)
    if advice is not None and advice.none_is_faster:
        return _slower(case, advice)
    answer = Answer.CANNOT_TELL
    words = "the speedup is not known, because there is no run without speculation"
    if ratio is not None and ratio[1].low > 1:
        answer = Answer.YES
        words = (
            f"speculation pays: at least {ratio[1].low:.2f}× as fast as without (at most "
            f"{ratio[1].high:.2f}×, bounded by step times)"
        )
    return Claim(
        topic=Topic.SPEED,
        run=case.run.label,
        question=_WITHOUT,
        answer=answer,
        sentence=words,
        estimate=None if answer is Answer.CANNOT_TELL or ratio is None else ratio[0],
        interval=None if answer is Answer.CANNOT_TELL or ratio is None else ratio[1],
        record=_RECORD if answer is Answer.CANNOT_TELL else "",
    )


def _slower(case: Case, advice: Advice) -> Claim:
    """Return the claim about a drafter that costs more time than its tokens save."""
    drafter = advice.useless or advice.surely_slower
    gain = advice.least_gain if drafter else _least(advice)
    how = "from the drafter's measured time" if drafter else "from step times"
    return Claim(
        topic=Topic.SPEED,
        run=case.run.label,
        question=_WITHOUT,
        answer=Answer.NO,
        sentence=f"speculation costs time: without it serving is at least "
        f"{percent(gain)} faster ({how})",
        estimate=None if gain is None else 1 / (1 + gain),
    )


def _least(advice: Advice) -> float | None:
    interval = advice.gains[0].interval
    return None if interval is None else interval.low


def model_ratio(advice: Advice) -> tuple[float, Interval] | None:
    """Return the time per token without speculation over that of the run, with its bounds; None if
    it is not known, or if the bounds rest on more than measured times: steps of one K say nothing
    about what few tokens cost."""
    none = advice.gains[0]
    if advice.assumed or advice.doubt is not None or none.interval is None:
        return None
    interval = Interval.of(1 / (1 + none.interval.high), 1 / (1 + none.interval.low))
    return None if interval is None else (1 / (1 + none.value), interval)


def _answer(interval: Interval, bound: float) -> Answer:
    if interval.low > bound:
        return Answer.YES
    return Answer.NO if interval.high < bound else Answer.CANNOT_TELL


def _by(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f}%"


def _range(interval: Interval, *, slower: bool) -> str:
    """Return the interval of a speed as a change in percent."""
    low, high = interval.low, interval.high
    if slower:
        low, high = 1 / high, 1 / low
    return f"{100 * (low - 1):.0f}% to {100 * (high - 1):.0f}%"
