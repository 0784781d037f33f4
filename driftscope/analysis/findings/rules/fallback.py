"""Rules about steps without a draft: intended, failed, or lost to a grammar."""

from __future__ import annotations

from driftscope.analysis.findings.catalogue_entry import ALWAYS, Entry, Threshold
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import count, listed, number, percent
from driftscope.analysis.statistics.intervals.cluster_ratio import FEW_REQUESTS
from driftscope.analysis.statistics.intervals.interval import difference
from driftscope.vocabulary import UndraftedReason

MISSING_ABOVE = 0.05
"""Share of decode steps that should have drafted and did not. At 2 tokens per round, the middle of
the published figures, it costs 2.5 % of the tokens per second: half of what another K must gain."""
LEFT_OUT_ABOVE = 0.05
"""Share of decode steps left without a draft by a setting above which this is reported."""
BOUNDARY_ABOVE = 0.05
"""Share of the decode steps of requests under a grammar that lost their draft to it; like
MISSING_ABOVE, for those requests alone."""

_ADVICE = {
    UndraftedReason.CONTEXT_LIMIT: "raise --max-model-len: vLLM's V1 runner drafts for no request "
    "of a batch while one of them is within K tokens of the limit",
    UndraftedReason.STRUCTURED_OUTPUT: "see the finding about structured output",
    UndraftedReason.PREEMPTED: "give the cache more memory (--gpu-memory-utilization) or lower "
    "--max-num-seqs: requests are preempted",
    UndraftedReason.TOKEN_BUDGET: "raise --max-num-batched-tokens: the step's token budget leaves "
    "no room for drafts",
    UndraftedReason.NO_DRAFT: "look at the engine's log: the drafter returned nothing, for no "
    "known reason",
}


def drafts_missing(case: Case) -> Finding | None:
    """Find steps that should have drafted and did not."""
    share, spread = case.run.groups.failed_share, case.run.groups.failed_share_interval
    if not share > MISSING_ABOVE:
        return None
    reasons = {
        name: n
        for name, n in case.run.fallback.by_reason.items()
        if name not in UndraftedReason.DELIBERATE
    }
    worst = max(reasons, key=lambda name: reasons[name])
    trust, because = judged(case.run.requests, spread, above=MISSING_ABOVE)
    named = listed([f"{name.replace('_', ' ')} {n:,}" for name, n in reasons.items()])
    return Finding(
        id="drafts_missing",
        severity=Severity.HIGH if share > 0.5 else Severity.MEDIUM,
        runs=(case.run.label,),
        title="Decode steps have no draft although no setting asked for that",
        statement=f"{percent(share)} of the decode steps had no draft, and no setting asked for "
        f"that ({named}); {percent(_deliberate(case))} were left out on purpose",
        evidence={
            "failed_share": share,
            **ends("failed_share", spread),
            "deliberate_share": _deliberate(case),
            **{f"steps_{name}": n for name, n in reasons.items()},
            "threshold": MISSING_ABOVE,
        },
        confidence=trust,
        because=because,
        advice=f"Most common cause: {worst.replace('_', ' ')}; "
        f"{_ADVICE.get(worst, 'see the reasons in the report')}.",
        cost_tps=_cost(case, share),
    )


def drafts_left_out(case: Case) -> Finding | None:
    """Find steps for which a setting asked for no draft: a choice, not a fault."""
    share = _deliberate(case)
    if not share > LEFT_OUT_ABOVE:
        return None
    return Finding(
        id="drafts_left_out",
        severity=Severity.INFO,
        runs=(case.run.label,),
        title="Drafts are left out on purpose",
        statement=f"{percent(share)} of the decode steps had no draft because a setting asked for "
        f"K = 0; {percent(case.run.groups.failed_share)} had none for another reason",
        evidence={
            "deliberate_share": share,
            "failed_share": case.run.groups.failed_share,
            "threshold": LEFT_OUT_ABOVE,
        },
        confidence=Trust.MEDIUM if case.run.clusters >= FEW_REQUESTS else Trust.LOW,
        because="recorded in the engine's schedule",
        advice="Nothing to fix. `driftscope advise` shows whether "
        "num_speculative_tokens_per_batch_size leaves drafts out at the right batch sizes.",
    )


def structured_output_loses_drafts(case: Case) -> Finding | None:
    """Find that a grammar discards drafts where tool calls or structured output begin and
    continue."""
    groups = case.run.groups
    share, spread = groups.boundary_share, groups.boundary_share_interval
    if not share > BOUNDARY_ABOVE:
        return None
    lost = case.run.fallback.by_reason[UndraftedReason.STRUCTURED_OUTPUT]
    trust, because = judged(case.run.requests, spread, above=BOUNDARY_ABOVE)
    return Finding(
        id="structured_output_loses_drafts",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="Tool calls or structured output lose drafts",
        statement=f"a grammar rejected {count(lost, 'draft')}: {percent(share)} of the decode "
        f"steps of the affected requests{_compared_acceptance(case)}",
        evidence={
            "boundary_share": share,
            **ends("boundary_share", spread),
            "lost_drafts": lost,
            "threshold": BOUNDARY_ABOVE,
        },
        confidence=trust,
        because=because,
        advice="At the grammar's boundaries the drafter drafts tokens that the grammar forbids. "
        "Keep the text around tool calls as in the drafter's training, train the drafter on tool "
        "calls, or serve such requests without speculation if they accept little. A grammar that "
        "allows arbitrary white space loses more drafts.",
        cost_tps=_cost(case, lost / case.run.fallback.steps),
    )


def _compared_acceptance(case: Case) -> str:
    """Return in words the acceptance of the rounds of these requests compared with the others."""
    groups = case.run.groups.structured
    if len(groups) < 2:
        return ""
    own, other = groups
    spans = own.mean_length_interval, other.mean_length_interval
    surely = (
        spans[0] is not None
        and spans[1] is not None
        and difference(own.mean_length, spans[0], other.mean_length, spans[1]).excludes_zero()
    )
    return (
        f"; their rounds yield {number(own.mean_length)} tokens, the others' "
        f"{number(other.mean_length)}{'' if surely else ' (no difference shown)'}"
    )


def _deliberate(case: Case) -> float:
    fallback = case.run.fallback
    return fallback.deliberate / fallback.steps if fallback.steps else 0.0


def _cost(case: Case, share: float) -> float | None:
    """Return the gain in tokens per second if these steps yielded a round's tokens instead of one,
    in the time of a step that drafts."""
    gained = share * (case.run.acceptance.mean_length - 1.0)
    return case.cost_of(case.run.acceptance.mean_length + gained)


_SOURCE = "driftscope: costs 2.5 % of the tokens per second at 2 tokens per round"

ENTRIES = (
    Entry(
        id="drafts_missing",
        title="Decode steps have no draft although no setting asked for that",
        meaning="Decode steps had no draft although no setting asked for K = 0: the context limit, "
        "a preemption, the token budget, a grammar, or a drafter that returned nothing.",
        thresholds=(
            Threshold(
                name="MISSING_ABOVE",
                value=MISSING_ABOVE,
                means="share of all decode steps",
                source=_SOURCE,
            ),
        ),
        need=ALWAYS,
        rule=drafts_missing,
    ),
    Entry(
        id="drafts_left_out",
        title="Drafts are left out on purpose",
        meaning="A setting asked for K = 0, by batch size for example. That is a choice, and is "
        "counted separately from failures to draft.",
        thresholds=(
            Threshold(
                name="LEFT_OUT_ABOVE",
                value=LEFT_OUT_ABOVE,
                means="share of all decode steps",
                source=_SOURCE,
            ),
        ),
        need=ALWAYS,
        rule=drafts_left_out,
    ),
    Entry(
        id="structured_output_loses_drafts",
        title="Tool calls or structured output lose drafts",
        meaning="A grammar rejected whole drafts, as happens where tool calls or structured output "
        "begin.",
        thresholds=(
            Threshold(
                name="BOUNDARY_ABOVE",
                value=BOUNDARY_ABOVE,
                means="share of the decode steps of those requests that lost a draft to a grammar",
                source=_SOURCE,
            ),
        ),
        need=ALWAYS,
        rule=structured_output_loses_drafts,
    ),
)
