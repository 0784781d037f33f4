"""An ablation as one HTML file that needs no network: the page on why acceptance falls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from driftscope.ablate.intervention import AS_SERVED, Intervention
from driftscope.ablate.result import (
    BRANCHES,
    Ablation,
    Decomposition,
    Effect,
    NearMisses,
    Part,
    RegionCoverage,
    VocabularyCoverage,
    conclusion_of,
)
from driftscope.metrics.confidence import AGREEMENT, LOSS_PARTS, NEAR_MISSES
from driftscope.trace.manifest import BY_DEPTH
from driftscope_reports.charts import Axis, Unit, bars, figure, line
from driftscope_reports.model import Picture, Section, figures_of, section_html, table
from driftscope_reports.page import Content, framed, part

_HOW = (
    "Share of the positions at which the drafted token is the target's, whatever came before it in "
    "the chain. Differences of acceptance length, with intervals, are in the table above."
)
_ATTENTION, _FACTORS, _STATE = "attention", "factors", "state"
_LOOKUP = "lookup"
_TITLES = {
    _FACTORS: "With the target's tokens or states",
    _STATE: "With another state or dtype",
    _ATTENTION: "With other attention",
    _LOOKUP: "With n-gram lookup",
}
"""Titles of the pictures by group, in their order."""


def agreement(result: Ablation) -> Section:
    """Return the section: one picture for each group of interventions, as served in each."""
    served, *others = result.effects
    groups = {name: [other for other in others if _group(other) == name] for name in _TITLES}
    pictures = [_picture(name, [served, *group]) for name, group in groups.items() if group]
    return Section(
        id="agreement",
        name="Agreement by depth",
        lead=f"As served it falls from {served.agreement[0]:.1%} at depth 1 to "
        f"{served.agreement[-1]:.1%} at depth {result.k}.",
        pictures=tuple(pictures) or (_picture(_FACTORS, [served]),),
    )


def _picture(group: str, effects: Sequence[Effect]) -> Picture:
    lines = [line(_name(effect), effect.agreement, run=at) for at, effect in enumerate(effects)]
    return Picture(
        id=f"agreement-{group}",
        title=_TITLES[group] if len(effects) > 1 else "As served",
        how=_HOW,
        chart=figure(lines, x_title=BY_DEPTH, y_title="of all positions", unit=Unit.SHARE),
        definitions=(AGREEMENT,),
    )


def _name(effect: Effect) -> str:
    made = effect.intervention
    return "as served" if made.id == AS_SERVED else made.id


def _group(effect: Effect) -> str:
    made: Intervention = effect.intervention
    if made.lookup:
        return _LOOKUP
    if made.right_tokens or made.right_states:
        return _FACTORS
    return _ATTENTION if made.attention else _STATE


_CAUTION = (
    "A drafter was trained as it is: an intervention that costs acceptance shows that the drafter "
    "uses what was taken, not that it is good for it. One that gains nothing does not clear its "
    "suspect, because a drafter that was trained with the change may gain."
)


def interventions(result: Ablation) -> Section:
    """Return the section of the interventions."""
    served = result.effects[0].acceptance.mean_length
    head = ["intervention", "with", "what a change shows", "acceptance length", "change"]
    return Section(
        id="interventions",
        name="What each intervention changes",
        lead=f"Acceptance length as served: {served:.2f} tokens per round, each position counting "
        "as a round. The intervals of the changes hold for all interventions together.",
        below=[
            table(
                [*head, "interval of the change", "prompts"],
                [_row(effect) for effect in result.effects],
                words=3,
                caption="Acceptance length under each intervention",
                sortable=True,
            ),
            part("paragraph", _CAUTION, "note"),
            *(
                part("paragraph", f"Not applicable: {name}: {reason}.", "note")
                for name, reason in result.not_applicable.items()
            ),
        ],
    )


def _row(effect: Effect) -> list[str]:
    made, ends = effect.intervention, effect.interval
    served = made.id == AS_SERVED
    interval = f"{ends.low:+.2f} to {ends.high:+.2f}" if ends and not served else "–"
    return [
        made.id,
        made.changes,
        made.shows or "–",
        f"{effect.acceptance.mean_length:.2f}",
        "–" if served else f"{effect.difference:+.2f}",
        interval,
        str(effect.prompts),
    ]


def vocabulary(coverage: VocabularyCoverage) -> Section:
    """Return the section on tokens that the drafter cannot draft."""
    return Section(
        id="vocabulary",
        name="Tokens that the draft vocabulary lacks",
        lead=f"{coverage.lacking:.1%} of the tokens of the target's answers are not in the draft "
        "vocabulary: a chain ends at each of them.",
        below=[
            table(
                ["kind of text", "lacking", "95% interval", "tokens"],
                [_region(region) for region in coverage.by_region],
                caption="Share of tokens that the draft vocabulary lacks, by kind of text",
                sortable=True,
            )
        ],
    )


def _region(region: RegionCoverage) -> list[str]:
    ends = region.interval
    return [
        region.region,
        f"{region.lacking:.1%}",
        f"{ends.low:.1%} to {ends.high:.1%}" if ends else "–",
        f"{region.tokens:,}",
    ]


_HOW_NEAR = (
    "Each bar is a share of the chains that end before K, at their first wrong token, as served; "
    "the target is greedy. Lines are 95% intervals over prompts. Shares overlap. A tree of n "
    "branches holds the drafter's best n tokens, and more tokens are verified for it."
)


def near_misses(found: NearMisses) -> Section:
    """Return the section on what the drafts that were rejected came close to."""
    shown = bars(
        "share of the ends",
        [*(f"best {n}" for n in BRANCHES), "second choice", "close", "lacking"][
            : len(found.shares)
        ],
        [share.value for share in found.shares],
        intervals=[share.interval for share in found.shares],
        colours=(*["run-0"] * len(BRANCHES), "same", "same", "apart")[: len(found.shares)],
    )
    picture = Picture(
        id="near-misses",
        title="How near the first wrong token was",
        how=_HOW_NEAR,
        chart=figure(
            [shown],
            x_title="where a chain ends",
            y_title="share of the ends",
            axis=Axis.CATEGORY,
            unit=Unit.SHARE,
        ),
        definitions=(NEAR_MISSES,),
    )
    rows = [
        [share.what, f"{share.value:.1%}", f"{ends.low:.1%} to {ends.high:.1%}" if ends else "–"]
        for share in found.shares
        for ends in [share.interval]
    ]
    head = ["chains that end at", "share", "95% interval"]
    return Section(
        id="near",
        name="What the rejected tokens came close to",
        lead=found.words,
        pictures=(picture,),
        below=[table(head, rows, caption="Shares of the chains that end early", sortable=True)],
    )


WRONG_TOKENS = (
    "Wrong tokens cost no acceptance. A chain is accepted up to its first wrong token, and up to "
    "there it has read the target's tokens. Their part says how useless a chain is after its first "
    "error, which matters for trees and for longer K. What can raise acceptance are the states and "
    "a better depth 1."
)
_PARTS = (
    "What a factor gives back depends on whether the other one is right already. Each part is the "
    "mean of both orders (the Shapley value of two factors), so that the parts add up exactly. "
    "Where both orders differ much, the two factors act together."
)
_HOW_LOSS = (
    "Each bar is a part of the loss between depth 1 and K, as a share of all positions; the last "
    "one is their sum. Lines are 95% intervals over prompts; a part whose interval includes 0 is "
    "not shown to exist."
)


def loss(parts: Decomposition, k: int) -> Section:
    """Return the section."""
    return Section(
        id="why",
        name="Why: what the loss is made of",
        lead=f"The drafted token is the target's in {parts.first:.1%} of the positions at depth 1, "
        f"and in {parts.last:.1%} at depth {k}, whatever came before it in the chain.",
        pictures=(_loss_picture(parts),),
        below=[
            table(
                [
                    "part",
                    "points",
                    "95% interval",
                    "other factor the drafter's",
                    "other factor right",
                ],
                [_loss_row(name, part) for name, part in _named(parts)],
                caption="Parts of the loss, in points of agreement",
            ),
            part("paragraph", WRONG_TOKENS),
            part("paragraph", _PARTS, "note"),
        ],
    )


_LABELS = ("states", "tokens", "rest", "in all")
"""Short names of the parts, in the order of `_named`."""


def _named(parts: Decomposition) -> tuple[tuple[str, Part], ...]:
    return (
        ("the drafter's own states", parts.states),
        ("wrong tokens read (cost no acceptance)", parts.tokens),
        ("the rest (later positions)", parts.rest),
        ("lost in all", parts.loss),
    )


def _loss_picture(parts: Decomposition) -> Picture:
    named = _named(parts)
    ends = [part.interval for _, part in named]
    shown = bars(
        "share of positions",
        _LABELS,
        [part.value for _, part in named],
        intervals=ends,
        colours=("run-0", "same", "same", "apart"),
    )
    return Picture(
        id="loss",
        title=f"{100 * parts.loss.value:.1f} points of agreement are lost",
        how=_HOW_LOSS,
        chart=figure(
            [shown],
            x_title="lost by",
            y_title="share of positions",
            axis=Axis.CATEGORY,
            unit=Unit.SHARE,
            level=0.0,
        ),
        definitions=(LOSS_PARTS, AGREEMENT),
        hero=True,
    )


def _loss_row(name: str, part: Part) -> list[str]:
    ends = part.interval
    orders = part.orders or (None, None)
    return [
        name,
        f"{100 * part.value:+.1f}",
        f"{100 * ends.low:+.1f} to {100 * ends.high:+.1f}" if ends else "–",
        *("–" if order is None else f"{100 * order:+.1f}" for order in orders),
    ]


def to_html(result: Ablation, *, command: str | None = None) -> str:
    """Return the page; `command` is the command line that made it, shown at its end."""
    found = [loss(result.decomposition, result.k)] if result.decomposition else []
    found += [interventions(result), agreement(result)]
    if result.near_misses is not None:
        found.append(near_misses(result.near_misses))
    if result.vocabulary.lacking:
        found.append(vocabulary(result.vocabulary))
    rows = [
        ["drafter", result.drafter],
        ["target", result.target],
        ["tokens per draft", str(result.k)],
        ["prompts", str(result.prompts)],
        ["positions", f"{result.positions:,}"],
    ]
    made = [
        *found,
        Section(
            id="provenance",
            name="What was run",
            lead="Both models ran outside any engine, on the target's own greedy answers.",
            below=[
                table(["", ""], rows, words=2, caption="What was run"),
                *(
                    [part("paragraph", "Made again with:"), part("to_copy", command)]
                    if command
                    else []
                ),
            ],
        ),
    ]
    name = Path(result.drafter).name or result.drafter
    content = Content(
        title=f"Why: {name}",
        skip="Skip to the result",
        contents=[("verdict", "Result"), *((s.id, s.name) for s in made)],
        main=[_opening(result, name), *(section_html(section) for section in made)],
        figures=figures_of([picture for section in made for picture in section.pictures]),
    )
    return framed(content)


def _opening(result: Ablation, name: str) -> Markup:
    """Return the first screen: what costs acceptance, and what to do."""
    found = conclusion_of(result)
    where = f"{result.positions:,} positions of {result.prompts} prompts, K = {result.k}"
    return part(
        "opening",
        *_STATES[found.costs],
        found.headline,
        [f"{name} beside {Path(result.target).name}: {where}."],
        found.advice,
    )


_STATES = {True: ("◆ Worth a look", "medium"), False: ("✓ Nothing found", "info")}
