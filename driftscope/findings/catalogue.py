"""The catalogue of findings: which rules are evaluated, and the order of their findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from driftscope.findings.case import Case, Entry, ReplayCase
from driftscope.findings.finding import Finding, Severity, Trust
from driftscope.findings.rules_acceptance import (
    ACCEPTANCE_ENTRIES,
    HEALTHY_ENTRIES,
    WEAK_ENTRIES,
    WRONG_TOKENS_ENTRIES,
    healthy,
    wrong_tokens,
)
from driftscope.findings.rules_attention import (
    ATTENTION_ENTRIES,
    CAPTURED_STATES_ENTRIES,
    HIDDEN_STATE_ENTRIES,
)
from driftscope.findings.rules_changes import ACCEPTANCE_DROPS_ENTRIES, DECAY_ENTRIES
from driftscope.findings.rules_circumstances import CIRCUMSTANCE_ENTRIES, TEXT_ENTRIES
from driftscope.findings.rules_compare import TWO_RUNS_ENTRIES
from driftscope.findings.rules_replays import REPLAYS_ENTRIES
from driftscope.findings.rules_speed import FALLBACK_ENTRIES, MODES_ENTRIES, SPEED_ENTRIES

_ASKED: tuple[Entry[Case], ...] = (
    *WRONG_TOKENS_ENTRIES,
    *HIDDEN_STATE_ENTRIES,
    *ATTENTION_ENTRIES,
    *CAPTURED_STATES_ENTRIES,
    *ACCEPTANCE_ENTRIES,
    *WEAK_ENTRIES,
    *CIRCUMSTANCE_ENTRIES,
    *TEXT_ENTRIES,
    *DECAY_ENTRIES,
    *ACCEPTANCE_DROPS_ENTRIES,
    *MODES_ENTRIES,
    *SPEED_ENTRIES,
    *FALLBACK_ENTRIES,
    *TWO_RUNS_ENTRIES,
)
"""Entries in the order of findings with equal cost and severity: the cause that the paper names
comes first."""

CATALOGUE: dict[str, Entry[Case]] = {entry.id: entry for entry in (*_ASKED, *HEALTHY_ENTRIES)}
"""Every kind of finding about a probe's run, by id."""
REPLAYS: dict[str, Entry[ReplayCase]] = {entry.id: entry for entry in REPLAYS_ENTRIES}
"""Every kind of finding about a replay, by id."""

REPEATS_UNSEEN = "repeated prompts cannot be seen in this trace"
"""Reason why a finding is not certain."""
_END = "_low"
"""End of the name of an interval's lower end, see `finding_confidence.ends`."""


def findings_about(case: Case) -> list[Finding]:
    """Return the findings about one run, in the catalogue's order; one only if its tokens are
    wrong."""
    if wrong := wrong_tokens(case):
        return [wrong]
    findings = [finding for entry in _ASKED if (finding := entry.rule(case)) is not None]
    good = healthy(case, findings)
    findings = [*findings, *([good] if good else [])]
    if not case.run.seen_whole:
        return [_of_parts(each) for each in findings]
    return [_unseen(each) for each in findings] if case.run.unseen else findings


def _unseen(finding: Finding) -> Finding:
    """Return a finding about a run that does not show which prompts repeat: what rests on an
    interval is neither high nor certain."""
    rests = any(name.endswith(_END) and low is not None for name, low in finding.evidence.items())
    if not rests:
        return finding
    high = finding.severity is Severity.HIGH
    certain = finding.confidence is Trust.HIGH
    because = f"{finding.because}; {REPEATS_UNSEEN}" if certain or high else finding.because
    return replace(
        finding,
        severity=Severity.MEDIUM if high else finding.severity,
        confidence=Trust.MEDIUM if certain else finding.confidence,
        because=because,
    )


def _of_parts(finding: Finding) -> Finding:
    """Return a finding about a run most of whose rounds are of requests that it shows in part."""
    because = "most rounds are of requests that were not recorded whole"
    return replace(finding, confidence=Trust.LOW, because=because)


def findings_about_replay(case: ReplayCase) -> list[Finding]:
    """Return the findings about one replay, in the catalogue's order."""
    findings = (entry.rule(case) for entry in REPLAYS.values())
    return [each for each in findings if each is not None]


def ranked(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings: a dead drafter first, then by cost in tokens per second, unknown costs
    last."""
    places = {name: place for place, name in enumerate((*CATALOGUE, *REPLAYS))}
    return tuple(sorted(findings, key=lambda f: (*_rank(f), places[f.id])))


def _rank(finding: Finding) -> tuple[int, float, int]:
    place = list(Severity).index(finding.severity)
    if finding.id == "nothing_accepted":
        return (-1, 0.0, place)
    asks = finding.severity in (Severity.HIGH, Severity.MEDIUM)
    cost = max(finding.cost_tps or 0.0, 0.0) if asks else 0.0
    return (0 if asks else place, -cost, place)
