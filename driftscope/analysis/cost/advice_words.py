"""The advice on K in sentences, shared by terminal, report and first screen."""

from __future__ import annotations

from driftscope.analysis.cost.advice import Advice
from driftscope.analysis.cost.choice import WORTH_SAYING
from driftscope.analysis.cost.predict import Estimate
from driftscope.analysis.number_words import percent


def answer(advice: Advice) -> str:
    """Return one clause: the K to serve with its gain, the K to measure, or why neither is
    known."""
    if advice.doubt is not None:
        return f"it is not known which K is fastest: {advice.doubt}"
    if advice.useless:
        return "K = 0 is the fastest: next to nothing is accepted, whatever K is"
    if advice.worth_it:
        return faster(advice)
    measure = to_measure(advice)
    return kept(advice) if measure is None else measure


def faster(advice: Advice) -> str:
    """Return how much faster the K to serve is."""
    choice = advice.choice
    how = "was measured" if choice.measured else "is, whatever its steps cost,"
    gain = "faster" if choice.gain is None else f"{percent(choice.gain.value)} faster"
    return f"K = {choice.k} {how} {gain} than {advice.served.words}{ends(choice.gain)}"


def kept(advice: Advice) -> str:
    """Return that what ran should stay, and why."""
    choice, keep = advice.choice, f"keep {advice.served.words}"
    if choice.k is None or (not advice.served.mixed and choice.k == advice.ran_k):
        return f"{keep}{_because(advice)}"
    gain = choice.gain
    if gain is None or gain.interval is None:
        return keep
    how = f"K = {choice.k} {'was measured' if choice.measured else 'is guessed to be'}"
    if gain.surely_above(0.0):
        return f"{keep}: {how} {percent(gain.value)} faster, which is little"
    return (
        f"{keep}: {how} {signed(gain.value)} faster{ends(gain)}, which is no "
        "more than runs of one server may differ; run both again to tell"
    )


def _because(advice: Advice) -> str:
    regret = advice.choice.regret
    if regret is not None and regret <= WORTH_SAYING:
        return f": no other K is more than {percent(max(regret, 0.0))} faster"
    return ": its neighbours were measured and are slower" if advice.choice.k is not None else ""


def to_measure(advice: Advice) -> str | None:
    """Return which K to measure next and what it may gain at most; None if none needs to be."""
    following = advice.choice.next
    if following is None or advice.doubt is not None or advice.useless:
        return None
    k, most = following.k, following.most
    bound = "" if most is None else f"surely not more than {percent(max(most, 0.0))}"
    if following.guess is not None and most is not None:
        gain = f"K = {k} may be up to {percent(following.guess)} faster, {bound}"
    elif most is not None:
        gain = f"whether K = {k} is faster is not known, {bound}"
    else:
        gain = f"whether K = {k} is faster is not known"
    return f"{_ran(advice)}; {gain}; measure K = {k}"


def _ran(advice: Advice) -> str:
    return f"{advice.served.words}{'' if advice.served.mixed else ' ran'}"


def by_batch(advice: Advice) -> list[str]:
    """Return the measured K by range of batch sizes; [] if they are one K."""
    if len(advice.schedule) < 2:
        return []
    return [f"{k} for batches of {first} to {last}" for first, last, k in advice.schedule]


def ends(gain: Estimate | None) -> str:
    """Return the interval of a gain in brackets, with a space before; "" without one."""
    if gain is None or gain.interval is None:
        return ""
    return f" (95% interval {signed(gain.interval.low)} to {signed(gain.interval.high)})"


def signed(value: float) -> str:
    """Return a gain, which may be a loss, in percent."""
    return f"{'−' if value < 0 else ''}{percent(abs(value))}"
