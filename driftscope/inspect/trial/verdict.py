"""Concludes from a trial: which repair helps, and what no repair explains."""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.analysis.statistics.intervals import CONFIDENCE, Interval
from driftscope.inspect.checks.check_result import Certainty, CheckResult, Level
from driftscope.inspect.trial.acceptance import Gain
from driftscope.inspect.trial.trial_result import Trial, Tried, TriedRendering

LEAST_GAIN = 0.03
"""Smallest gain of a repair that counts, relative to the acceptance length as it is. A smaller one
is no mistake in the wiring: those that were published cost a fifth and more."""
ALIVE_ABOVE = 0.25
"""Rate at depth 1 below which a drafter counts as dead, and which a repaired one must exceed. It is
below half of the weakest published rate, 0.585; a trained head on random states reached 0.18 in the
shipped target, because frequent tokens are right by chance."""
AS_GOOD = 0.01
"""Difference to the best repair, relative to its acceptance length, up to which a repair of the
config alone is preferred."""
_CHANCE = 1 - CONFIDENCE
_RULE = "paired on the same prompts, corrected for the number of repairs tried"
_RULE_OF_POSITIONS = (
    "paired on all positions of the same prompts: the target's tokens are more probable beyond "
    "chance, corrected for the number of repairs tried, and more of them are accepted (95%)"
)


def verdict(trial: Trial) -> Iterator[CheckResult]:
    """Yield the repair that helps most, or that none explains why next to nothing is accepted; then
    the renderings of the prompts that help. After Ctrl-C, a repair that was not tried may help."""
    best = best_repair(trial)
    if best is not None:
        yield _repaired(trial, best)
    elif _dead(trial) and not trial.stopped:
        yield CheckResult(
            id="nothing_accepted",
            level=Level.ERROR,
            title="little or nothing is accepted, and no single repair helps",
            expected=f"at depth 1 a rate above {ALIVE_ABOVE:.0%}",
            rule=f"{len(trial.tried)} repairs were tried",
            there=f"{trial.as_is.marginal[0]:.1%} of {trial.as_is.rounds} rounds",
            change="use a drafter that was trained on this target; its sizes fit another one too",
            certainty=Certainty.LIKELY,
        )
    yield from rendering_results(trial)


def rendering_results(trial: Trial) -> Iterator[CheckResult]:
    """Yield renderings of the prompts with which more is accepted than as they are.

    If the target is surer of its answers too, the text may be easier instead: that is a note.
    """
    for each in trial.renderings:
        least = LEAST_GAIN * trial.as_is.length
        if _beyond_chance(each.gain) and each.gain.difference > least:
            yield _accepts_more(trial, each)


def _accepts_more(trial: Trial, each: TriedRendering) -> CheckResult:
    easier = each.surer_interval is None or each.surer_interval.high > 0
    then = each.acceptance
    return CheckResult(
        id=f"accepts_more_with.{each.rendering.id}",
        level=Level.NOTE if easier else Level.WARNING,
        title=f"with {each.rendering.change} this drafter accepts {then.length:.2f} tokens a round "
        f"instead of {trial.as_is.length:.2f}",
        expected=f"acceptance length {then.length:.2f} {_words(then.length_interval)}",
        rule="paired by prompt, corrected for the number of renderings tried",
        there="the target's answers may be easier to predict so, too"
        if easier
        else f"{each.rendering.mistake}; the target is no surer of its answers so",
        change=each.rendering.change,
        certainty=Certainty.POSSIBLE,
    )


def best_repair(trial: Trial) -> Tried | None:
    """Return the repair that helps; None if none does beyond chance."""
    least = LEAST_GAIN * trial.as_is.length
    helping = [
        each
        for each in trial.tried
        if each.gain.difference > least
        and each.acceptance.marginal[0] > ALIVE_ABOVE
        and (_beyond_chance(each.gain) or _small_but_certain(each))
    ]
    if not helping:
        return None
    best = max(helping, key=lambda each: each.acceptance.length)
    good = (1 - AS_GOOD) * best.acceptance.length
    simple = [e for e in helping if not e.repair.weights and e.acceptance.length >= good]
    return max(simple, key=lambda each: each.acceptance.length) if simple else best


def _beyond_chance(gain: Gain) -> bool:
    return gain.p < _CHANCE and gain.interval is not None and gain.interval.low > 0


def _small_but_certain(each: Tried) -> bool:
    """Whether the probability of the target's tokens gains beyond chance, after correction, and so
    does what is accepted over all positions.

    Probability alone could gain by confidence, which nothing is accepted for.
    """
    at = each.all_positions
    return at is not None and _beyond_chance(at.probability) and _beyond_chance(at.accepted)


def _repaired(trial: Trial, best: Tried) -> CheckResult:
    now, then = trial.as_is, best.acceptance
    return CheckResult(
        id=f"repaired_by.{best.repair.id}",
        level=Level.ERROR,
        title=f"with {best.repair.change} this drafter accepts {then.length:.2f} tokens a round "
        f"instead of {now.length:.2f}",
        expected=f"acceptance length {then.length:.2f} {_words(then.length_interval)}",
        rule=_RULE if _beyond_chance(best.gain) else _RULE_OF_POSITIONS,
        there=f"{now.length:.2f} {_words(now.length_interval)}: {best.repair.mistake}",
        change=best.repair.change,
        certainty=Certainty.LIKELY,
    )


def _dead(trial: Trial) -> bool:
    rate, spread = trial.as_is.marginal[0], trial.as_is.marginal_interval[0]
    return (spread.high if spread else rate) < ALIVE_ABOVE


def _words(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval.low:.2f}, {interval.high:.2f}]"
