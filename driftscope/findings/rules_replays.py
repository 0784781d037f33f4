"""Rules about replays: conditions that cost acceptance, outcomes that change, answers that
failed."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import between, count, listed, milliseconds, number, percent
from driftscope.analysis.replays import GOOD, NO_INTERVAL, Cell, ReplayComparison, ReplaySummary
from driftscope.analysis.statistics.ratio import FEW_REQUESTS
from driftscope.findings.case import Entry, Need, ReplayCase, Threshold
from driftscope.findings.finding import Finding, Severity, Trust, ends
from driftscope.metrics.latency import mcnemar
from driftscope.vocabulary import Ended

OUTCOME_P = 0.01
"""p-value below which an outcome counts as different. It is a hundredth because five outcomes are
tested in every condition and load. This is driftscope's own bound."""
OUTCOME_WORDS = {
    "json_ok": "JSON as asked for",
    "tool_ok": "the right tool call",
    "early_stop": "an end that is too early",
    "garbled": "garbled text",
    "looping": "a repetition loop",
}


def conditions_cost(case: ReplayCase) -> Finding | None:
    """Find conditions in which a round yields fewer tokens than in the baseline, prompt by
    prompt."""
    run = case.run
    lower = [(cell, r) for cell in run.cells if (r := cell.length_ratio) and r.differs]
    lower = sorted(((c, r) for c, r in lower if r.value < 1), key=lambda each: each[1].value)
    if not lower:
        return None
    cell, ratio = lower[0]
    baseline = str(run.manifest.workload.get("baseline", "the baseline"))
    others = [c.condition for c, _ in lower[1:] if c.load == cell.load]
    more = f"; so do {listed(others)}" if others else ""
    return Finding(
        id="conditions_cost",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="A condition lowers the acceptance length",
        statement=f"{cell.condition} gives {number(cell.mean_length)} tokens per round, "
        f"{number(ratio.value)}× what {baseline} gives on the same {ratio.pairs} prompts"
        f"{between(ratio.interval)}{more}",
        evidence={
            "ratio": ratio.value,
            **ends("ratio", ratio.interval),
            "pairs": ratio.pairs,
            "conditions": len(lower),
        },
        confidence=Trust.HIGH if ratio.pairs >= FEW_REQUESTS else Trust.LOW,
        because=f"the 95% interval over {count(ratio.pairs, 'pair')} of prompts does not contain 1",
        advice="Check whether production sends requests like these. If it does, fix what makes "
        "them differ (the template, the system prompt), or train or choose the drafter with such "
        "prompts.",
    )


def not_answered(case: ReplayCase) -> Finding | None:
    """Find requests without a complete answer."""
    run = case.run
    lost = {how: n for how, n in run.ended.items() if how != Ended.ANSWERED}
    if not lost:
        return None
    unanswered = listed([f"{n:,} {how}" for how, n in lost.items()])
    return Finding(
        id="not_answered",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="Not every request was answered",
        statement=f"of {count(sum(run.ended.values()), 'request')}, {unanswered}",
        evidence=dict(lost),
        confidence=Trust.HIGH,
        because="counted request by request",
        advice="Every request is in the run's `client` records, with its error. The figures cover "
        "answered requests only.",
    )


def outcomes_change(case: ReplayCase) -> Finding | None:
    """Find answers that are right in one run but not in the other, more often than by chance."""
    changed = sorted(_changed(case), key=lambda each: (each[0], each[1], each[2].condition))
    if not changed:
        return None
    p, name, pair = changed[0]
    a, b, n = pair.outcomes[name]
    more = f"; {count(len(changed) - 1, 'more')} like it" if len(changed) > 1 else ""
    bad = "without" if name in GOOD else "with"
    return Finding(
        id="outcomes_change",
        severity=Severity.HIGH,
        runs=(pair.first, pair.other),
        title="Answers to the same prompts turn out differently",
        statement=f"{bad} {OUTCOME_WORDS[name]}, in {pair.condition} at load {pair.load}: "
        f"{a} of {n} pairs only in {pair.first}, {b} only in {pair.other} (p = {p:.2g}){more}",
        evidence={
            "p": p,
            "only_first": a,
            "only_other": b,
            "pairs": n,
            "changed": len(changed),
            "threshold": OUTCOME_P,
        },
        confidence=Trust.HIGH,
        because=f"an exact test on {count(n, 'pair')} of the same prompts",
        advice="Speculation must not change what users get. Compare a few of these answers; look "
        "for a quantised target, a wrong template, or an engine bug with this drafter.",
    )


def outcomes_hold(case: ReplayCase) -> Finding | None:
    """Find that no outcome changes between a run that speculates and one that does not."""
    first, other = case.reference, case.run
    checked = sum(n for pair in case.pairs for *_, n in pair.outcomes.values())
    if first is None or first.speculates == other.speculates or not checked or _changed(case):
        return None
    same, of = (sum(pair.same_text[i] for pair in case.pairs) for i in (0, 1))
    alike = f"; {percent(same / of)} of the greedy answers have the same text" if of else ""
    return Finding(
        id="outcomes_hold",
        severity=Severity.GOOD,
        runs=(first.label, other.label),
        title="Answers turn out alike with and without speculation",
        statement=f"in {count(checked, 'check')} of answers to the same prompts, no outcome "
        f"differs by more than chance explains{alike}",
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
    return [each for each in tested if each[0] < OUTCOME_P]


_PAIRED: Need[ReplayCase] = Need(
    words="a second replay of the same prompts, and answers that are checked",
    met=lambda case: any(pair.outcomes for pair in case.pairs),
)
_OUTCOME = Threshold(
    name="OUTCOME_P",
    value=OUTCOME_P,
    means="p-value of McNemar's exact test below which an outcome counts as different",
    source="driftscope: five outcomes are tested in every condition and load",
)

REPLAYS_ENTRIES: tuple[Entry[ReplayCase], ...] = (
    Entry(
        id="outcomes_change",
        title="Answers to the same prompts turn out differently",
        meaning="Prompt by prompt, answers are right, complete or free of loops in one replay but "
        "not in the other, more often than chance explains.",
        thresholds=(_OUTCOME,),
        need=_PAIRED,
        rule=outcomes_change,
    ),
    Entry(
        id="conditions_cost",
        title="A condition lowers the acceptance length",
        meaning="The same prompts yield fewer tokens per round in this condition than in the "
        "replay's baseline: the 95% interval of the ratio, over prompts, lies below 1.",
        thresholds=(),
        need=Need(
            words="a replay of several conditions whose server reports its rounds",
            met=lambda case: any(c.length_ratio is not None for c in case.run.cells),
        ),
        rule=conditions_cost,
    ),
    Entry(
        id="not_answered",
        title="Not every request was answered",
        meaning="Requests of a replay were refused, broke off, took too long or were never sent.",
        thresholds=(),
        need=Need(words="rows of requests", met=lambda case: case.run.has_rows),
        rule=not_answered,
    ),
    Entry(
        id="outcomes_hold",
        title="Answers turn out alike with and without speculation",
        meaning="One of two replays speculates and the other does not, and no outcome of the same "
        "prompts differs by more than chance explains.",
        thresholds=(_OUTCOME,),
        need=_PAIRED,
        rule=outcomes_hold,
    ),
)


def replay_sentences(runs: Sequence[ReplaySummary]) -> tuple[str, ...]:
    """Return one sentence per replay."""
    return tuple(f"{run.label} {_sender(run)}." for run in runs)


def _sender(run: ReplaySummary) -> str:
    if run.planned is None:
        return _sums(run)
    answered = run.ended.get(Ended.ANSWERED, 0)
    answered_words = f"answered {answered:,} of {count(run.planned, 'request')}"
    if not run.cells:
        return answered_words
    cell = run.cells[0]
    figures = _figures(cell)
    return (
        f"{answered_words}: {', '.join(figures)} in {cell.condition}" if figures else answered_words
    )


def _sums(run: ReplaySummary) -> str:
    """Return the figures of a file that holds sums only."""
    cell = run.cells[0]
    rounds = "" if cell.rounds is None else f" of {count(cell.rounds, 'round')}"
    figures = ", ".join(_figures(cell)) or "no acceptance length and no time per token"
    return f"holds sums{rounds}: {figures} in {cell.condition}{without_interval(cell, ' ({})')}"


def without_interval(cell: Cell, around: str = "{}") -> str:
    """Return that sums have no interval, or "" for a file that lists requests without rounds."""
    return "" if cell.mean_length_interval else around.format(NO_INTERVAL)


def _figures(cell: Cell) -> list[str]:
    figures = [f"{milliseconds(cell.tpot_s)} per token"] if cell.tpot_s is not None else []
    if cell.mean_length is not None:
        figures.insert(0, f"{number(cell.mean_length)} tokens per round")
    return figures
