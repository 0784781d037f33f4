"""Conclusions from a trial: an overflow, a repair that helps, or that little is accepted.

Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from driftscope.analysis.number_words import between_percent
from driftscope.analysis.statistics.intervals import CONFIDENCE, Interval
from driftscope.inspect.checks.result import Certainty, CheckLevel, CheckResult, error, warning
from driftscope.inspect.drafter_classes import AUX_LAYERS
from driftscope.inspect.trial.result import (
    Gain,
    Overflow,
    Trial,
    TrialAcceptance,
    Tried,
)
from driftscope.metrics.confidence import CALIBRATED, RIGHT_BY_SKILL

LEAST_GAIN = 0.03
"""Smallest gain of a repair that counts, relative to the acceptance length as it is. A smaller one
is no mistake in the wiring: those that were published cost a fifth and more."""
ALIVE_ABOVE = 0.25
"""Rate at depth 1 below which a drafter counts as dead, and which a repaired one must exceed. It is
below half of the weakest published rate, 0.585; a trained head on random states reached 0.18 in the
shipped target, because frequent tokens are right by chance."""
CLEARLY_ALIVE = 0.5
"""Rate at depth 1 above which a drafter is alive; the weakest published rate is 0.585. The lower
end of the interval must be above it for an all-clear, and the upper end below it for a conclusion
that little is accepted."""
AS_GOOD = 0.01
"""Difference to the best repair, relative to its acceptance length, up to which a repair of the
config alone is preferred."""
LOST_BELOW = 0.9
"""Share of the expected length below which a drafter accepts less than expected: mistakes that were
published cost a fifth and more, and lengths differ by prompts."""
LESS_THAN_EXPECTED = "accepts_less_than_expected"
TURNS = "tokens_for_turns"
_MORE_WITH = "accepts_more_with."
MORE_WITH_TURNS = f"{_MORE_WITH}{TURNS}"
_EXPECTED = f"clearly more than {CLEARLY_ALIVE:.0%} at depth 1"
_CHANCE = 1 - CONFIDENCE
_RULE = "paired on the same prompts, corrected for the number of repairs tried"
_RULE_OF_POSITIONS = (
    "paired on all positions of the same prompts: the target's tokens are more probable beyond "
    "chance, corrected for the number of repairs tried, and more of them are accepted (95%)"
)


def verdict(trial: Trial, found: Sequence[CheckResult] = ()) -> Iterator[CheckResult]:
    """Yield what the trial shows beside `found`, the results of the files: numbers that overflow;
    the repair that helps most, or that less is accepted than expected; then the renderings of the
    prompts that help. A repair that is weak, or that helps less than another rendering, is no
    cause but a note. After Ctrl-C, a repair that was not tried may
    help."""
    best, written = best_repair(trial), [*rendering_results(trial)]
    if trial.overflow is not None:
        yield _overflows(trial.overflow)
    weak = best is not None and _is_weak(trial, best)
    less = best is not None and _helps_less(trial, best, found)
    if best is not None and not (weak or less):
        yield _repaired(trial, best)
    elif not (trial.stopped or less) and trial.overflow is None:
        yield from _unexplained(trial, found)
    yield from written
    if best is not None and (weak or less):
        yield replace(_repaired(trial, best), level=CheckLevel.NOTE, certainty=Certainty.POSSIBLE)


def _is_weak(trial: Trial, best: Tried) -> bool:
    """Whether depth 1 is still not clearly alive with a repair; one that revives a dead drafter is
    weak only if little is surely accepted with it."""
    alive = is_alive(best.acceptance)
    dead = trial.acceptance.marginal[0] < ALIVE_ABOVE
    return alive is False if dead else alive is not True


def _helps_less(trial: Trial, best: Tried, found: Sequence[CheckResult]) -> bool:
    """Whether another rendering of the prompts accepts more than the best repair does, which is no
    matter of easier answers: the target is no surer of them, or the files say that its template is
    not the drafter's."""
    other = any(result.id == "template_differs" for result in found)
    return any(
        (other or _accepts_more(trial, tried).level is CheckLevel.WARNING)
        and tried.acceptance.mean_length > best.acceptance.mean_length
        for tried in _helping(trial)
    )


def is_alive(acceptance: TrialAcceptance) -> bool | None:
    """Whether clearly more than CLEARLY_ALIVE is accepted at depth 1, or clearly less; None if the
    prompts are too few to tell."""
    spread = acceptance.marginal_interval[0]
    if spread is None:
        return None
    if spread.low > CLEARLY_ALIVE:
        return True
    return False if spread.high < CLEARLY_ALIVE else None


def is_expected(acceptance: TrialAcceptance, length: float) -> bool | None:
    """Whether what is accepted is surely above LOST_BELOW of the expected length, or surely below
    that; None if the prompts are too few to tell."""
    spread, least = acceptance.mean_length_interval, LOST_BELOW * length
    if spread is None:
        return None
    return True if spread.low >= least else False if spread.high < least else None


def reaches(trial: Trial) -> bool | None:
    """Whether the expected length is reached; None if that cannot be told, or none was given."""
    length = trial.expected_length
    return None if length is None else is_expected(trial.acceptance, length)


def _overflows(overflow: Overflow) -> CheckResult:
    place = f"at depth {overflow.depth}" if overflow.depth else "in the slots of the prompt"
    return error(
        id="states_overflow",
        title=f"states overflow {place}",
        expected=f"numbers that {overflow.dtype} can hold",
        rule="one number that is infinite or NaN makes every draft after it arbitrary; engines "
        "serve a drafter in its target's type",
        found=f"the output of {overflow.tensor} is infinite, NaN or too large",
        change=f"export {overflow.tensor} again, and look for rows that are far larger than others",
    )


def _unexplained(trial: Trial, found: Sequence[CheckResult]) -> Iterator[CheckResult]:
    """Yield why the drafter is not sound although no repair helps."""
    accepts, ids = trial.acceptance, {result.id for result in found}
    spread, alive = accepts.marginal_interval[0], is_alive(accepts)
    measured = (
        f"{accepts.marginal[0]:.0%}{between_percent(spread)} at depth 1, {accepts.rounds} rounds"
    )
    if alive is None or (trial.expected_length and reaches(trial) is None):
        yield warning(
            id="too_few_prompts",
            title=f"too few prompts to tell whether enough is accepted ({trial.prompts})",
            expected=_EXPECTED if alive is None else _expected(trial),
            rule="the 95% interval over prompts must lie on one side",
            found=measured if alive is None else _length_words(accepts),
            change=f"give about {4 * trial.prompts} prompts: a larger --limit, or --prompts with a "
            "set or file that has as many",
            certainty=Certainty.POSSIBLE,
        )
    elif alive and reaches(trial) is False:
        yield error(
            id=LESS_THAN_EXPECTED,
            title=f"it accepts {1 - accepts.mean_length / (trial.expected_length or 1):.0%} less "
            "than expected, and the cause was not found",
            expected=_expected(trial),
            rule=f"none of {len(trial.tried)} repairs explains it",
            found=_length_words(accepts),
            change="measure both lengths on the same prompts, with the same number of drafted "
            "tokens; else export the weights again: tensors may be another checkpoint's",
        )
    elif alive or ids & _ALREADY_EXPLAINED:
        return
    elif _knows_little(trial):
        yield warning(
            id="too_little_training",
            title="the drafter was trained too little: it accepts little, and knows it",
            expected=_EXPECTED,
            rule="a mistake in the wiring leaves a drafter surer than it is right; this one is not",
            found=f"{measured}{_confidence_words(trial)}",
            change="train it longer, or on more text like these prompts",
            certainty=Certainty.POSSIBLE,
        )
    elif "embedding_not_targets" in ids:
        yield error(
            id="another_target",
            title="little is accepted, and the embedding is not this target's",
            expected=_EXPECTED,
            rule=f"none of {len(trial.tried)} repairs explains it",
            found=measured,
            change="use a drafter that was trained on this target",
            certainty=Certainty.LIKELY,
        )
    else:
        dead = spread is not None and spread.high < ALIVE_ABOVE
        yield CheckResult(
            id="accepts_little",
            level=CheckLevel.ERROR if dead else CheckLevel.WARNING,
            title="little is accepted, and the cause was not found",
            expected=_EXPECTED,
            rule=f"none of {len(trial.tried)} repairs explains it",
            found=f"{measured}{_confidence_words(trial)}",
            change="one of: tensors of another checkpoint, or damaged by a conversion; a "
            "drafter of another target; prompts or a template unlike those of its training",
        )


_ALREADY_EXPLAINED = frozenset(("scale_lost",))
"""Results of the files that explain why little is accepted."""


def _expected(trial: Trial) -> str:
    return f"{trial.expected_length:.2f} tokens a round, at most {1 - LOST_BELOW:.0%} less"


def _length_words(acceptance: TrialAcceptance) -> str:
    return f"{acceptance.mean_length:.2f} {_interval_words(acceptance.mean_length_interval)}"


def _knows_little(trial: Trial) -> bool:
    """Whether confidence is low and right: the drafter knows how often it is right, and is right
    more often than by chance."""
    sure, right = trial.inside.confidence.sure[0], trial.inside.confidence.right[0]
    if sure is None or right is None:
        return False
    return abs(sure - right.value) <= CALIBRATED and right.value >= RIGHT_BY_SKILL


def _confidence_words(trial: Trial) -> str:
    sure = trial.inside.confidence.sure[0]
    return "" if sure is None else f"; it is {sure:.0%} sure of its first token"


def rendering_results(trial: Trial) -> Iterator[CheckResult]:
    """Yield renderings of the prompts with which more is accepted than as they are."""
    return (_accepts_more(trial, tried) for tried in _helping(trial))


def _helping(trial: Trial) -> Iterator[Tried]:
    least = LEAST_GAIN * trial.acceptance.mean_length
    for rendering in trial.renderings:
        if _beyond_chance(rendering.gain) and rendering.gain.difference > least:
            yield rendering


def _accepts_more(trial: Trial, tried: Tried) -> CheckResult:
    """Return that more is accepted with a rendering. If the target is surer of its answers too, the
    text may be easier instead: that is a note."""
    easier = tried.surer_interval is None or tried.surer_interval.high > 0
    then = tried.acceptance
    return CheckResult(
        id=f"{_MORE_WITH}{tried.change.id}",
        level=CheckLevel.NOTE if easier else CheckLevel.WARNING,
        title=f"with {tried.change.change} this drafter accepts {then.mean_length:.2f} tokens a "
        f"round instead of {trial.acceptance.mean_length:.2f}",
        expected=f"acceptance length {_length_words(then)}",
        rule="paired by prompt, corrected for the number of renderings tried",
        found="the target's answers may be easier to predict so, too"
        if easier
        else f"{tried.change.mistake}; the target is no surer of its answers so",
        change=tried.change.change,
        certainty=Certainty.POSSIBLE,
    )


def best_repair(trial: Trial) -> Tried | None:
    """Return the repair that helps; None if none does beyond chance."""
    least = LEAST_GAIN * trial.acceptance.mean_length
    helping = [
        tried
        for tried in trial.tried
        if tried.gain.difference > least
        and tried.acceptance.marginal[0] > ALIVE_ABOVE
        and (_beyond_chance(tried.gain) or _small_but_certain(tried))
    ]
    if not helping:
        return None
    best = max(helping, key=lambda tried: tried.acceptance.mean_length)
    good = (1 - AS_GOOD) * best.acceptance.mean_length
    simple = [e for e in helping if not e.change.weights and e.acceptance.mean_length >= good]
    best = max(simple, key=lambda tried: tried.acceptance.mean_length) if simple else best
    # Layers next to the right ones accept as much; with the right ones the drafter is surer.
    layers = [tried for tried in simple if only_layers(tried) and tried.all_positions]
    return max(layers, key=_surer) if only_layers(best) and layers else best


def only_layers(tried: Tried) -> bool:
    """Whether a repair changes the captured layers and nothing else."""
    return set(tried.change.fields) == {AUX_LAYERS}


def _surer(tried: Tried) -> float:
    return tried.all_positions.first.difference if tried.all_positions else 0.0


def _beyond_chance(gain: Gain) -> bool:
    return gain.p < _CHANCE and gain.interval is not None and gain.interval.low > 0


def _small_but_certain(tried: Tried) -> bool:
    """Whether the probability of the target's tokens gains beyond chance, after correction, and so
    does what is accepted over all positions.

    Probability alone could gain by confidence, which nothing is accepted for.
    """
    at = tried.all_positions
    return at is not None and _beyond_chance(at.probability) and _beyond_chance(at.accepted)


def _repaired(trial: Trial, best: Tried) -> CheckResult:
    now, then, rivals = trial.acceptance, best.acceptance, _rivals(trial, best)
    low = is_alive(then) is not True
    return error(
        id=f"repaired_by.{best.change.id}",
        title=f"with {best.change.change} this drafter accepts {then.mean_length:.2f} tokens a "
        f"round instead of {now.mean_length:.2f}",
        expected=f"acceptance length {_length_words(then)}",
        rule=_RULE if _beyond_chance(best.gain) else _RULE_OF_POSITIONS,
        found=f"{_length_words(now)}: "
        f"{'one of: ' if rivals else ''}{'; '.join([best.change.mistake, *rivals])}"
        f"{_as_good(trial, best)}"
        f"{_STILL_LOW if low else ''}",
        change=best.change.change,
        certainty=Certainty.POSSIBLE
        if low or rivals or _odds(best) < LIKELY_ODDS
        else Certainty.LIKELY,
    )


_STILL_LOW = (
    f"; with it depth 1 is still not clearly above {CLEARLY_ALIVE:.0%}: another cause, or one more"
)
LIKELY_ODDS = 20.0
"""Odds of a repair against chance, and against each other repair, above which it is likely."""


def odds(p: float) -> float:
    """Return the largest odds that a p-value gives against chance, 1 / (-e p ln p) (Sellke, Bayarri
    and Berger 2001, The American Statistician 55); 1 for p above 1 / e."""
    if p <= 0:
        return math.inf
    return 1 / (-math.e * p * math.log(p)) if p < 1 / math.e else 1.0


def _odds(tried: Tried) -> float:
    at = tried.all_positions
    return odds(min(tried.gain.p, at.probability.p if at else 1.0))


def _rivals(trial: Trial, best: Tried) -> list[str]:
    """Return the mistakes that explain as much as the best repair's: the odds between them are not
    above LIKELY_ODDS. Captured layers next to each other are told apart otherwise."""
    least = LEAST_GAIN * trial.acceptance.mean_length
    return [
        one.change.mistake
        for one in trial.tried
        if one.behind is not None
        and one.gain.difference > least
        and _beyond_chance(one.gain)
        and not (only_layers(one) and only_layers(best))
        and (one.behind.difference <= 0 or odds(one.behind.p) < LIKELY_ODDS)
    ]


def _as_good(trial: Trial, best: Tried) -> str:
    """Return the other captured layers that accept about as much as the best, in words."""
    if not only_layers(best):
        return ""
    least = (1 - LEAST_GAIN) * best.acceptance.mean_length
    others = [
        f"{list(one.change.fields[AUX_LAYERS])} ({one.acceptance.mean_length:.2f})"
        for one in trial.tried
        if only_layers(one)
        and one is not best
        and one.prompts == best.prompts
        and one.acceptance.mean_length >= least
    ]
    return f"; {', '.join(others)} accept about as much" if others else ""


def _interval_words(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval.low:.2f}, {interval.high:.2f}]"
