"""Rules about acceptance that depends on the length of the context, or on the template."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.analysis.circumstances import Group, kept_of, origin_of, origins, usable
from driftscope.analysis.figures.requests import UNFINISHED
from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.findings.norm_advice import unless_normed
from driftscope.analysis.findings.shared_loss import shared_loss
from driftscope.analysis.number_words import listed, number, percent
from driftscope.analysis.statistics.contrast import Contrast
from driftscope.analysis.statistics.intervals.cluster_ratio import LOW_CLUSTERS
from driftscope.analysis.statistics.strata import ENOUGH_REQUESTS

COLLAPSE_BELOW = 0.7
"""Accepted tokens per round in the longest contexts over those in the shortest. Published figures
by context length (speculators#684, LongBench-v2): 0.53 from 2k to 8k for a drafter that collapses,
0.92 for one with a sliding window; the middle is 0.72."""
LONG_FROM = 512
"""Least length of a long context, in tokens, a choice: the figures above begin at 2k, and between
shorter contexts a difference is that of the prompts."""
SENSITIVE_BELOW = 0.8
"""Accepted tokens per round under the worst label over those under the best. Orientation from the
paper (arXiv 2605.09992): without BOS a pre-norm drafter keeps 0.74, a post-norm one without any
template 0.93; the middle is 0.83."""
LEAST_PART = 0.5
"""Share of the doublings between the shortest and the longest contexts that one label must span
before the context is ruled out as the reason: a collapse begins at some length."""
_LABELS_SHOWN = 4
_OR_NORMS = " or EAGLE-3.1's norms"
_NORMS_HELP = "; EAGLE-3.1's norms make it less sensitive"


def long_context_collapse(case: Case) -> Finding | None:
    """Find that rounds in long contexts accept clearly less than those in short ones, under the
    same labels."""
    contrast = case.run.groups.context_within_label
    if contrast is None or _begin(contrast.second) < LONG_FROM:
        return None
    if not contrast.loses(COLLAPSE_BELOW):
        return None
    groups = usable(case.run.groups.context)
    long = _named(groups, contrast.second)
    trust, because = _trust(contrast, COLLAPSE_BELOW)
    return Finding(
        id="long_context_collapse",
        severity=Severity.HIGH,
        runs=(case.run.label,),
        title="Acceptance collapses in long contexts",
        statement=f"rounds yield {number(contrast.second_length)} tokens in contexts of "
        f"{contrast.second} and {number(contrast.first_length)} in contexts of "
        f"{contrast.first}{_alike('label', contrast)}: {percent(contrast.kept)} of the accepted "
        "tokens remain",
        evidence={
            "mean_length_short": contrast.first_length,
            "mean_length_long": contrast.second_length,
            "kept": contrast.kept,
            **ends("kept", contrast.kept_interval),
            "p": contrast.p,
            "labels": len(contrast.strata),
            "threshold": COLLAPSE_BELOW,
        },
        confidence=trust,
        because=because,
        advice="The drafter was probably trained on shorter contexts: it loses acceptance "
        f"{_since(case, contrast)}. Check that vLLM applies the drafter's own rope scaling and "
        "sliding window, that its max_position_embeddings covers your contexts, and retrain on "
        "long ones or use a drafter with a sliding window"
        f"{unless_normed(case.run, _OR_NORMS)}. Until then send long contexts to a "
        "server with fewer num_speculative_tokens.",
        cost_tps=case.cost_of_losing(groups[1:], contrast.first_length)
        if len(contrast.strata) == 1
        else case.cost_of_losing(long, contrast.first_length),
    )


def template_sensitivity(case: Case) -> Finding | None:
    """Find that one workload label accepts clearly less than another, in contexts of the same
    lengths."""
    pairs = case.run.groups.labels_within_context
    lost = [each for each in pairs if each.loses(SENSITIVE_BELOW, tests=len(pairs))]
    if not lost:
        return None
    contrast = min(lost, key=lambda each: each.kept)
    groups = usable(_labels(case))
    trust, because = _trust(contrast, SENSITIVE_BELOW)
    shared = shared_loss(case.reference, contrast)
    both = "" if shared is None else f"; {shared.label} keeps {percent(shared.kept)} of them"
    return Finding(
        id="template_sensitivity",
        severity=Severity.MEDIUM if shared is None else Severity.INFO,
        runs=(case.run.label,),
        title="Acceptance depends on the template or workload",
        statement=f'rounds yield {number(contrast.second_length)} tokens under "{contrast.second}" '
        f'and {number(contrast.first_length)} under "{contrast.first}"'
        f"{_alike('context length', contrast)}: {percent(contrast.kept)} of the accepted "
        f"tokens remain{both}",
        evidence={
            "mean_length_best": contrast.first_length,
            "mean_length_worst": contrast.second_length,
            "kept": contrast.kept,
            **ends("kept", contrast.kept_interval),
            "p": contrast.p,
            "labels": len(groups),
            "ranges": len(contrast.strata),
            "threshold": SENSITIVE_BELOW,
            **({} if shared is None else {"kept_reference": shared.kept}),
        },
        confidence=trust,
        because=because,
        advice=f'Compare the prompts of "{contrast.second}" with what the drafter was trained on: '
        "the chat template, its first token (BOS), system prompts, language. Use the drafter's own "
        "template with --chat-template, or train the drafter on yours"
        f"{unless_normed(case.run, _NORMS_HELP)}.",
        cost_tps=case.cost_of_losing(
            groups if len(groups) == 2 else _named(groups, contrast.second), contrast.first_length
        ),
    )


def context_or_label(case: Case) -> Finding | None:
    """Find that acceptance differs by context length or by label, and the run does not show by
    which."""
    open_ = [each for each in (_open_context(case), _open_label(case)) if each]
    if not open_:
        return None
    return Finding(
        id="context_or_label",
        severity=Severity.INFO,
        runs=(case.run.label,),
        title="Context length and label cannot be separated",
        statement=f"{'; '.join(open_)}. Labels differ in context length here, so the run does not "
        f"show which of the two is the reason: {_where(case)}",
        evidence={"labels": len(usable(_labels(case))), "requests": ENOUGH_REQUESTS},
        confidence=Trust.LOW,
        because="too few requests with different labels have contexts of the same lengths",
        advice=f"Record prompts of each label in contexts of the same lengths, {ENOUGH_REQUESTS} "
        "or more requests of each label in each range of lengths.",
    )


def _trust(contrast: Contrast, bound: float) -> tuple[Trust, str]:
    """Return the trust in a loss beyond `bound`: medium if only its size is open, that is if the
    interval excludes no loss but contains the bound."""
    trust, because = judged(contrast.requests, contrast.kept_interval, below=bound)
    interval = contrast.kept_interval
    if interval is None or not bound <= interval.high < 1.0:
        return trust, because
    if (interval.clusters or contrast.requests) < LOW_CLUSTERS:
        return trust, because
    return Trust.MEDIUM, (
        f"the 95% interval excludes that nothing is lost, but contains the threshold {bound:g}"
    )


def _open_context(case: Case) -> str:
    """Return how rounds differ by context length if labels may be the reason; "" if they do not
    differ, or if the reason is known."""
    groups, labels = usable(case.run.groups.context), usable(_labels(case))
    if len(groups) < 2 or len(labels) < 2 or _begin(groups[-1].name) < LONG_FROM:
        return ""
    kept = kept_of(groups[0], groups[-1], tests=1)
    if kept is None or not kept[0] < COLLAPSE_BELOW:
        return ""
    within = case.run.groups.context_within_label
    if within is not None:
        part = _doublings(within.first, within.second) / _doublings(groups[0].name, groups[-1].name)
        if _is_decided(within, COLLAPSE_BELOW, part=part):
            return ""
    return _yields_compared(groups[-1], groups[0], "in contexts of {}")


def _doublings(short: str, long: str) -> float:
    """Return the number of doublings between two ranges of context lengths, given by name."""
    return math.log2(_begin(long) / _begin(short))


def _begin(name: str) -> int:
    """Return the least length of a range of context lengths, given by name, in tokens."""
    return int(name.split(" ")[0].replace(",", ""))


def _open_label(case: Case) -> str:
    """Return how rounds differ between two labels if context length may be the reason; "" if they
    do not differ, or if the reason is known."""
    labels = usable(_labels(case))
    parts = (
        _open_pair(case, [each for each in labels if origin_of(each.name) == origin])
        for origin in origins(each.name for each in labels)
    )
    return next(filter(None, parts), "")


def _open_pair(case: Case, labels: Sequence[Group]) -> str:
    """Return the same for labels of one origin."""
    if len(usable(case.run.groups.context)) < 2 or len(labels) < 2:
        return ""
    best = max(labels, key=lambda g: g.mean_length)
    worst = min(labels, key=lambda g: g.mean_length)
    kept = kept_of(best, worst, tests=len(labels) - 1)
    if kept is None or not kept[0] < SENSITIVE_BELOW:
        return ""
    pairs = case.run.groups.labels_within_context
    names = {best.name, worst.name}
    mine = next((each for each in pairs if {each.first, each.second} == names), None)
    decided = _is_decided(mine, SENSITIVE_BELOW, tests=max(len(pairs), 1))
    return "" if decided else _yields_compared(worst, best, 'under "{}"')


def _is_decided(
    contrast: Contrast | None, bound: float, *, tests: int = 1, part: float = 1.0
) -> bool:
    """Whether a comparison within strata shows that less than `bound` is kept, or that this is
    surely not so.

    `part` is the share of the doublings of the context, between the two ends, that the comparison
    spans. The loss per doubling is assumed to be equal in the others; below LEAST_PART the
    comparison cannot show that the bound is not passed.
    """
    if contrast is None:
        return False
    spread = contrast.kept_interval
    surely_not = spread is not None and spread.low > 0 and spread.low ** (1 / part) > bound
    surely_not = surely_not and part >= LEAST_PART
    return contrast.loses(bound, tests=tests) or surely_not


def _yields_compared(worse: Group, better: Group, where: str) -> str:
    return (
        f"rounds yield {number(worse.mean_length)} tokens {where.format(worse.name)} and "
        f"{number(better.mean_length)} {where.format(better.name)}"
    )


def _where(case: Case) -> str:
    """Return in words the contexts in which each label was seen."""
    seen = case.run.groups.contexts_of_labels
    parts = [
        f'"{label}" has contexts of {_range(names)}' for label, names in seen.items() if names
    ][:_LABELS_SHOWN]
    return listed(parts) or "no label has enough requests in one range of lengths"


def _range(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0].split(' to ')[0]} to {names[-1].split(' to ')[-1]}"


def _labels(case: Case) -> list[Group]:
    """Return the groups by label; reports of an older version have one of unfinished requests."""
    return [group for group in case.run.groups.label if group.name != UNFINISHED]


def _named(groups: Sequence[Group], name: str) -> list[Group]:
    return [group for group in groups if group.name == name]


def _alike(what: str, contrast: Contrast) -> str:
    """Return what is held equal, in words; "" if there is only one stratum."""
    return (
        f", at equal shares of {len(contrast.strata)} {what}s" if len(contrast.strata) > 1 else ""
    )


def _since(case: Case, contrast: Contrast) -> str:
    """Return in words the first range of contexts that loses acceptance, if labels cannot be the
    reason."""
    groups = usable(case.run.groups.context)
    if len(contrast.strata) > 1 or not groups or groups[0].name != contrast.first:
        return f"in contexts of {contrast.second}"
    lost = (g for g in groups[1:] if (kept_of(groups[0], g, tests=1) or (1.0,))[0] < COLLAPSE_BELOW)
    first = next(lost, None)
    return f"from {first.name if first else contrast.second} on"


_CONTEXT = Need[Case](
    words=f"two ranges of context lengths with {ENOUGH_REQUESTS} requests each under the same "
    "labels",
    met=lambda case: case.run.groups.context_within_label is not None and not _open_context(case),
)
_LABEL = Need[Case](
    words=f"two workload labels with {ENOUGH_REQUESTS} requests each, in contexts of the same "
    "lengths",
    met=lambda case: bool(case.run.groups.labels_within_context) and not _open_label(case),
)
_BOTH = Need[Case](
    words=f"two workload labels and two ranges of context lengths with {ENOUGH_REQUESTS} requests "
    "each",
    met=lambda case: len(usable(_labels(case))) > 1 and len(usable(case.run.groups.context)) > 1,
)
_COLLAPSE = Threshold(
    name="COLLAPSE_BELOW",
    value=COLLAPSE_BELOW,
    means="accepted tokens per round, longest contexts over shortest",
    source="middle of 0.53 and 0.92, published by context length in speculators#684",
)
_LONG = Threshold(
    name="LONG_FROM",
    value=LONG_FROM,
    means="least tokens of the longest contexts",
    source="a choice; figures by context length are published from 2k on (speculators#684)",
)
_SENSITIVE = Threshold(
    name="SENSITIVE_BELOW",
    value=SENSITIVE_BELOW,
    means="accepted tokens per round, worst label over best",
    source="between 0.74 (without BOS) and 0.93 (post-norm drafter), as orientation from arXiv "
    "2605.09992",
)


ENTRIES = (
    Entry(
        id="long_context_collapse",
        title="Acceptance collapses in long contexts",
        meaning="Rounds in the longest contexts accept clearly fewer tokens than those in the "
        "shortest, under the same labels. Differences between contexts below 512 tokens are left "
        "to the prompts.",
        thresholds=(_COLLAPSE, _LONG),
        need=_CONTEXT,
        rule=long_context_collapse,
    ),
    Entry(
        id="template_sensitivity",
        title="Acceptance depends on the template or workload",
        meaning="Requests with one workload label accept clearly fewer tokens than those with "
        "another, in contexts of the same lengths. It is for information only where the run that "
        "this one is compared with loses as much: then the prompts may be harder for any drafter.",
        thresholds=(_SENSITIVE,),
        need=_LABEL,
        rule=template_sensitivity,
    ),
    Entry(
        id="context_or_label",
        title="Context length and label cannot be separated",
        meaning="Rounds in long contexts, or of one label, accept clearly fewer tokens, and too "
        "few requests with different labels have contexts of the same lengths: the run does not "
        "show which of the two is the reason.",
        thresholds=(_COLLAPSE, _SENSITIVE),
        need=_BOTH,
        rule=context_or_label,
    ),
)
