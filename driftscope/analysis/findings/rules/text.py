"""Rules about acceptance that depends on the kind of text that the model writes."""

from __future__ import annotations

from driftscope.analysis.findings.catalogue_entry import Entry, Need, Threshold
from driftscope.analysis.findings.finding import Finding, Severity
from driftscope.analysis.findings.finding_confidence import ends, judged
from driftscope.analysis.findings.finding_inputs import Case
from driftscope.analysis.number_words import number, percent
from driftscope.analysis.query.row_filters import NEAR_TOKENS
from driftscope.analysis.statistics.contrast import Contrast
from driftscope.analysis.statistics.strata import ENOUGH_REQUESTS
from driftscope.vocabulary import Region

KEEPS_BELOW = 0.75
"""Accepted tokens per round in one kind of text over those in the other text of the same answers.
driftscope's own bound: kinds of text differ for any drafter."""
LEAST_SHARE = 0.05
"""Share of the rounds below which a kind of text changes little, whatever it accepts."""
MOST_SHARE = 0.5
"""Share of the rounds above which a kind of text is not the exception: the other text, which may be
a few numbers, is then what differs."""
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


def region_costs(case: Case) -> Finding | None:
    """Find the kind of text that accepts clearly less than the other text of the same answers, and
    loses the most tokens by it."""
    all_pairs = case.run.groups.regions_within_request
    lost = [each for each in all_pairs if _is_large(case, each, len(all_pairs))]
    if not lost:
        return None
    contrast = max(lost, key=lambda each: _lost(case, each))
    share, missing = _share(case, contrast.second), _lost(case, contrast)
    run, of_all = case.run, (case.run.acceptance.mean_length - 1.0) * case.run.rounds
    trust, because = judged(contrast.requests, contrast.kept_interval, below=KEEPS_BELOW)
    return Finding(
        id="region_costs",
        severity=Severity.INFO,
        runs=(run.label,),
        title="One kind of text accepts less",
        statement=f"{WORDS[contrast.second]} ({percent(share)} of the rounds) a round yields "
        f"{number(contrast.second_length)} tokens, in the other text of the same answers "
        f"{number(contrast.first_length)}; {percent(missing / (of_all + missing))} of the tokens "
        "that could be accepted are missing there",
        evidence={
            "mean_length_others": contrast.first_length,
            "mean_length_region": contrast.second_length,
            "kept": contrast.kept,
            **ends("kept", contrast.kept_interval),
            "p": contrast.p,
            "share_of_rounds": share,
            "requests": contrast.requests,
            "threshold": KEEPS_BELOW,
        },
        confidence=trust,
        because=because,
        advice="Kinds of text differ for every drafter: compare with another drafter on the same "
        "prompts (driftscope compare) before you blame this one. If it stays behind there, train "
        "it on answers with such text, or send these requests to a server with fewer "
        "num_speculative_tokens.",
        cost_tps=case.cost_of(run.acceptance.mean_length + missing / run.rounds),
    )


def boundary_dip(case: Case) -> Finding | None:
    """Find that the first tokens of blocks accept clearly less than the rest of the same kind of
    text in the same answer."""
    contrast = case.run.groups.boundary_within_request
    if contrast is None or contrast.requests < ENOUGH_REQUESTS:
        return None
    if not contrast.loses(KEEPS_BELOW):
        return None
    trust, because = judged(contrast.requests, contrast.kept_interval, below=KEEPS_BELOW)
    return Finding(
        id="boundary_dip",
        severity=Severity.INFO,
        runs=(case.run.label,),
        title="Acceptance dips where a block of text begins",
        statement=f"rounds at the first {NEAR_TOKENS} tokens of a code block, tool call, table or "
        f"the text after one yield {number(contrast.second_length)} tokens, and "
        f"{number(contrast.first_length)} in the rest of the same kind of text in the same answers",
        evidence={
            "mean_length_rest": contrast.first_length,
            "mean_length_begin": contrast.second_length,
            "kept": contrast.kept,
            **ends("kept", contrast.kept_interval),
            "p": contrast.p,
            "requests": contrast.requests,
            "threshold": KEEPS_BELOW,
        },
        confidence=trust,
        because=because,
        advice="The first tokens of a block are harder to guess for every drafter. If another "
        "drafter loses less on the same prompts (driftscope compare), train this one on answers "
        "that change between prose, code and tool calls.",
    )


def _is_large(case: Case, contrast: Contrast, tests: int) -> bool:
    enough = contrast.requests >= ENOUGH_REQUESTS
    there = LEAST_SHARE <= _share(case, contrast.second) <= MOST_SHARE
    return enough and there and contrast.loses(KEEPS_BELOW, tests=tests)


def _share(case: Case, region: str) -> float:
    """Return a region's share of the rounds whose region is known."""
    groups = case.run.groups.region
    known = sum(each.rounds for each in groups)
    return sum(each.rounds for each in groups if each.name == region) / max(known, 1)


def _lost(case: Case, contrast: Contrast) -> float:
    """Return the tokens that the region's rounds would yield in addition if they accepted as the
    other text of their answers does."""
    rounds = sum(g.rounds for g in case.run.groups.region if g.name == contrast.second)
    return rounds * max(contrast.first_length - contrast.second_length, 0.0)


_TEXT = Need[Case](
    words="regions of answers (DRIFTSCOPE_REGIONS) with two kinds of text in "
    f"{ENOUGH_REQUESTS} requests",
    met=lambda case: any(
        each.requests >= ENOUGH_REQUESTS for each in case.run.groups.regions_within_request
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
_KEEPS = Threshold(
    name="KEEPS_BELOW",
    value=KEEPS_BELOW,
    means="accepted tokens per round, one kind of text over the other text of the same answers",
    source="driftscope's own bound",
)
_SHARES = (
    Threshold(
        name="LEAST_SHARE",
        value=LEAST_SHARE,
        means="smallest share of the rounds",
        source="driftscope's own bound",
    ),
    Threshold(
        name="MOST_SHARE",
        value=MOST_SHARE,
        means="largest share of the rounds",
        source="driftscope's own bound",
    ),
)

ENTRIES = (
    Entry(
        id="region_costs",
        title="One kind of text accepts less",
        meaning="Rounds that draft one kind of text (code, JSON, numbers, ...) accept clearly "
        "fewer tokens than those that draft the other text of the same answers.",
        thresholds=(_KEEPS, *_SHARES),
        need=_TEXT,
        rule=region_costs,
    ),
    Entry(
        id="boundary_dip",
        title="Acceptance dips where a block of text begins",
        meaning="Rounds at the first tokens of a block of text accept clearly fewer tokens than "
        "those in the rest of the same kind of text in the same answers.",
        thresholds=(_KEEPS,),
        need=_BEGINS,
        rule=boundary_dip,
    ),
)
