"""What replays show: conditions that cost acceptance, outcomes that change, answers that failed."""

from __future__ import annotations

from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.senders import GOOD, SenderSummary, Versus
from driftscope.analysis.words import between, count, listed, number, percent
from driftscope.metrics.client import mcnemar
from driftscope.trace.records import Ended

OUTCOME_P = 0.01
"""Below, an outcome is taken to differ. A hundredth, because five outcomes are looked at in every
condition and load. driftscope's own bound."""
OUTCOME_WORDS = {
    "json_ok": "JSON as asked for",
    "tool_ok": "the right tool call",
    "early_stop": "too early an end",
    "garbled": "garbled text",
    "looping": "a repetition loop",
}


def conditions_cost(run: SenderSummary) -> Finding | None:
    """Conditions in which a round yields fewer tokens than in the baseline, prompt by prompt."""
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
        evidence={"ratio": ratio.value, "pairs": ratio.pairs, "conditions": len(lower)},
        advice="See whether production sends requests like these. If it does, mend what makes them "
        "differ (the template, the system prompt), or train and choose the drafter with such "
        "prompts.",
    )


def not_answered(run: SenderSummary) -> Finding | None:
    """Requests without a whole answer."""
    lost = {how: n for how, n in run.ended.items() if how != Ended.ANSWERED}
    if not lost:
        return None
    said = listed([f"{n:,} {how}" for how, n in lost.items()])
    return Finding(
        id="not_answered",
        severity=Severity.MEDIUM,
        runs=(run.label,),
        title="Not every request was answered",
        statement=f"of {count(run.planned, 'request')}, {said}",
        evidence=dict(lost),
        advice="Every request is in the run's record client, with its error; the figures are of "
        "answered ones.",
    )


def outcomes_change(pair: Versus) -> Finding | None:
    """Answers that are right in one run and not in the other, more often than chance has it."""
    worst = [(mcnemar(a, b), name, a, b, n) for name, (a, b, n) in pair.outcomes.items()]
    worst = [each for each in worst if each[0] < OUTCOME_P]
    if not worst:
        return None
    p, name, a, b, n = min(worst)
    bad = "without" if name in GOOD else "with"
    return Finding(
        id="outcomes_change",
        severity=Severity.HIGH,
        runs=(pair.first, pair.other),
        title="Answers to the same prompts turn out differently",
        statement=f"{bad} {OUTCOME_WORDS[name]}, in {pair.condition} at load {pair.load}: "
        f"{a} of {n} pairs only in {pair.first}, {b} only in {pair.other} (p = {p:.2g})",
        evidence={"p": p, "only_first": a, "only_other": b, "pairs": n},
        advice="Speculation must not change what users get. Compare a few of these answers; look "
        "for a quantised target, a wrong template, or an engine's bug with this drafter.",
    )


def outcomes_hold(
    first: SenderSummary, other: SenderSummary, pairs: list[Versus]
) -> Finding | None:
    """Said where one run speculates and the other does not, and nothing changes."""
    checked = sum(n for pair in pairs for *_, n in pair.outcomes.values())
    if first.speculates == other.speculates or not checked:
        return None
    if any(outcomes_change(pair) for pair in pairs):
        return None
    same, of = (sum(pair.same_text[i] for pair in pairs) for i in (0, 1))
    alike = f"; {percent(same / of)} of the greedy answers are the same text" if of else ""
    return Finding(
        id="outcomes_hold",
        severity=Severity.GOOD,
        runs=(first.label, other.label),
        title="With and without speculation, answers turn out alike",
        statement=f"in {count(checked, 'check')} of answers to the same prompts, no outcome "
        f"differs more than chance has it{alike}",
        evidence={"checks": checked, "same_text": same, "greedy_pairs": of},
        advice="",
    )


def about_senders(runs: list[SenderSummary], pairs: list[Versus]) -> list[Finding]:
    """Every finding about replays."""
    found = [rule(run) for rule in (conditions_cost, not_answered) for run in runs]
    found += [outcomes_change(pair) for pair in pairs]
    for other in runs[1:]:
        mine = [pair for pair in pairs if pair.other == other.label]
        found.append(outcomes_hold(runs[0], other, mine))
    return [each for each in found if each]
