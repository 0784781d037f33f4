"""Rules about a run compared with its reference, and about replays of the same prompts; and whether
acceptance is what it was."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.analysis.baseline_relation import change_of
from driftscope.analysis.comparability import Claim, K
from driftscope.analysis.compare import (
    LENGTH,
    MARGINAL,
    MATTERS,
    Comparison,
    Difference,
    accepts_less,
)
from driftscope.analysis.log_changes import (
    CLEAR_SHARE,
    CLEAR_STEP,
    FEW_RUNNING,
    FEWEST_LINES,
    MANY_LINES,
    NOTHING,
    REQUEST,
    LogChange,
)
from driftscope.analysis.number_words import (
    between,
    count,
    largest,
    listed,
    milliseconds,
    number,
    percent,
    runs_of_numbers,
)
from driftscope.analysis.replays import (
    BOUNDS,
    GOOD,
    NO_INTERVAL,
    SPAN,
    Cell,
    ReplayComparison,
)
from driftscope.analysis.statistics.intervals import FOR_POWER, Interval, wider
from driftscope.analysis.statistics.permutation import ALPHA, LEAST
from driftscope.analysis.statistics.ratio import FEW_REQUESTS, PairedRatio
from driftscope.findings.case import Case, Deciding, Need, ReplayCase, Threshold, entry, question
from driftscope.findings.causes import NOTHING_BELOW, loss_against, suspects_of
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
from driftscope.metrics.latency import mcnemar
from driftscope.vocabulary import Ended

ALIVE = 1.3
"""Length above which a replica accepts as much as a drafter that works may."""
ALIKE_WITHIN = Threshold(
    name="ALIKE_WITHIN",
    value=0.05,
    means="largest difference in marginal acceptance, by the simultaneous 95% "
    "interval, at which runs are called alike",
    source="driftscope: a fifth of a token per round at K = 4",
)
_NEED = Need[Case](
    words=f"a second run; {LEAST} requests or more in each",
    met=lambda case: case.comparison is not None and case.comparison.tested,
)
_ALPHA = Threshold(
    name="ALPHA",
    value=ALPHA,
    means="p-value of a depth, adjusted for all depths: the largest |t| is compared with its "
    "distribution when the two sides of each pair are exchanged at random (unpaired: when requests "
    "are assigned to the runs at random)",
    source="convention; `make calibration` measures the resulting false-positive rate",
)
NO_WORSE = 0.05
"""Equivalence margin: an acceptance length that is surely less than this share below the other
run's is no worse. It is the margin that docs/check.md proposes for `no_worse`."""
MOST_MORE = 100.0
"""Largest factor by which more requests are proposed: beyond it no figure is given."""


@entry(
    title="Acceptance differs from some depth on",
    topic=Topic.ACCEPTANCE,
    thresholds=(_ALPHA,),
    need=_NEED,
)
def runs_part(case: Case) -> Finding | None:
    """Two runs accept differently from the named depth on. The test is that of `driftscope
    compare`: it covers all depths jointly, and pairs requests if both runs answered the same
    prompts. A run that accepts nothing is compared like any other."""
    comparison = case.comparison
    if comparison is None or comparison.parts_from is None:
        return None
    by_depth, depth = comparison.at(MARGINAL), comparison.parts_from or 1
    here, last = by_depth[depth - 1], by_depth[-1]
    better = comparison.first if accepts_less(comparison) else comparison.second
    assumed = ["that the prompts are the same is assumed"] if comparison.assumed else []
    below = 0.0 if here.difference < 0 else None
    above = 0.0 if here.difference > 0 else None
    trust, because = judged(
        min(comparison.requests), here.interval, above=above, below=below, assumed=assumed
    )
    comparable = comparison.comparability
    sure = comparable.decides(Claim.ACCEPTANCE)
    if not sure:
        trust, because = Trust.LOW, "something else that differs can explain it"
    if here.interval is None:
        points = ""
    else:
        low, high = 100 * here.interval.low, 100 * here.interval.high
        points = (
            f", a difference of {100 * here.difference:+.1f} points (95% interval {low:+.1f} to "
            f"{high:+.1f})"
        )
    return Finding(
        severity=Severity.MEDIUM if sure else Severity.INFO,
        runs=(comparison.first, comparison.second),
        reference=comparison.first,
        title=f"Acceptance differs from depth {depth} on",
        statement=f"it differs at {_depths(comparison)}: at depth {depth} it is "
        f"{_both_rates(comparison, here)}{points}"
        + (
            f"; at depth {last.depth} it is {_both_rates(comparison, last)}"
            if last is not here
            else ""
        )
        + comparable.doubt(Claim.ACCEPTANCE),
        evidence={
            "depth": depth,
            "depths_apart": len(comparison.apart_at),
            "marginal_first_run": here.first,
            "marginal_second_run": here.second,
            "last_depth": last.depth,
            "last_first_run": last.first,
            "last_second_run": last.second,
            "length_difference": comparison.at(LENGTH)[0].difference,
            **figure("difference", here.difference, here.interval),
            "p": here.p_adjusted,
            "threshold": ALPHA,
        },
        confidence=trust,
        because=because,
        advice=f"{better} accepts more over all depths. {_same_prompts(comparison)}"
        if sure
        else comparable.settle(Claim.ACCEPTANCE),
        **suspects_of(case, loss_against(comparison, case.run)),
    )


@entry(
    title="Acceptance differs at no depth",
    topic=Topic.ACCEPTANCE,
    thresholds=(ALIKE_WITHIN,),
    need=_NEED,
)
def runs_alike(case: Case) -> Finding | None:
    """No depth differs by that test. The finding states the largest difference that is still
    compatible with the runs, and calls them alike only if that is small."""
    comparison = case.comparison
    if comparison is None or not comparison.tested or comparison.parts_from is not None:
        return None
    bound = comparison.bound
    if bound is None:
        return None
    near = bound <= ALIKE_WITHIN.value
    more = round(min(comparison.requests) * (bound / ALIKE_WITHIN.value) ** 2)
    return Finding(
        severity=Severity.INFO,
        runs=(comparison.first, comparison.second),
        reference=comparison.first,
        title="The runs accept alike" if near else "Acceptance differs at no depth",
        statement=f"{largest(bound)}, at any of "
        f"{count(len(comparison.at(MARGINAL)), 'depth')} (95 %, all depths together)",
        evidence={
            "depths": len(comparison.at(MARGINAL)),
            "bound": bound,
            "threshold": ALIKE_WITHIN.value,
        },
        confidence=Trust.HIGH if near else Trust.LOW,
        because=f"{count(min(comparison.requests), 'request')} each"
        + ("" if near else ", too few to exclude a difference that matters"),
        advice="Nothing to do."
        if near
        else f"If you expected a difference, record about {more:,} requests of the same prompts in "
        f"each run: a difference above {100 * ALIKE_WITHIN.value:.0f} points would then be "
        "detected.",
    )


def _same_prompts(comparison: Comparison) -> str:
    how = "are assumed to have answered" if comparison.assumed else "answered"
    pairs = count(comparison.pairs, "pair")
    return f"Both {how} the same prompts: {pairs}, by {comparison.pairing}."


def _depths(comparison: Comparison) -> str:
    """Return the depths that differ: "depth 3", "depths 1 to 4 and 6"."""
    noun = "depth" if len(comparison.apart_at) == 1 else "depths"
    return f"{noun} {runs_of_numbers(comparison.apart_at)}"


def _both_rates(comparison: Comparison, at: Difference) -> str:
    return (
        f"{percent(at.first)} ({comparison.first}) and {percent(at.second)} ({comparison.second})"
    )


@question("Is the acceptance length at most 5% below the other run's?", Topic.ACCEPTANCE)
def acceptance_kept(case: Case) -> Finding | None:
    """Return whether acceptance is no worse than in the run that it is compared with; without one,
    the acceptance length as a figure."""
    if case.is_answered(Topic.ACCEPTANCE):
        return None
    change = None if case.comparison is None else change_of(case.comparison.at(LENGTH)[0])
    interval = None if change is None else Interval.between(change.low, change.high)
    if case.comparison is None or change is None or interval is None:
        spread, length = case.run.acceptance.mean_length_interval, case.run.acceptance.mean_length
        around = "no 95% interval" if spread is None else f"{spread.low:.2f} to {spread.high:.2f}"
        tpot_s, within, time = case.run.latency.tpot_s, case.run.latency.tpot_s_interval, ""
        if tpot_s is not None and within is not None:
            ends = f"{milliseconds(within.low)} to {milliseconds(within.high)}"
            time = f"an output token takes {milliseconds(tpot_s)} ({ends}), and "
        return Finding(
            title="How many tokens does a round yield?",
            headline=Headline.LENGTH,
            statement=f"{time}a round yields {number(length)} tokens "
            f"({around}) of at most {case.run.k + 1}",
            estimate=length,
            interval=spread,
        )
    return _compared(case, case.comparison, change.value, interval)


def _compared(case: Case, comparison: Comparison, change: float, interval: Interval) -> Finding:
    comparable = case.comparability
    change_is = Answer.NO if interval.high < -NO_WORSE else Answer.CANNOT_TELL
    if interval.low > -NO_WORSE:
        change_is = Answer.YES
    sure = comparable.decides(Claim.ACCEPTANCE)
    answer = change_is if sure else Answer.CANNOT_TELL
    other, at = comparison.first, comparison.at(LENGTH)[0]
    better = interval.low > 0 and change >= MATTERS
    verb = {
        Answer.YES: f"acceptance is {'better' if better else 'no worse'} than",
        Answer.NO: "acceptance is worse than",
        Answer.CANNOT_TELL: "it cannot be told whether acceptance is worse than",
    }[answer]
    places = {Answer.NO: Headline.WORSE, Answer.YES: Headline.NO_WORSE}
    record = comparable.settle(Claim.ACCEPTANCE) or _more_requests(comparison, change, interval)
    if not any(found.name == K for found in comparison.comparability.differences):
        depths_of = ""
    else:
        depths_of = f" up to depth {len(comparison.at(MARGINAL))}"
    return Finding(
        answer=answer,
        headline=places.get(answer, Headline.LENGTH),
        statement=f"{verb} {other}'s: {number(at.second)} tokens per round"
        f"{depths_of}, compared with {number(at.first)} ({100 * change:+.0f}%, "
        f"{100 * interval.low:+.0f}% to "
        f"{100 * interval.high:+.0f}%){comparable.doubt(Claim.ACCEPTANCE)}",
        estimate=change,
        interval=interval,
        reference=other,
        advice=record if answer is Answer.CANNOT_TELL else "",
    )


def _more_requests(comparison: Comparison, change: float, interval: Interval) -> str:
    half, away = (interval.high - interval.low) / 2, abs(change + NO_WORSE)
    factor = math.inf if not away else (half / away) ** 2 * FOR_POWER
    if factor > MOST_MORE:
        return "Record more requests of the same prompts."
    wanted = math.ceil(min(comparison.requests) * max(factor, 1.0) / 10) * 10
    return f"Record about {wanted:,} requests of the same prompts in each run."


OUTCOME_P = Threshold(
    name="OUTCOME_P",
    value=0.01,
    means="p-value of McNemar's exact test below which an outcome counts as different",
    source="driftscope: five outcomes are tested in every condition and load",
)
OUTCOME_WORDS = {
    "json_ok": "JSON as asked for",
    "tool_ok": "the right tool call",
    "early_stop": "an end that is too early",
    "garbled": "garbled text",
    "looping": "a repetition loop",
}


FEWEST_REQUESTS = 10
"""Number of independent requests (of prompts or sessions, if they repeat) below which nothing is
concluded: the interval of an acceptance length then rests on fewer than ten independent values."""
_ROWS = "To conclude more, replay prompts with `driftscope replay`, or record requests one by one."
_PAIRED: Need[ReplayCase] = Need(
    words="a second replay of the same prompts, and answers that are checked",
    met=lambda case: any(pair.outcomes for pair in case.pairs),
)


@entry(
    about=ReplayCase,
    title="A condition lowers the acceptance length",
    topic=Topic.WHERE,
    need=Need(
        words="a replay of several conditions whose server reports its rounds",
        met=lambda case: any(c.length_ratio and not c.totals for c in case.run.cells),
    ),
)
def conditions_cost(case: ReplayCase) -> Finding | None:
    """The same prompts yield fewer tokens per round in this condition than in the replay's
    baseline: the 95% interval of the ratio, over prompts, lies below 1."""
    run = case.run
    cells = [cell for cell in run.cells if not cell.totals]
    lower = [(cell, r) for cell in cells if (r := cell.length_ratio) and r.differs]
    lower = sorted(((c, r) for c, r in lower if r.value < 1), key=lambda pair: pair[1].value)
    if not lower:
        return None
    cell, ratio = lower[0]
    baseline = str(run.manifest.workload.get("baseline", "the baseline"))
    others = [f'"{c.condition}"' for c, _ in lower[1:] if c.load == cell.load]
    more = f"; lower as well: {listed(others)}" if others else ""
    return Finding(
        severity=Severity.MEDIUM,
        statement=f'"{cell.condition}" gives {number(cell.mean_length)} tokens per round, '
        f'{number(ratio.value)}× what "{baseline}" gives on the same {ratio.pairs} prompts'
        f"{between(ratio.interval)}{more}",
        evidence={
            **figure("ratio", ratio.value, ratio.interval),
            "pairs": ratio.pairs,
            "conditions": len(lower),
        },
        confidence=Trust.HIGH if ratio.pairs >= FEW_REQUESTS else Trust.LOW,
        because=f"the 95% interval over {count(ratio.pairs, 'pair')} of prompts does not contain 1",
        advice="Check whether production sends requests like these. If it does, fix what makes "
        "them differ (the template, the system prompt), or train or choose the drafter with such "
        "prompts.",
    )


@entry(
    about=ReplayCase,
    title="The same prompts yield another acceptance length",
    topic=Topic.ACCEPTANCE,
    thresholds=(
        Threshold(
            name="MATTERS",
            value=MATTERS,
            means="relative difference of the acceptance lengths below which it is not named",
            source="driftscope: nobody sees less; the same as for runs",
        ),
    ),
    need=Need(
        words="a second replay of the same prompts, both of servers that report their rounds",
        met=lambda case: any(pair.length_ratio is not None for pair in case.pairs),
    ),
)
def replays_differ(case: ReplayCase) -> Finding | None:
    """Two replays asked two drafters, or two servers, the same prompts, and the interval of the
    ratio of their acceptance lengths, over prompts, excludes 1; with several conditions, at a level
    that holds for all of them together."""
    if case.reference is None or not case.comparability.decides(Claim.ACCEPTANCE):
        return None
    known = [(ratio, pair) for pair in case.pairs if (ratio := pair.length_ratio)]
    ratios = [(ratio, pair) for ratio, pair in known if _surely_differs(ratio, len(known))]
    if not ratios:
        return None
    ratio, pair = min(ratios, key=lambda found: found[0].value)
    less = ratio.value < 1.0
    label, pairs = case.run.label, count(ratio.pairs, pair.basis)
    adjusted_for = "labels, adapters, texts and contexts" if pair.basis == SPAN else pairs
    where = f'on the same {adjusted_for}, in "{pair.condition}"'
    return Finding(
        severity=Severity.MEDIUM if less else Severity.INFO,
        runs=(case.reference.label, label),
        statement=f"{label} yields {number(ratio.value)}× the tokens per round of "
        f"{case.reference.label}{between(ratio.interval)} {where}",
        evidence={**figure("ratio", ratio.value, ratio.interval), "pairs": ratio.pairs},
        confidence=Trust.HIGH if ratio.pairs >= FEW_REQUESTS else Trust.LOW,
        because=f"the interval over {pairs} does not contain 1, also at the level of all "
        "conditions together",
        advice=f"Serve as {case.reference.label if less else label} was served. To see why, record "
        "both with `driftscope serve` and compare those runs.",
    )


def _surely_differs(ratio: PairedRatio, conditions: int) -> bool:
    """Whether the interval of a ratio excludes 1 at a level for all conditions (Bonferroni), by a
    difference that matters. Intervals are symmetric for the logarithm."""
    ends = ratio.interval
    if ends is None or ends.low <= 0.0 or abs(ratio.value - 1.0) < MATTERS:
        return False
    return abs(math.log(ratio.value)) > wider(conditions) * math.log(ends.high / ends.low) / 2.0


@entry(
    about=ReplayCase,
    title="Not every request was answered",
    topic=Topic.GROUND,
    need=Need(words="rows of requests", met=lambda case: case.run.has_rows),
)
def not_answered(case: ReplayCase) -> Finding | None:
    """Requests of a replay were refused, broke off, took too long or were never sent."""
    run = case.run
    lost = {how: n for how, n in run.ended.items() if how != Ended.ANSWERED}
    if not lost:
        return None
    unanswered = listed([f"{n:,} {how}" for how, n in lost.items()])
    return Finding(
        severity=Severity.MEDIUM,
        statement=f"of {count(sum(run.ended.values()), 'request')}, {unanswered}",
        evidence=dict(lost),
        confidence=Trust.HIGH,
        because="counted request by request",
        advice="Every request is in the run's `client` records, with its error. The figures cover "
        "answered requests only.",
    )


@entry(
    about=ReplayCase,
    title="Answers to the same prompts turn out differently",
    topic=Topic.ACCEPTANCE,
    thresholds=(OUTCOME_P,),
    need=_PAIRED,
)
def outcomes_change(case: ReplayCase) -> Finding | None:
    """Prompt by prompt, answers are right, complete or free of loops in one replay but not in the
    other, more often than chance explains."""
    changed = sorted(
        _changed(case), key=lambda outcome: (outcome[0], outcome[1], outcome[2].condition)
    )
    if not changed:
        return None
    p, name, pair = changed[0]
    a, b, n = pair.outcomes[name]
    more = f"; {count(len(changed) - 1, 'more')} like it" if len(changed) > 1 else ""
    bad = "without" if name in GOOD else "with"
    return Finding(
        severity=Severity.HIGH,
        runs=(pair.first, pair.other),
        statement=f"{bad} {OUTCOME_WORDS[name]}, in {pair.condition} at load {pair.load}: "
        f"{a} of {n} pairs only in {pair.first}, {b} only in {pair.other} (p = {p:.2g}){more}",
        evidence={
            "p": p,
            "only_first": a,
            "only_other": b,
            "pairs": n,
            "changed": len(changed),
            "threshold": OUTCOME_P.value,
        },
        confidence=Trust.HIGH,
        because=f"an exact test on {count(n, 'pair')} of the same prompts",
        advice="Speculation must not change what users get. Compare a few of these answers; look "
        "for a quantised target, a wrong template, or an engine bug with this drafter.",
    )


@entry(
    about=ReplayCase,
    title="Answers turn out alike with and without speculation",
    topic=Topic.ACCEPTANCE,
    thresholds=(OUTCOME_P,),
    need=_PAIRED,
)
def outcomes_hold(case: ReplayCase) -> Finding | None:
    """One of two replays speculates and the other does not, and no outcome of the same prompts
    differs by more than chance explains."""
    first, other = case.reference, case.run
    checked = sum(n for pair in case.pairs for *_, n in pair.outcomes.values())
    if first is None or first.speculates == other.speculates or not checked or _changed(case):
        return None
    same, of = (sum(pair.same_text[i] for pair in case.pairs) for i in (0, 1))
    same_texts = f"; {percent(same / of)} of the greedy answers have the same text" if of else ""
    return Finding(
        severity=Severity.GOOD,
        runs=(first.label, other.label),
        statement=f"in {count(checked, 'check')} of answers to the same prompts, no outcome "
        f"differs by more than chance explains{same_texts}",
        evidence={"checks": checked, "same_text": same, "greedy_pairs": of},
        because=f"exact tests on pairs of the same prompts, {count(checked, 'check')} in all",
        advice="Nothing to do.",
    )


def _changed(case: ReplayCase) -> list[tuple[float, str, ReplayComparison]]:
    """Return the outcomes that differ, each with its p-value, name and comparison."""
    tested = [
        (mcnemar(a, b), name, pair)
        for pair in case.pairs
        for name, (a, b, _) in pair.outcomes.items()
    ]
    return [outcome for outcome in tested if outcome[0] < OUTCOME_P.value]


def _least(cells: Sequence[Cell]) -> Cell | None:
    """Return the part that accepts least; None if no length is known."""
    known = [cell for cell in cells if cell.mean_length is not None]
    return min(known, key=lambda cell: cell.mean_length or 1.0, default=None)


def _first_accepted(case: ReplayCase) -> Deciding | None:
    """Return the share of rounds that accept a first token, in the part that accepts least."""
    cell = _least(case.run.cells)
    if cell is None:
        return None
    share, spread = (cell.mean_length or 1.0) - 1.0, cell.mean_length_interval
    found = spread and Interval.between(spread.low - 1.0, spread.high - 1.0)
    if (sums := cell.totals) is not None and sums.mean_length_interval is None:
        share = next(iter(sums.marginal or ()), None) or min(share, 1.0)
        found = sums.bounds(share)
    return Deciding(value=share, interval=found, bound=NOTHING_BELOW.value)


@entry(
    about=ReplayCase,
    title="Next to nothing is accepted in a replay, or in another tool's file",
    topic=Topic.ACCEPTANCE,
    thresholds=(NOTHING_BELOW,),
    need=Need(
        words="counts of rounds, or rows of requests",
        met=lambda case: (figure := _first_accepted(case)) is not None and not figure.is_open,
    ),
    deciding=_first_accepted,
    leads=True,
)
def replay_accepts_nothing(case: ReplayCase) -> Finding | None:
    """Even the drafter's first draft token is almost always rejected. Sums of another tool's file
    decide it if their worst case does."""
    figures = _first_accepted(case)
    if figures is None or figures.interval is None or figures.interval.high >= figures.bound:
        return None
    cell = _least(case.run.cells)
    how = BOUNDS if cell and cell.totals else "rows of requests"
    if cell and cell.totals and cell.totals.agreed_dead:
        how = "each line of the log"
    most = percent(figures.interval.high)
    # Another replica of the same drafter that accepts shows that the files are in order.
    alive = [c for c in case.run.cells if c is not cell and (c.mean_length or 0.0) > ALIVE]
    where = f" in {cell.condition}" if cell and len(case.run.cells) > 1 else ""
    turn_off = (
        "Turn speculation off now. A drafter of which nothing is accepted is misconfigured more "
        "often than bad: `driftscope inspect` examines its files, and `driftscope doctor` the "
        "server's options."
    )
    compare = (
        f"{alive[0].condition} accepts: compare version, options and files of both, and "
        "restart the one that accepts nothing."
        if alive
        else ""
    )
    return Finding(
        severity=Severity.HIGH,
        answer=Answer.NO,
        headline=Headline.NOTHING_ACCEPTED,
        statement=f"nothing is accepted{where}: speculation costs time and gives nothing "
        f"({100 * figures.value:.2g}% of rounds accept a token, at most {most})",
        evidence={
            **figure("first_accepted", figures.value, figures.interval),
            "threshold": NOTHING_BELOW.value,
        },
        confidence=Trust.HIGH,
        because=f"at most {most} of the rounds accept a token, by {how}",
        advice=compare or turn_off,
    )


@entry(
    about=ReplayCase,
    title="Acceptance falls within a server's log, or some requests accept nothing",
    topic=Topic.WHERE,
    thresholds=(
        Threshold(
            name="CLEAR_SHARE",
            value=CLEAR_SHARE,
            means=f"share of the length that is lost between quarters of {MANY_LINES} lines or "
            "more",
            source="driftscope: at this loss the best K begins to change",
        ),
        Threshold(
            name="CLEAR_STEP",
            value=CLEAR_STEP,
            means="share of the length that is lost at a step of 6 standard errors, with fewer "
            "lines",
            source="driftscope: steady logs whose neighbouring lines correlate by 0.7 pass it in "
            "0.3% to 5%",
        ),
    ),
    need=Need(
        words=f"a log with {FEWEST_LINES} lines of acceptance",
        met=lambda case: (
            bool(_falls(case))
            or any(
                cell.totals is not None and (cell.totals.log_lines or 0) >= FEWEST_LINES
                for cell in case.run.cells
            )
        ),
    ),
)
def falls_in_log(case: ReplayCase) -> Finding | None:
    """Lines of the log, or intervals of a series, accept clearly fewer tokens later, with more
    context, with more requests at once, or some accept nothing, as at least a tenth of the requests
    of a file or replay may. Each counts as one observation. It is certain of nothing where few
    requests run at once, since another text changes acceptance, too."""
    falls = _falls(case)
    if not falls:
        return None
    cell, worst = falls[0]
    where = "" if len(case.run.cells) == 1 else f"in {cell.condition} "
    few = worst.running is not None and worst.running < FEW_RUNNING and worst.by != NOTHING
    few |= worst.unit == REQUEST and worst.lines < CLEAR_SHARE * worst.of
    others = [change.statement for of, change in falls[1:] if of is cell]
    statement = "; ".join([f"{where}{worst.statement}", *others])
    high = worst.lost >= CLEAR_STEP and worst.unit != REQUEST
    severity = Severity.HIGH if high else Severity.MEDIUM
    return Finding(
        severity=Severity.INFO if few else severity,
        answer=Answer.CANNOT_TELL if few or worst.unit == REQUEST else Answer.NO,
        headline=Headline.WORSE,
        statement=statement,
        evidence={
            "length_before": worst.before,
            "length_after": worst.after,
            "lines": worst.lines,
            "lines_of": worst.of,
        },
        confidence=Trust.LOW if few else Trust.MEDIUM,
        because=f"{count(round(worst.running or 1), 'request')} at once, and another text changes "
        "acceptance, too"
        if few
        else f"{count(worst.of, worst.unit)}, each one observation",
        advice="Look at what changed at that time: a restart, a longest context, a queue, an "
        "update. A server that is recorded with `driftscope serve` through such an episode tells "
        "context, load and kinds of text apart.",
    )


def _falls(case: ReplayCase) -> list[tuple[Cell, LogChange]]:
    """Return the falls within logs, the largest first."""
    found = [
        (cell, change)
        for cell in case.run.cells
        for change in case.run.changes_in(cell)
        if change.falls
    ]
    return sorted(found, key=lambda pair: -pair[1].lost)


@question("What does the replay show?", Topic.ACCEPTANCE, ReplayCase)
def replayed(case: ReplayCase) -> Finding:
    """Return how many requests were answered, and the figures of the first condition."""
    run = case.run
    finding = falls_in_log(case) or replay_accepts_nothing(case)
    vague = (
        all(
            (spread := cell.mean_length_interval) is None
            or spread.high - spread.low > 0.5 * (cell.mean_length or 0.0)
            for cell in run.cells
        )
        and finding is None
    )
    few = run.ended.get(Ended.ANSWERED, 0) < FEWEST_REQUESTS if run.has_rows else vague
    more = f"Send {FEW_REQUESTS} or more requests of different prompts." if run.has_rows else _ROWS
    if run.rollups is not None:
        more = "Export more minutes (`driftscope export`): 25 at the least."
    if run.planned is None:
        cell = run.cells[0]
        rounds = "" if cell.rounds is None else f" of {count(cell.rounds, 'round')}"
        named = _cell_figures(cell)
        if cell.mean_length is not None and (bounds := without_interval(cell)):
            named[0] += f" ({bounds})"
        parts = ", ".join(named) or "no acceptance length and no time per token"
        sent = f"holds sums{rounds}: {parts} in {cell.condition}"
    else:
        answered = (
            f"answered {run.ended.get(Ended.ANSWERED, 0):,} of {count(run.planned, 'request')}"
        )
        figures = ", ".join(_cell_figures(run.cells[0])) if run.cells else ""
        sent = f'{answered}: {figures} in "{run.cells[0].condition}"' if figures else answered
    return Finding(
        answer=Answer.NO if few else None,
        headline=Headline.TOO_LITTLE_DATA if few else Headline.LENGTH,
        statement=sent,
        advice=more if few else "",
    )


def without_interval(cell: Cell) -> str:
    """Return what the interval of sums is; "" for a file that lists requests without rounds."""
    if cell.totals is not None and cell.totals.mean_length_interval is not None:
        return ""
    if (spread := cell.mean_length_interval) is not None:
        agreed = cell.totals is not None and cell.totals.agreed_dead
        how = "bounds on which all lines of the log agree" if agreed else BOUNDS
        return f"{spread.low:.2f} to {spread.high:.2f}, {how}"
    return NO_INTERVAL


def _cell_figures(cell: Cell) -> list[str]:
    length = [] if cell.mean_length is None else [f"{number(cell.mean_length)} tokens per round"]
    time = [] if cell.tpot_s is None else [f"{milliseconds(cell.tpot_s)} per token"]
    return length + time
