"""The catalogue of findings: which rules are evaluated, and the order of their findings."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.findings.catalogue_entry import Entry
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_inputs import Case, ReplayCase
from driftscope.analysis.findings.rules import (
    acceptance,
    acceptance_drops,
    attention,
    captured_states,
    circumstance,
    decay,
    fallback,
    hidden_state,
    modes,
    replays,
    speed,
    two_runs,
    weak,
)
from driftscope.analysis.findings.rules.healthy import ENTRIES as HEALTHY
from driftscope.analysis.findings.rules.healthy import healthy

_MODULES = (
    hidden_state,
    attention,
    captured_states,
    acceptance,
    weak,
    circumstance,
    decay,
    acceptance_drops,
    modes,
    speed,
    fallback,
    two_runs,
)
_ASKED: tuple[Entry[Case], ...] = tuple(entry for module in _MODULES for entry in module.ENTRIES)
"""Entries in the order of findings with equal cost and severity: the cause that the paper names
comes first."""

CATALOGUE: dict[str, Entry[Case]] = {entry.id: entry for entry in (*_ASKED, *HEALTHY)}
"""Every kind of finding about a probe's run, by id."""
REPLAYS: dict[str, Entry[ReplayCase]] = {entry.id: entry for entry in replays.ENTRIES}
"""Every kind of finding about a replay, by id."""


def findings_about(case: Case) -> list[Finding]:
    """Return the findings about one run, in the catalogue's order."""
    found = [finding for entry in _ASKED if (finding := entry.rule(case)) is not None]
    good = healthy(case, found)
    return [*found, *([good] if good else [])]


def findings_about_replay(case: ReplayCase) -> list[Finding]:
    """Return the findings about one replay, in the catalogue's order."""
    found = (entry.rule(case) for entry in REPLAYS.values())
    return [each for each in found if each is not None]


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
