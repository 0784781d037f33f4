"""Does acceptance depend on the length of the context, on the template, or on the time?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from driftscope.analysis.case import Case
from driftscope.analysis.entry import Entry, Need, Threshold
from driftscope.analysis.finding import Finding, Severity
from driftscope.analysis.groups import Group
from driftscope.analysis.interval import Interval, difference
from driftscope.analysis.rules.drops import worst_drop
from driftscope.analysis.trust import ends, judged
from driftscope.analysis.words import lasted, listed, number, percent

ENOUGH_REQUESTS = 10
"""Requests that a group must have to be held against another. Resampling fewer gives intervals far
too narrow."""
COLLAPSE_BELOW = 0.7
"""Accepted tokens per round in the longest contexts over those in the shortest. Published by
context length (speculators#684, LongBench-v2): 0.53 from 2k to 8k for a drafter that collapses,
0.92 for one with a sliding window; their middle is 0.72."""
SENSITIVE_BELOW = 0.8
"""Accepted tokens per round under the worst label over those under the best. Orientation from the
paper (arXiv 2605.09992): without BOS a pre-norm drafter keeps 0.74, a post-norm one without any
template 0.93; their middle is 0.83."""
DECAYED_BELOW = 0.9
"""Accepted tokens per round in the last quarter of a run over those in the first. No figure is
published (vllm#41838 reports the effect); at a tenth the best K by the cost model begins to
change."""
MIX_SHIFT = 0.1
"""Change of a label's share between the first and the last quarter from which the mix of requests,
not time, may be behind a decay."""


def long_context_collapse(case: Case) -> Finding | None:
    """Rounds in long contexts accept clearly less than those in short ones."""
    groups = _usable(case.run.groups.context)
    if len(groups) < 2:
        return None
    short, long = groups[0], groups[-1]
    found = _kept(short, long, tests=1)
    if found is None or not found[0] < COLLAPSE_BELOW:
        return None
    kept, spread = found
    since = next(g for g in groups[1:] if (_kept(short, g, tests=1) or (1.0,))[0] < COLLAPSE_BELOW)
    trust, because = judged(long.requests, spread, below=1.0)
    return Finding(
        id="long_context_collapse",
        severity=Severity.HIGH,
        runs=(case.run.label,),
        title="Acceptance collapses in long contexts",
        statement=f"rounds yield {number(long.mean_length)} tokens in contexts of {long.name}, "
        f"{number(short.mean_length)} in those of {short.name}: {percent(kept)} of the accepted "
        f"tokens are left",
        evidence={
            "mean_length_short": short.mean_length,
            **ends("mean_length_short", short.mean_length_interval),
            "mean_length_long": long.mean_length,
            **ends("mean_length_long", long.mean_length_interval),
            "kept": kept,
            **ends("kept", spread),
            "threshold": COLLAPSE_BELOW,
        },
        confidence=trust,
        because=because,
        advice=f"The drafter was probably trained on shorter contexts: from {since.name} on it "
        "loses. Check that vLLM applies the drafter's own rope scaling and sliding window, that "
        "its max_position_embeddings covers your contexts, and retrain on long ones or use a "
        "drafter with a sliding window or EAGLE-3.1's norms. Until then send long contexts to a "
        "server with fewer num_speculative_tokens.",
        cost_tps=case.cost_of_losing(groups[1:], short.mean_length),
    )


def template_sensitivity(case: Case) -> Finding | None:
    """One workload label accepts clearly less than another."""
    groups = _usable(case.run.groups.label)
    if len(groups) < 2:
        return None
    best = max(groups, key=lambda g: g.mean_length)
    worst = min(groups, key=lambda g: g.mean_length)
    found = _kept(best, worst, tests=len(groups) - 1)
    if found is None or not found[0] < SENSITIVE_BELOW:
        return None
    kept, spread = found
    trust, because = judged(worst.requests + best.requests, spread, below=1.0)
    return Finding(
        id="template_sensitivity",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="Acceptance depends on the template or workload",
        statement=f'rounds yield {number(worst.mean_length)} tokens under "{worst.name}" and '
        f'{number(best.mean_length)} under "{best.name}": '
        f"{percent(kept)} of the accepted tokens are left",
        evidence={
            "mean_length_best": best.mean_length,
            **ends("mean_length_best", best.mean_length_interval),
            "mean_length_worst": worst.mean_length,
            **ends("mean_length_worst", worst.mean_length_interval),
            "kept": kept,
            **ends("kept", spread),
            "labels": len(groups),
            "threshold": SENSITIVE_BELOW,
        },
        confidence=trust,
        because=because,
        advice=f'Hold the prompts of "{worst.name}" against what the drafter was trained on: the '
        "chat template, its first token (BOS), system prompts, language. Use the drafter's own "
        "template with --chat-template, or train the drafter on yours; EAGLE-3.1's norms make it "
        "less sensitive.",
        cost_tps=case.cost_of_losing(groups, best.mean_length),
    )


def acceptance_decays(case: Case) -> Finding | None:
    """Requests that begin late accept clearly less than the first ones; said of a slope only."""
    groups = _usable(case.run.groups.time)
    if worst_drop(case.run.changes) is not None:
        return None
    if len(groups) < 2 or groups[0].name != case.run.groups.time[0].name:
        return None
    first, last = groups[0], groups[-1]
    found = _kept(first, last, tests=1)
    if found is None or not found[0] < DECAYED_BELOW:
        return None
    kept, spread = found
    shifted = _shifted(case)
    assumed = [f"the mix of requests changed, too ({shifted})"] if shifted else []
    trust, because = judged(last.requests + first.requests, spread, below=1.0, assumed=assumed)
    return Finding(
        id="acceptance_decays",
        severity=Severity.MEDIUM,
        runs=(case.run.label,),
        title="Acceptance decays over the run",
        statement="rounds of requests in the first quarter of "
        f"{lasted(case.run.groups.duration_s)} yield {number(first.mean_length)} tokens, in "
        f"the last {number(last.mean_length)}",
        evidence={
            "mean_length_first": first.mean_length,
            **ends("mean_length_first", first.mean_length_interval),
            "mean_length_last": last.mean_length,
            **ends("mean_length_last", last.mean_length_interval),
            "kept": kept,
            **ends("kept", spread),
            "duration_s": case.run.groups.duration_s,
            "threshold": DECAYED_BELOW,
        },
        confidence=trust,
        because=because,
        advice="Compare what the server was asked early and late (labels, context lengths, "
        "temperature); if that is the same, restart the engine and see whether acceptance is back: "
        "then it is the engine (prefix cache, drafter cache), and worth a bug report.",
        cost_tps=case.cost_of_losing(groups[1:], first.mean_length),
    )


def _usable(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if group.requests >= ENOUGH_REQUESTS]


def _kept(reference: Group, other: Group, *, tests: int) -> tuple[float, Interval] | None:
    """Accepted tokens of a group over those of another, with its 95% interval; None where the
    difference is not sure. Each of several `tests` has to be surer (Bonferroni)."""
    a, b = reference.mean_length - 1.0, other.mean_length - 1.0
    spans = reference.mean_length_interval, other.mean_length_interval
    if spans[0] is None or spans[1] is None or a <= 0:
        return None
    widen = NormalDist().inv_cdf(1 - 0.025 / tests) / NormalDist().inv_cdf(0.975)
    x, y = _around(a, spans[0], widen), _around(b, spans[1], widen)
    apart = difference(a, x, b, y)
    if not apart.low > 0:
        return None
    return b / a, Interval(low=1 - apart.high / a, high=1 - apart.low / a)


def _around(value: float, of_length: Interval, widen: float) -> Interval:
    """Of accepted tokens, from that of the acceptance length."""
    low, high = of_length.low - 1.0, of_length.high - 1.0
    return Interval(low=value - widen * (value - low), high=value + widen * (high - value))


def _shifted(case: Case) -> str:
    """Labels whose share of the rounds changed much."""
    shares = case.run.groups.shares.items()
    names = [label for label, each in shares if abs(each[-1] - each[0]) > MIX_SHIFT]
    return listed([f'"{name}"' for name in names])


def _enough(which: str) -> Need[Case]:
    words = {
        "context": f"two ranges of context lengths with {ENOUGH_REQUESTS} requests each",
        "label": f"two workload labels with {ENOUGH_REQUESTS} requests each",
        "time": f"{ENOUGH_REQUESTS} requests in the first quarter of the run and in a later one",
    }
    return Need[Case](
        words=words[which],
        met=lambda case: len(_usable(getattr(case.run.groups, which))) > 1,
    )


ENTRIES = (
    Entry(
        id="long_context_collapse",
        title="Acceptance collapses in long contexts",
        meaning="Rounds in the longest contexts accept clearly fewer tokens than those in the "
        "shortest.",
        thresholds=(
            Threshold(
                name="COLLAPSE_BELOW",
                value=COLLAPSE_BELOW,
                means="accepted tokens per round, longest over shortest range of contexts",
                source="middle of 0.53 and 0.92, published by context length in speculators#684",
            ),
        ),
        need=_enough("context"),
        rule=long_context_collapse,
    ),
    Entry(
        id="template_sensitivity",
        title="Acceptance depends on the template or workload",
        meaning="Requests with one workload label accept clearly fewer tokens than those with "
        "another.",
        thresholds=(
            Threshold(
                name="SENSITIVE_BELOW",
                value=SENSITIVE_BELOW,
                means="accepted tokens per round, worst over best label",
                source="between 0.74 (without BOS) and 0.93 (post-norm drafter), orientation from "
                "arXiv 2605.09992",
            ),
        ),
        need=_enough("label"),
        rule=template_sensitivity,
    ),
    Entry(
        id="acceptance_decays",
        title="Acceptance decays over the run",
        meaning="Requests that begin in the last quarter of a run accept clearly fewer tokens than "
        "those of the first, with no moment at which it happened.",
        thresholds=(
            Threshold(
                name="DECAYED_BELOW",
                value=DECAYED_BELOW,
                means="accepted tokens per round, last over first quarter",
                source="driftscope: a loss that the best K begins to react to; reported without "
                "figures in vllm#41838",
            ),
            Threshold(
                name="MIX_SHIFT",
                value=MIX_SHIFT,
                means="change of a label's share of the rounds that lowers the confidence",
                source="driftscope",
            ),
        ),
        need=_enough("time"),
        rule=acceptance_decays,
    ),
)
