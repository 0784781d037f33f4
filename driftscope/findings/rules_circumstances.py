"""Rules about where acceptance is lost: at a depth, in long contexts, under a label, in a kind of
text, on a rank or a replica; and the answer to whether it is even along the
chain."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from driftscope.analysis.circumstances import Group, kept_of, origin_of, origins, usable
from driftscope.analysis.comparability import Claim, comparability_of_parts
from driftscope.analysis.figures.change_points import CONTEXT
from driftscope.analysis.number_words import between, count, listed, moment, number, percent, points
from driftscope.analysis.query.row_filters import NEAR_TOKENS
from driftscope.analysis.statistics.intervals import Interval, ratio
from driftscope.analysis.statistics.ratio import LOW_CLUSTERS
from driftscope.analysis.statistics.strata import ENOUGH_REQUESTS, Contrast
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.case import Case, Need, ReplayCase, Threshold, entry, question
from driftscope.findings.causes import (
    EVEN_WITHIN,
    NOTHING_BELOW,
    ablate_command,
    dead_depth,
    fall_words,
    falls,
    is_even,
    unless_normed,
)
from driftscope.findings.finding import (
    Answer,
    Finding,
    Number,
    Severity,
    Topic,
    Trust,
    figure,
    judged,
)
from driftscope.vocabulary import Region

COLLAPSE_BELOW = Threshold(
    name="COLLAPSE_BELOW",
    value=0.7,
    means="accepted tokens per round, longest contexts over shortest",
    source="middle of 0.53 and 0.92, published by context length in speculators#684",
)
LONG_FROM = Threshold(
    name="LONG_FROM",
    value=512,
    means="least tokens of the longest contexts",
    source="a choice; figures by context length are published from 2k on (speculators#684)",
)
"""Between shorter contexts a difference is that of the prompts."""
LOST_ABOVE = Threshold(
    name="LOST_ABOVE",
    value=0.1,
    means="share of the run's accepted tokens that its long contexts cost, for high severity",
    source="driftscope: at this loss the best K begins to change",
)
SENSITIVE_BELOW = Threshold(
    name="SENSITIVE_BELOW",
    value=0.8,
    means="accepted tokens per round, worst label over best",
    source="between 0.74 (without BOS) and 0.93 (post-norm drafter), as orientation from arXiv "
    "2605.09992",
)
LEAST_PART = 0.5
"""Share of the doublings between the shortest and the longest contexts that one label must span
before the context is ruled out as the reason: a collapse begins at some length."""
_LABELS_SHOWN = 4
_OR_NORMS = " or EAGLE-3.1's norms"
_NORMS_HELP = "; EAGLE-3.1's norms make it less sensitive"
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
    met=lambda case: (
        len(usable(case.run.groups.label)) > 1 and len(usable(case.run.groups.context)) > 1
    ),
)
KEEPS_BELOW = Threshold(
    name="KEEPS_BELOW",
    value=0.75,
    means="accepted tokens per round, one kind of text over the other text of the same answers",
    source="driftscope's own bound",
)
LEAST_SHARE = Threshold(
    name="LEAST_SHARE",
    value=0.05,
    means="smallest share of the rounds",
    source="driftscope's own bound",
)
"""A rarer kind of text changes little, whatever it accepts."""
WORDS = {
    Region.PROSE: "in prose",
    Region.CODE: "in code",
    Region.DIFF: "in changed lines of a diff",
    Region.JSON: "in JSON",
    Region.THINKING: "in thinking",
    Region.MARKUP: "in tables and list marks",
    Region.NUMBER: "in numbers and formulae",
    Region.TEMPLATE: "at special tokens",
    Region.GUIDED: "in answers under a regular expression, choice or grammar",
}
"""Each region in a sentence."""
_TEXT = Need[Case](
    words="regions of answers (DRIFTSCOPE_REGIONS) with two kinds of text in "
    f"{ENOUGH_REQUESTS} requests",
    met=lambda case: any(
        contrast.requests >= ENOUGH_REQUESTS for contrast in case.run.groups.regions_within_request
    ),
)
_BEGINS = Need[Case](
    words="regions of answers (DRIFTSCOPE_REGIONS) in which a block of text begins, in "
    f"{ENOUGH_REQUESTS} requests",
    met=lambda case: (
        case.run.groups.boundary_within_request is not None
        and case.run.groups.boundary_within_request.requests >= ENOUGH_REQUESTS
    ),
)


def _else_between(case: Case, contrast: Contrast) -> str:
    """Return a clause on what else may explain the difference of two labels: what another drafter
    on the same prompts would show as well."""
    side = case.run.side
    if side is None:
        return ""
    return comparability_of_parts(
        side.labelled(contrast.first), side.labelled(contrast.second), "the two labels"
    ).doubt(Claim.ACCEPTANCE)


def _evidence(contrast: Contrast, bound: Threshold, better: str, worse: str) -> dict[str, Number]:
    """Return the figures of two parts, named `better` and `worse`, of which one may keep less than
    `bound` of the other's tokens."""
    return {
        f"mean_length_{better}": contrast.first_length,
        f"mean_length_{worse}": contrast.second_length,
        **figure("kept", contrast.kept, contrast.kept_interval),
        "p": contrast.p,
        "threshold": bound.value,
    }


def _reference_kept(reference: RunSummary | None, contrast: Contrast) -> tuple[float | None, bool]:
    """Return the share of accepted tokens that the reference run keeps between the same two labels,
    in the same contexts, and whether `contrast` surely keeps less; None and False if it is not
    known.

    One run cannot tell a drafter from its prompts: those of one label may be harder for any. The
    two intervals are treated as independent. On paired prompts they are correlated, and the
    comparison is then too cautious to say that one run loses more.
    """
    names = {contrast.first, contrast.second}
    pairs = () if reference is None else reference.groups.labels_within_context
    theirs = next((pair for pair in pairs if {pair.first, pair.second} == names), None)
    spread = None if theirs is None else theirs.kept_interval
    if theirs is None or spread is None or not min(theirs.kept, spread.low) > 0:
        return None, False
    kept = theirs.kept
    if theirs.first != contrast.first:
        kept, spread = 1 / kept, Interval.between(1 / spread.high, 1 / spread.low)
    kept_ratio = ratio(contrast.kept, contrast.kept_interval, kept, spread)
    return kept, contrast.kept == 0 or (kept_ratio is not None and kept_ratio[1].high < 1.0)


CAME_ABOVE = Threshold(
    name="CAME_ABOVE",
    value=0.5,
    means="rise of the share of contexts with which acceptance fell at a moment, from which "
    "whatever else changed then may be the reason",
    source="driftscope's own bound",
)


def _moment_they_came(case: Case) -> float | None:
    """Return the Unix time at which other contexts came and acceptance fell; None if there is no
    such moment."""
    moved = None if case.run.changes is None else case.run.changes.raw
    if moved is None:
        return None
    came = [kind for kind in moved.newcomers if kind.kind == CONTEXT]
    rise = sum(kind.share_after - kind.share_before for kind in came)
    return moved.time_s if rise > CAME_ABOVE.value else None


@entry(
    title="Acceptance collapses in long contexts",
    topic=Topic.WHERE,
    thresholds=(COLLAPSE_BELOW, LONG_FROM, LOST_ABOVE, CAME_ABOVE),
    need=_CONTEXT,
)
def long_context_collapse(case: Case) -> Finding | None:
    """Rounds in the longest contexts accept clearly fewer tokens than those in the shortest, under
    the same labels and at the same places in the answer. Differences between contexts below 512
    tokens are left to the prompts. The severity is high only if the whole run loses by it, and if
    they did not come all at once when acceptance fell."""
    contrast = case.run.groups.context_within_label
    if contrast is None or _begin(contrast.second) < LONG_FROM.value:
        return None
    if not contrast.loses(COLLAPSE_BELOW.value):
        return None
    groups = usable(case.run.groups.context)
    parts = groups[1:] if len(contrast.strata) == 1 else _groups_called(groups, contrast.second)
    trust, because = _trust(contrast, COLLAPSE_BELOW.value)
    came_s = _moment_they_came(case)
    much = case.share_lost(parts, contrast.first_length) > LOST_ABOVE.value
    return Finding(
        severity=Severity.HIGH if much and came_s is None else Severity.MEDIUM,
        answer=Answer.CANNOT_TELL
        if came_s is not None
        else Answer.NO
        if trust is not Trust.LOW
        else None,
        statement=f"rounds yield {number(contrast.second_length)} tokens in contexts of "
        f"{contrast.second} and {number(contrast.first_length)} in contexts of "
        f"{contrast.first}: {percent(contrast.kept)} of the accepted "
        "tokens remain"
        + (
            ""
            if came_s is None
            else f"; they came at {moment(came_s)}, and whatever else changed then may be why"
        ),
        evidence={
            **_evidence(contrast, COLLAPSE_BELOW, "short", "long"),
            "labels": len(contrast.strata),
        },
        confidence=trust,
        because=because + _equal_shares_words("label", contrast),
        advice="Send prompts of both lengths at one time, for example with `driftscope replay`: "
        "that tells the contexts from what else changed."
        if came_s is not None
        else "The drafter was probably trained on shorter contexts: it loses acceptance "
        f"{_since(case, contrast)}. Check that vLLM applies the drafter's own rope scaling and "
        "sliding window, that its max_position_embeddings covers your contexts, and retrain on "
        "long ones or use a drafter with a sliding window"
        f"{unless_normed(case.run, _OR_NORMS)}. Until then send long contexts to a "
        "server with fewer num_speculative_tokens.",
        cost_tps=case.cost_of_losing(parts, contrast.first_length),
    )


@entry(
    title="One label accepts less than another",
    topic=Topic.WHERE,
    thresholds=(SENSITIVE_BELOW,),
    need=_LABEL,
)
def template_sensitivity(case: Case) -> Finding | None:
    """Requests with one workload label accept clearly fewer tokens than those with another, in
    contexts of the same lengths. One run cannot tell whether the drafter or the prompts are the
    reason: it is for information, unless the run that this one is compared with surely loses less
    there."""
    pairs = case.run.groups.labels_within_context
    lost = [
        contrast for contrast in pairs if contrast.loses(SENSITIVE_BELOW.value, tests=len(pairs))
    ]
    if not lost:
        return None
    contrast = min(lost, key=lambda contrast: contrast.kept)
    groups = usable(case.run.groups.label)
    trust, because = _trust(contrast, SENSITIVE_BELOW.value)
    reference, (theirs, loses_more) = case.reference, _reference_kept(case.reference, contrast)
    reference_words = (
        f"; {reference.label} keeps {percent(theirs)} of them"
        if reference and theirs is not None
        else ""
    )
    return Finding(
        severity=Severity.MEDIUM if loses_more else Severity.INFO,
        answer=Answer.NO if loses_more and trust is not Trust.LOW else None,
        statement=f'rounds yield {number(contrast.second_length)} tokens under "{contrast.second}" '
        f'and {number(contrast.first_length)} under "{contrast.first}"'
        f": {percent(contrast.kept)} of the accepted tokens remain{reference_words}"
        f"{'' if loses_more else _else_between(case, contrast)}",
        evidence={
            **_evidence(contrast, SENSITIVE_BELOW, "best", "worst"),
            "labels": len(groups),
            "ranges": len(contrast.strata),
            **({} if theirs is None else {"kept_reference": theirs}),
        },
        confidence=trust,
        because=because + _equal_shares_words("context length", contrast),
        advice=f'Compare the prompts of "{contrast.second}" with what the drafter was trained on: '
        "the chat template, its first token (BOS), system prompts, language. Use the drafter's own "
        "template with --chat-template, or train the drafter on yours"
        f"{unless_normed(case.run, _NORMS_HELP)}."
        if loses_more
        else "Labels differ for every drafter: compare with another drafter on the same prompts "
        "(driftscope compare) before you blame this one or its template.",
        cost_tps=case.cost_of_losing(
            groups if len(groups) == 2 else _groups_called(groups, contrast.second),
            contrast.first_length,
        ),
    )


@entry(
    title="Context length and label cannot be separated",
    topic=Topic.WHERE,
    thresholds=(COLLAPSE_BELOW, SENSITIVE_BELOW),
    need=_BOTH,
)
def context_or_label(case: Case) -> Finding | None:
    """Rounds in long contexts, or of one label, accept clearly fewer tokens, and too few requests
    with different labels have contexts of the same lengths: the run does not show which of the two
    is the reason."""
    open_ = [words for words in (_open_context(case), _open_label(case)) if words]
    if not open_:
        return None
    return Finding(
        severity=Severity.INFO,
        statement=f"{'; '.join(open_)}. Labels differ in context length here, so the run does not "
        f"show which of the two is the reason: {_where(case)}",
        evidence={"labels": len(usable(case.run.groups.label)), "requests": ENOUGH_REQUESTS},
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
    groups, labels = usable(case.run.groups.context), usable(case.run.groups.label)
    if len(groups) < 2 or len(labels) < 2 or _begin(groups[-1].name) < LONG_FROM.value:
        return ""
    kept = kept_of(groups[0], groups[-1], tests=1)
    if kept is None or not kept[0] < COLLAPSE_BELOW.value:
        return ""
    within = case.run.groups.context_within_label
    if within is not None:
        part = _doublings(within.first, within.second) / _doublings(groups[0].name, groups[-1].name)
        if _is_decided(within, COLLAPSE_BELOW.value, part=part):
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
    labels = usable(case.run.groups.label)
    parts = (
        _open_pair(case, [label for label in labels if origin_of(label.name) == origin])
        for origin in origins(label.name for label in labels)
    )
    return next(filter(None, parts), "")


def _open_pair(case: Case, labels: Sequence[Group]) -> str:
    """Return the same for labels of one origin."""
    if len(usable(case.run.groups.context)) < 2 or len(labels) < 2:
        return ""
    best = max(labels, key=lambda g: g.mean_length)
    worst = min(labels, key=lambda g: g.mean_length)
    kept = kept_of(best, worst, tests=len(labels) - 1)
    if kept is None or not kept[0] < SENSITIVE_BELOW.value:
        return ""
    pairs = case.run.groups.labels_within_context
    names = {best.name, worst.name}
    pair_found = next((pair for pair in pairs if {pair.first, pair.second} == names), None)
    decided = _is_decided(pair_found, SENSITIVE_BELOW.value, tests=max(len(pairs), 1))
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
    contexts = case.run.groups.contexts_of_labels
    parts = [
        f'"{label}" has contexts of {_range(names)}' for label, names in contexts.items() if names
    ][:_LABELS_SHOWN]
    return listed(parts) or "no label has enough requests in one range of lengths"


def _range(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0].split(' to ')[0]} to {names[-1].split(' to ')[-1]}"


def _groups_called(groups: Sequence[Group], name: str) -> list[Group]:
    return [group for group in groups if group.name == name]


def _equal_shares_words(what: str, contrast: Contrast) -> str:
    """Return what is held equal, in words; "" if there is only one stratum."""
    return (
        f"; both are compared at equal shares of {len(contrast.strata)} {what}s"
        if len(contrast.strata) > 1
        else ""
    )


def _since(case: Case, contrast: Contrast) -> str:
    """Return in words the first range of contexts that loses acceptance, if labels cannot be the
    reason."""
    groups = usable(case.run.groups.context)
    if len(contrast.strata) > 1 or not groups or groups[0].name != contrast.first:
        return f"in contexts of {contrast.second}"
    lost = (
        g
        for g in groups[1:]
        if (kept_of(groups[0], g, tests=1) or (1.0,))[0] < COLLAPSE_BELOW.value
    )
    first = next(lost, None)
    return f"from {first.name if first else contrast.second} on"


@entry(
    title="One kind of text accepts less",
    topic=Topic.WHERE,
    thresholds=(KEEPS_BELOW, LEAST_SHARE),
    need=_TEXT,
)
def region_costs(case: Case) -> Finding | None:
    """Rounds that draft one kind of text (code, JSON, numbers, ...) accept clearly fewer tokens
    than those that draft the other text of the same answers, at the same places in them."""
    all_pairs = case.run.groups.regions_within_request
    lost = [contrast for contrast in all_pairs if _is_large(case, contrast, len(all_pairs))]
    if not lost:
        return None
    contrast = max(lost, key=lambda contrast: _lost(case, contrast))
    share, missing = _share(case, contrast.second), _lost(case, contrast)
    run, of_all = case.run, (case.run.acceptance.mean_length - 1.0) * case.run.rounds
    trust, because = judged(contrast.requests, contrast.kept_interval, below=KEEPS_BELOW.value)
    return Finding(
        severity=Severity.INFO,
        statement=f"{WORDS[contrast.second]} ({percent(share)} of the rounds) a round yields "
        f"{number(contrast.second_length)} tokens, in the other text of the same answers "
        f"{number(contrast.first_length)}; {percent(missing / (of_all + missing))} of the tokens "
        "that could be accepted are missing there",
        evidence={
            **_evidence(contrast, KEEPS_BELOW, "others", "region"),
            "share_of_rounds": share,
            "requests": contrast.requests,
        },
        confidence=trust,
        because=because,
        advice="Kinds of text differ for every drafter: compare with another drafter on the same "
        "prompts (driftscope compare) before you blame this one. If it stays behind there, train "
        "it on answers with such text, or send these requests to a server with fewer "
        "num_speculative_tokens.",
        cost_tps=case.cost_of(run.acceptance.mean_length + missing / run.rounds),
    )


@entry(
    title="Acceptance dips where a block of text begins",
    topic=Topic.WHERE,
    thresholds=(KEEPS_BELOW,),
    need=_BEGINS,
)
def boundary_dip(case: Case) -> Finding | None:
    """Rounds at the first tokens of a block of text accept clearly fewer tokens than those in the
    rest of the same kind of text in the same answers."""
    contrast = case.run.groups.boundary_within_request
    if contrast is None or contrast.requests < ENOUGH_REQUESTS:
        return None
    if not contrast.loses(KEEPS_BELOW.value):
        return None
    trust, because = judged(contrast.requests, contrast.kept_interval, below=KEEPS_BELOW.value)
    return Finding(
        severity=Severity.INFO,
        statement=f"rounds at the first {NEAR_TOKENS} tokens of a code block, tool call, table or "
        f"the text after one yield {number(contrast.second_length)} tokens, and "
        f"{number(contrast.first_length)} in the rest of the same kind of text in the same answers",
        evidence={
            **_evidence(contrast, KEEPS_BELOW, "rest", "begin"),
            "requests": contrast.requests,
        },
        confidence=trust,
        because=because,
        advice="The first tokens of a block are harder to guess for every drafter. If another "
        "drafter loses less on the same prompts (driftscope compare), train this one on answers "
        "that change between prose, code and tool calls.",
    )


def _is_large(case: Case, contrast: Contrast, tests: int) -> bool:
    enough = contrast.requests >= ENOUGH_REQUESTS
    has_share = _share(case, contrast.second) >= LEAST_SHARE.value
    return enough and has_share and contrast.loses(KEEPS_BELOW.value, tests=tests)


def _share(case: Case, region: str) -> float:
    """Return a region's share of the rounds whose region is known."""
    groups = case.run.groups.region
    known = sum(group.rounds for group in groups)
    return sum(group.rounds for group in groups if group.name == region) / max(known, 1)


def _lost(case: Case, contrast: Contrast) -> float:
    """Return the tokens that the region's rounds would yield in addition if they accepted as the
    other text of their answers does."""
    rounds = sum(g.rounds for g in case.run.groups.region if g.name == contrast.second)
    return rounds * max(contrast.first_length - contrast.second_length, 0.0)


@question("Is acceptance even along the chain?", Topic.WHERE)
def even_along_chain(case: Case) -> Finding | None:
    """Return whether acceptance is even along the chain; None for a dead drafter, which loses
    everything everywhere.

    Rounds that get to a depth are the easy ones, so rates that do not fall show nothing, unless
    they leave no room for a loss.
    """
    run, rates = case.run, case.run.acceptance.conditional
    if run.acceptance.marginal[0] < NOTHING_BELOW.value:
        return None
    dead = dead_depth(run)
    if dead is not None:
        return Finding(
            answer=Answer.NO,
            statement=f"acceptance ends at depth {dead}: {percent(rates[dead - 1])} of the tokens "
            "that get there are accepted",
        )
    if run.fall is not None and falls(run):
        return Finding(
            answer=Answer.NO,
            statement=f"acceptance falls along the chain, by {points(run.fall.lost)} or more from "
            f"depth {run.fall.first} to depth {run.fall.depth}",
            estimate=run.fall.lost,
            interval=run.fall.interval,
        )
    if run.k == 1:
        return Finding(statement=f"{percent(rates[0])} of the draft tokens are accepted")
    ends = f"{percent(rates[0])} at depth 1, {percent(rates[-1])} at depth {run.k}"
    if is_even(run):
        return Finding(
            answer=Answer.YES,
            statement="acceptance is even along the chain: of the tokens that get to a depth, "
            f"{ends} are accepted, and no depth can have lost more than {points(EVEN_WITHIN)}",
        )
    command = ablate_command(run)
    if run.fall is not None and run.fall.interval.low > 0:
        ends = fall_words(run.fall)
    else:
        ends = (
            f"of the tokens that get to a depth, {ends} are accepted, but only easy rounds get deep"
        )
    return Finding(
        answer=Answer.CANNOT_TELL,
        statement=f"acceptance alone cannot tell how much is lost along the chain: {ends}",
        advice=f"To know: {command}."
        if command
        else "To know, compare it with another drafter of the same target, on the same prompts.",
    )


RANKS_APART = Threshold(
    name="RANKS_APART",
    value=0.01,
    means="RMS of the state fed forward on another rank, as a share of the difference from rank 0",
    source="driftscope: sums over ranks are equal on all of them to the last bits",
)
REPLICA_BELOW = Threshold(
    name="REPLICA_BELOW",
    value=0.9,
    means="accepted tokens per round, the worst replica over the best",
    source="driftscope: at this loss the best K begins to change",
)
OTHER_MIX = Threshold(
    name="OTHER_MIX",
    value=0.1,
    means="difference of a label's share of the requests that may explain one of replicas",
    source="driftscope, as MIX_SHIFT",
)


@entry(
    title="A tensor-parallel rank holds another state",
    topic=Topic.INSIDE,
    thresholds=(RANKS_APART,),
    need=Need[Case](
        words="states of two tensor-parallel ranks",
        met=lambda case: case.run.rank_states is not None,
    ),
)
def rank_differs(case: Case) -> Finding | None:
    """The drafter feeds another hidden state to its next depth on one tensor-parallel rank than on
    the first. After each layer the ranks add up their parts, so that all hold the same state: where
    they do not, a sum over ranks is missing in the engine's drafter."""
    states = case.run.rank_states
    if states is None or states.difference < RANKS_APART.value:
        return None
    return Finding(
        severity=Severity.HIGH,
        answer=Answer.NO,
        statement=f"the state fed forward on rank {states.rank} differs from that on rank 0 by "
        f"{percent(states.difference)} (RMS, mean over {count(states.chains, 'chain')})",
        evidence={
            "rank": states.rank,
            "difference": states.difference,
            "chains": states.chains,
            "threshold": RANKS_APART.value,
        },
        confidence=Trust.HIGH,
        because="both ranks recorded the same chains",
        advice="Report it to the engine: its drafter lacks a sum over ranks (all-reduce) after "
        "some layer. Until it is fixed, serve with tensor_parallel_size 1 for the drafter "
        "(`draft_tensor_parallel_size`) or without it.",
    )


@entry(
    title="One replica accepts less than another",
    topic=Topic.WHERE,
    thresholds=(REPLICA_BELOW, OTHER_MIX),
    need=Need[Case](
        words=f"two replicas with {ENOUGH_REQUESTS} requests each",
        met=lambda case: len(usable(case.run.groups.replica)) > 1,
    ),
)
def replica_differs(case: Case) -> Finding | None:
    """Requests that one data-parallel replica served accept clearly fewer tokens than those of
    another. Replicas run the same models, so that a replica differs for a reason of its own, unless
    the router sends it other requests."""
    groups = usable(case.run.groups.replica)
    if len(groups) < 2:
        return None
    best, worst = (choose(groups, key=lambda group: group.mean_length) for choose in (max, min))
    kept = kept_of(best, worst, tests=len(groups) * (len(groups) - 1) // 2)
    if kept is None or not kept[0] < REPLICA_BELOW.value:
        return None
    doubt = _other_requests(case, best, worst)
    trust, because = judged(min(best.requests, worst.requests), kept[1], below=REPLICA_BELOW.value)
    return Finding(
        severity=Severity.INFO if doubt else Severity.MEDIUM,
        answer=Answer.CANNOT_TELL if doubt else Answer.NO if trust is not Trust.LOW else None,
        statement=f"rounds yield {number(worst.mean_length)} tokens on replica {worst.name} and "
        f"{number(best.mean_length)} on replica {best.name}: {percent(kept[0])} of the accepted "
        f"tokens remain{doubt}",
        evidence={
            "mean_length_best": best.mean_length,
            "mean_length_worst": worst.mean_length,
            **figure("kept", *kept),
            "replicas": len(groups),
            "threshold": REPLICA_BELOW.value,
        },
        confidence=trust,
        because=because,
        advice=f"Restart replica {worst.name}, and compare its versions, weights and flags with "
        f"those of replica {best.name}: `--where 'replica = {worst.name}'` analyses it alone.",
        cost_tps=case.cost_of_losing([worst], best.mean_length),
    )


def _beside_others(case: ReplayCase) -> list[tuple[str, float, Interval]]:
    """Return the fleet's replicas with the share of the tokens that they keep of those that the
    others accept on the same kinds of rounds, the worst first."""
    found = []
    for cell in case.run.cells if case.run.rollups is not None else ():
        ratio, length = cell.length_ratio, cell.mean_length
        if ratio is None or ratio.interval is None or length is None:
            continue
        others = length / ratio.value
        if others > 1.0:  # a ratio of lengths has the target's own token on both sides
            kept, low, high = (
                max(0.0, (others * part - 1.0) / (others - 1.0))
                for part in (ratio.value, ratio.interval.low, ratio.interval.high)
            )
            if (spread := Interval.between(low, high)) is not None:
                found.append((cell.condition, kept, spread))
    return sorted(found, key=lambda replica: replica[1])


@entry(
    about=ReplayCase,
    title="A replica of a fleet accepts less than the others",
    topic=Topic.WHERE,
    thresholds=(REPLICA_BELOW,),
    need=Need[ReplayCase](
        words="rollups of two replicas that served the same kinds of requests, over 5 or more "
        "spans of minutes",
        met=lambda case: bool(_beside_others(case)),
    ),
)
def fleet_replica_differs(case: ReplayCase) -> Finding | None:
    """In the rollups of a fleet, a replica accepts clearly fewer tokens than the others do at the
    same depths of the same labels, adapters, texts and contexts. The interval is over spans of
    time, includes how much healthy replicas differ, and holds for all replicas together."""
    ranked = _beside_others(case)
    below = [one for one in ranked if one[1] < REPLICA_BELOW.value and one[2].high < 1.0]
    if not below:
        return None
    name, kept, spread = below[0]
    more = f"; so do {listed([other for other, *_ in below[1:]])}" if len(below) > 1 else ""
    others = len(ranked) - 1
    return Finding(
        severity=Severity.MEDIUM,
        answer=Answer.NO,
        statement=f"{name} accepts {percent(kept)}{between(spread)} of the tokens "
        f"that {count(others, 'other replica')} accept on the same labels, adapters, texts and "
        "contexts"
        f"{more}",
        evidence={
            **figure("kept", kept, spread),
            "below": len(below),
            "replicas": len(ranked),
            "threshold": REPLICA_BELOW.value,
        },
        confidence=Trust.HIGH if spread.high < REPLICA_BELOW.value else Trust.MEDIUM,
        because=f"the interval holds for all {count(len(ranked), 'replica')} together, and "
        "includes how minutes and healthy replicas differ",
        advice=f"Compare version, weights, flags and hardware of {name} with another replica's, "
        "and restart it. `driftscope analyze RUN` of its own run says why it accepts less.",
    )


def _other_requests(case: Case, best: Group, worst: Group) -> str:
    """Return a clause on what else differs between the requests of two replicas."""
    side = case.run.side
    if side is None or side.requests is None:
        return ""
    replica = side.requests.replica[side.rounds.request].astype(str)
    first, second = (side.of(replica == group.name) for group in (best, worst))
    a, b = Counter(first.labels), Counter(second.labels)
    if labels := sorted(
        label
        for label in {*a, *b}
        if abs(a[label] / max(a.total(), 1) - b[label] / max(b.total(), 1)) > OTHER_MIX.value
    ):
        return f"; the router sends them other labels ({listed(labels)}), which may explain it"
    return comparability_of_parts(first, second, "the two replicas").doubt(Claim.ACCEPTANCE)
