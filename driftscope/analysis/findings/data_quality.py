"""Reasons to trust some figures of a run less."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from driftscope.analysis.number_words import count, ks_of, percent
from driftscope.analysis.replays.senders import ReplaySummary
from driftscope.analysis.statistics.interval import FEW_REQUESTS
from driftscope.analysis.summary.acceptance_by_k import first_token_differs
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.sampling_mode import drafts_greedily, warmest

LOSS = "loss"
"""`QualityWarning.id` of what a run lacks."""
MANY_SHORT = 0.05
"""Share of rounds drafted shorter than K from which the deep rates are worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityWarning:
    """One reason, beside the section of the report that it touches."""

    id: str
    run: str
    affects: str
    """"run", "acceptance" or "masses" (every picture made of recorded chains)."""
    message: str


def losses_among(warnings: Iterable[QualityWarning]) -> list[QualityWarning]:
    """Return the warnings about rows that a run lacks: every report begins with them, because its
    figures lack those rows, too."""
    return [warning for warning in warnings if warning.id == LOSS]


def warnings_of(run: RunSummary) -> tuple[QualityWarning, ...]:
    """Every warning about `run`; what the reader found missing comes first."""
    losses = [(LOSS, "run", problem) for problem in run.problems]
    notes = [("note", "run", note) for note in run.manifest.notes]
    doubts = [(name, affects, doubt(run)) for name, affects, doubt in _DOUBTS]
    return tuple(
        QualityWarning(id=name, run=run.label, affects=affects, message=message)
        for name, affects, message in (*losses, *notes, *doubts)
        if message
    )


def replay_warnings(run: ReplaySummary) -> tuple[QualityWarning, ...]:
    """Every warning about a replay."""
    said = [(LOSS, problem) for problem in run.problems]
    said += [("note", note) for note in run.manifest.notes]
    return tuple(
        QualityWarning(id=name, run=run.label, affects="senders", message=message)
        for name, message in said
    )


def _few_requests(run: RunSummary) -> str | None:
    if run.requests >= FEW_REQUESTS:
        return None
    return (
        f"only {count(run.requests, 'request')}: the intervals are too narrow to rely on; record "
        f"{FEW_REQUESTS} or more"
    )


def _one_decides(run: RunSummary) -> str | None:
    if run.requests < 2 or run.acceptance.mean_length_interval is not None:
        return None
    return (
        "one request has more than half of the rounds, so that the acceptance has no 95% interval: "
        f"it cannot be told from that request's own; record {FEW_REQUESTS} or more requests of "
        "like length"
    )


def _short_rounds(run: RunSummary) -> str | None:
    short = run.recording.short_rounds / run.rounds
    if short <= MANY_SHORT:
        return None
    return (
        f"{percent(short)} of the rounds drafted fewer than K tokens (close to a length limit); "
        "rates by depth are of the rounds that drafted the depth, while vLLM's counters divide by "
        "all rounds"
    )


def _several_k(run: RunSummary) -> str | None:
    if not run.mixed:
        return None
    return (
        f"rounds drafted {ks_of(run.ks)}: the acceptance length is as served, rates by depth are "
        "of the rounds that drafted the depth, and parts of the run are compared at the run's mix "
        f"of K{f'; {differs}' if (differs := first_token_differs(run)) else ''}"
    )


def _several_depths(run: RunSummary) -> str | None:
    if not run.mixed or not run.recording.chains:
        return None
    return (
        f"attention, hidden state and confidence by depth are of the chains of K = {run.depths} or "
        "more, so that every depth is compared over the same chains; `--by k` tells each K apart"
    )


def _no_chains(run: RunSummary) -> str | None:
    if run.recording.chains:
        return None
    return "no chain was recorded: there is acceptance, and nothing measured inside the drafter"


def _broken_chains(run: RunSummary) -> str | None:
    if not run.recording.broken_chains:
        return None
    return (
        f"{count(run.recording.broken_chains, 'recorded chain')} with values that are no finite "
        "numbers; the means leave those values out"
    )


def _chunked_prefill(run: RunSummary) -> str | None:
    seen = run.recording
    if not seen.chunked_chains or run.manifest.runner != "v1":
        return None
    return (
        f"{seen.chunked_chains:,} of {count(seen.chains, 'recorded chain')} are of requests for "
        "which the drafter's cache may be wrong, as vLLM's V1 runner leaves it at the ends of "
        "prompt chunks, near a context limit and, through the prefix cache, in later requests. "
        "They are flagged in the trace and are part of the means"
    )


def _greedy_drafts(run: RunSummary) -> str | None:
    warm = warmest(run)
    if not warm or not drafts_greedily(run.manifest):
        return None
    return (
        f"requests were sampled (temperature up to {warm:g}) and the drafter guesses greedily, as "
        "vLLM's V1 runner has it: acceptance is lower than that of a drafter which samples, and "
        "than at temperature 0; compare it only with runs at the same temperature and runner"
    )


_DOUBTS: tuple[tuple[str, str, Callable[[RunSummary], str | None]], ...] = (
    ("few_requests", "acceptance", _few_requests),
    ("one_request_decides", "acceptance", _one_decides),
    ("greedy_drafts", "acceptance", _greedy_drafts),
    ("short_rounds", "acceptance", _short_rounds),
    ("several_k", "acceptance", _several_k),
    ("several_k", "masses", _several_depths),
    ("no_chains", "masses", _no_chains),
    ("broken_chains", "masses", _broken_chains),
    ("chunked_prefill", "masses", _chunked_prefill),
)
"""Id, the section it stands beside, and the function that words it, or has nothing to say."""
