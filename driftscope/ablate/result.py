"""The result of an ablation: every effect, and the parts of the loss over depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.ablate.intervention import (
    AS_SERVED,
    FACTORIAL,
    INTERVENTIONS,
    RIGHT_BOTH,
    RIGHT_STATES,
    RIGHT_TOKENS,
    Intervention,
)
from driftscope.analysis.figures.near_misses import NearMisses, share_of
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import Ratio, intervals, ratio_of
from driftscope.boundary.json_document import ABLATION, text, written_property
from driftscope.inspect.trial.result import TrialAcceptance, acceptance_of, gain
from driftscope.vocabulary import Region

RegionTokens = Mapping[str, tuple[int, int]]
"""Tokens of one answer, and those among them that the draft vocabulary lacks, by region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCoverage:
    """Tokens of one kind of text in the target's answers."""

    region: str
    """One of `Region.ALL`."""
    tokens: int
    lacking: float
    """Share of these tokens that the drafter cannot draft."""
    interval: Interval | None
    """95% interval of `lacking` over prompts; None with too few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyCoverage:
    """Tokens of the target's answers that the draft vocabulary lacks."""

    lacking: float
    """Share of all tokens; 0 if the drafter has the target's whole vocabulary."""
    by_region: tuple[RegionCoverage, ...]
    """Regions that occur, in the order of `Region.ALL`."""

    @property
    def words(self) -> str:
        """The share in words."""
        return (
            f"{self.lacking:.1%} of the tokens of the target's answers are not in the draft "
            "vocabulary: a chain ends at each of them."
        )


def coverage_of(answers: Sequence[RegionTokens]) -> VocabularyCoverage:
    """Return the shares from the counts of each prompt's answer. Prompts are the clusters of the
    intervals."""
    rows = [[answer.get(region, (0, 0)) for region in Region.ALL] for answer in answers]
    counts = np.array(rows, float).reshape(len(answers), len(Region.ALL), 2)
    whole, found = counts.sum(axis=(0, 1)), list[RegionCoverage]()
    for region, of_prompts in zip(Region.ALL, counts.swapaxes(0, 1), strict=True):
        occurring = of_prompts[of_prompts[:, 0] > 0]
        if len(occurring):
            lacking, interval = share_of(occurring[:, 1:], occurring[:, :1])
            tokens = int(occurring[:, 0].sum())
            found.append(
                RegionCoverage(region=region, tokens=tokens, lacking=lacking, interval=interval)
            )
    lacking = float(whole[1] / whole[0]) if whole[0] else 0.0
    return VocabularyCoverage(lacking=lacking, by_region=tuple(found))


Matches = NDArray[np.bool_]
"""Whether each drafted token is the target's, [positions of one prompt, K]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One term of the loss, as a share of all positions."""

    value: float
    interval: Interval | None
    """95% interval over prompts; None with too few of them."""
    orders: tuple[float, float] | None = None
    """Gains from the factor while the other one is the drafter's own, and while it is right;
    None for a term that is no factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """Terms of the loss of agreement between depth 1 and depth K."""

    first: float
    """Agreement at depth 1."""
    last: float
    """Agreement at depth K as served."""
    loss: Part
    tokens: Part
    states: Part
    rest: Part

    @property
    def named(self) -> tuple[tuple[str, Part], ...]:
        """The terms with their names, the loss last."""
        return (
            ("the drafter's own states", self.states),
            ("wrong tokens read (cost no acceptance)", self.tokens),
            ("the rest (later positions)", self.rest),
            ("lost in all", self.loss),
        )

    def words(self, k: int) -> str:
        """Agreement at depth 1 and at depth `k`, in words."""
        return (
            f"The drafted token is the target's in {self.first:.1%} of the positions at depth 1, "
            f"and in {self.last:.1%} at depth {k}, whatever came before it in the chain."
        )


WRONG_TOKENS = (
    "Wrong tokens cost no acceptance. A chain is accepted up to its first wrong token, and up to "
    "there it has read the target's tokens. Their part says how useless a chain is after its first "
    "error, which matters for trees and for longer K. What can raise acceptance are the states and "
    "a better depth 1."
)
PARTS = (
    "What a factor gives back depends on whether the other one is right already. Each part is the "
    "mean of both orders (the Shapley value of two factors), so that the parts add up exactly. "
    "Where both orders differ much, the two factors act together."
)
"""Explanations of the decomposition."""
_COLUMNS = ("first", *FACTORIAL)
_FACTORS = {
    "loss": {"first": 1.0, AS_SERVED: -1.0},
    "tokens": {RIGHT_TOKENS: 0.5, AS_SERVED: -0.5, RIGHT_BOTH: 0.5, RIGHT_STATES: -0.5},
    "states": {RIGHT_STATES: 0.5, AS_SERVED: -0.5, RIGHT_BOTH: 0.5, RIGHT_TOKENS: -0.5},
    "rest": {"first": 1.0, RIGHT_BOTH: -1.0},
}
"""Coefficients of each term on the columns."""


def decompose(matches: Mapping[str, Sequence[Matches]]) -> Decomposition | None:
    """Return the decomposition from the matches of each intervention by prompt; None if one of
    FACTORIAL is missing or the chain has one depth. Prompts are the clusters of the intervals."""
    if any(name not in matches for name in FACTORIAL) or matches[AS_SERVED][0].shape[1] < 2:
        return None
    served = matches[AS_SERVED]
    columns = [(served, 0), *((matches[name], -1) for name in FACTORIAL)]
    hits = [[match[:, depth].sum() for match in column] for column, depth in columns]
    counts = np.array([[len(match)] for match in served], float)
    shares = ratio_of(np.array(hits, float).T, np.repeat(counts, len(hits), axis=1))
    value = dict(zip(_COLUMNS, shares.value.tolist(), strict=True))
    orders = {
        part: (value[one] - value[AS_SERVED], value[RIGHT_BOTH] - value[other])
        for part, one, other in (
            ("tokens", RIGHT_TOKENS, RIGHT_STATES),
            ("states", RIGHT_STATES, RIGHT_TOKENS),
        )
    }
    parts = {name: _combination(shares, name, orders.get(name)) for name in _FACTORS}
    return Decomposition(first=value["first"], last=value[AS_SERVED], **parts)


def _combination(shares: Ratio, name: str, orders: tuple[float, float] | None = None) -> Part:
    """Return a linear combination of the columns with its interval."""
    weights = np.array([_FACTORS[name].get(column, 0.0) for column in _COLUMNS])
    one = Ratio(
        value=np.array([shares.value @ weights]),
        influence=(shares.influence @ weights)[:, None],
        df=shares.df[:1],
        units=shares.units[:1],
        heaviest=shares.heaviest[:1],
        share=shares.share[:, :1],
    )
    spread = intervals(one)
    return Part(value=float(one.value[0]), interval=spread[0] if spread else None, orders=orders)


Figures = Mapping[str, tuple[float | None, ...]]
"""Figures by name and depth; None for one that is not finite."""


def overflows_at(figures: Figures) -> int | None:
    """Return the first depth at which a figure is not finite; None if all are."""
    depths = (at for row in figures.values() for at, value in enumerate(row, 1) if value is None)
    return min(depths, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Results of one intervention, compared with the chain as served."""

    intervention: Intervention
    prompts: int
    """Number of prompts that are compared."""
    acceptance: TrialAcceptance
    """Acceptance over all positions; each counts as a round."""
    agreement: tuple[float, ...]
    """Share of the positions whose token at depth d is the target's, whatever came before."""
    conditional: tuple[float | None, ...]
    """Share of the chains accepted up to depth d - 1 that are accepted at d; None if there is
    none."""
    figures: Figures
    """Means by depth of RMS, top-1 probability and attention masses."""
    difference: float
    """Acceptance length minus that as served, over the same prompts."""
    interval: Interval | None
    """Interval of the difference, clustered by prompt, at a level that holds for all interventions
    together; None with too few prompts."""

    @written_property
    def words(self) -> str:
        """Effect on acceptance, in words."""
        with_it = f"with {self.intervention.changes}"
        if depth := overflows_at(self.figures):
            with_it += f", whose states are not finite from depth {depth} on"
        if self.interval is None:
            change = f"{self.difference:+.2f} tokens per round"
            return f"{with_it}: {change}; cannot tell: give more prompts"
        low, high = self.interval.low, self.interval.high
        span = f"{self.difference:+.2f} [{low:+.2f}, {high:+.2f}] tokens per round"
        if not self.interval.excludes_zero():
            return f"{with_it}: no change beyond chance, {span}"
        return f"{with_it}: changes acceptance length by {span}"


def _effect(
    made: Intervention,
    matches: Sequence[Matches],
    as_served: Sequence[Sequence[int]],
    figures: Figures,
    comparisons: int,
) -> Effect:
    """Return the effect, from the matches and the accepted tokens as served of the same prompts;
    `comparisons` is the number of effects whose intervals hold together."""
    accepted = _accepted(matches)
    acceptance = acceptance_of(accepted, matches[0].shape[1])
    paired = gain(as_served, accepted, max(comparisons, 1))
    before = (1.0, *acceptance.marginal[:-1])
    pairs = zip(before, acceptance.marginal, strict=True)
    return Effect(
        intervention=made,
        prompts=len(matches),
        acceptance=acceptance,
        agreement=tuple(np.concatenate(list(matches)).mean(axis=0).tolist()),
        conditional=tuple(b / a if a > 0 else None for a, b in pairs),
        figures=figures,
        difference=paired.difference,
        interval=paired.interval,
    )


def _accepted(matches: Sequence[Matches]) -> list[list[int]]:
    """Return the leading matches of each position, by prompt."""
    return [match.cumprod(axis=1, dtype=np.int64).sum(axis=1).tolist() for match in matches]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Results for one drafter beside one target."""

    drafter: str
    target: str
    k: int
    prompts: int
    positions: int
    effects: tuple[Effect, ...]
    """Effect of each intervention, the chain as served first."""
    decomposition: Decomposition | None
    """None if an intervention that it needs was not asked for."""
    vocabulary: VocabularyCoverage
    near_misses: NearMisses | None
    """None if every chain is accepted up to K."""
    not_applicable: Mapping[str, str]
    """Interventions that change nothing in this drafter, with the reason."""
    stopped: bool = False
    """Whether Ctrl-C ended it before all prompts were measured."""

    @property
    def where(self) -> str:
        """The positions of its chains, in words."""
        return f"{self.positions:,} positions of {self.prompts} prompts, K = {self.k}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """Conclusion of an ablation about acceptance, with what to do."""

    costs: bool
    """Whether something along the chain surely costs acceptance."""
    headline: str
    advice: str


def conclusion_of(result: Ablation) -> Conclusion:
    """Return what can raise acceptance: the states, if right ones raise it, and else depth 1.

    Wrong tokens that a chain reads cost agreement, but no acceptance: a chain ends at its first
    wrong token. So the parts of the lost agreement say nothing about acceptance.
    """
    served = result.effects[0].acceptance.mean_length
    states = next((e for e in result.effects if e.intervention.id == RIGHT_STATES), None)
    if states is None:
        words = "; ".join(effect.words for effect in result.effects[1:]) or "nothing was changed"
        return Conclusion(
            costs=False,
            headline=f"What the drafter's own states cost was not asked: {words}.",
            advice=f"Add {RIGHT_STATES} to --interventions.",
        )
    ends = states.interval
    interval = f" ({ends.low:+.2f} to {ends.high:+.2f})" if ends else ""
    yields = (
        f"with the target's states the {served:.2f} tokens per round change by "
        f"{states.difference:+.2f}{interval}"
    )
    if ends is None:
        return Conclusion(
            costs=False,
            headline=f"Whether the drafter's own states cost acceptance cannot be told: {yields}.",
            advice="Give more prompts.",
        )
    if ends.low > 0:
        return Conclusion(
            costs=True,
            headline=f"The drafter's own states cost acceptance: {yields}.",
            advice="Train the drafter on its own states at every depth that you draft, or use one "
            "with norm_output and fc_norm (EAGLE-3.1). Until then a smaller K may serve faster: "
            "record a run, and `driftscope advise latest` says so.",
        )
    return Conclusion(
        costs=False,
        headline=f"The drafter's own states cost no acceptance that shows: {yields}.",
        advice="Nothing along the chain has to change. What can raise acceptance is depth 1: train "
        "the drafter on your own traffic and templates.",
    )


def ablation_of(
    matches: Mapping[str, Sequence[Matches]],
    figures: Mapping[str, Figures],
    vocabulary: VocabularyCoverage,
    near_misses: NearMisses | None,
    *,
    drafter: str,
    target: str,
    not_applicable: Mapping[str, str],
) -> Ablation:
    """Return the result from the matches of each intervention by prompt, from the same positions,
    and its figures; the chains as served first."""
    served = matches[AS_SERVED]
    accepted, others = _accepted(served), len(matches) - 1
    return Ablation(
        drafter=drafter,
        target=target,
        k=served[0].shape[1],
        prompts=len(served),
        positions=sum(len(passage) for passage in served),
        effects=tuple(
            _effect(INTERVENTIONS[name], match, accepted, figures.get(name, {}), others)
            for name, match in matches.items()
        ),
        decomposition=decompose(matches),
        vocabulary=vocabulary,
        near_misses=near_misses,
        not_applicable=dict(not_applicable),
    )


def to_json(result: Ablation) -> str:
    """Return everything as a JSON document, newline at the end."""
    return text(ABLATION, result)
