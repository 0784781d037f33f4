"""Section on the parts of the agreement that is lost over depth."""

from __future__ import annotations

from driftscope.ablate.decomposition import Decomposition, Part
from driftscope.metrics.confidence import AGREEMENT, LOSS_PARTS
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Series, Unit
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Child, Markup, el
from driftscope_reports.model import Picture, Section, Size

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
_HOW = (
    "Each bar is a part of the loss between depth 1 and K, as a share of all positions; the last "
    "one is their sum. Lines are 95% intervals over prompts; a part whose interval includes 0 is "
    "not shown to exist."
)


def section(parts: Decomposition, k: int) -> Section:
    """Return the section."""
    return Section(
        id="why",
        name="Why: what the loss is made of",
        lead=f"The drafted token is the target's in {parts.first:.1%} of the positions at depth 1, "
        f"and in {parts.last:.1%} at depth {k}, whatever came before it in the chain.",
        pictures=(_picture(parts),),
        body=el("div", _table(parts), el("p", WRONG_TOKENS), el("p", _PARTS, class_="note")),
    )


_LABELS = ("tokens", "states", "rest", "in all")
"""Short names of the parts, in the order of `_named`."""


def _named(parts: Decomposition) -> tuple[tuple[str, Part], ...]:
    return (
        ("wrong tokens read", parts.tokens),
        ("the drafter's own states", parts.states),
        ("the rest (later positions)", parts.rest),
        ("lost in all", parts.loss),
    )


def _picture(parts: Decomposition) -> Picture:
    named = _named(parts)
    ends = [part.interval for _, part in named]
    shown = Series(
        name="share of positions",
        kind=Kind.BAR,
        x=_LABELS,
        y=tuple(part.value for _, part in named),
        low=tuple(None if each is None else each.low for each in ends),
        high=tuple(None if each is None else each.high for each in ends),
        colours=("run-0", "run-1", "run-2", "same"),
    )
    return Picture(
        id="loss",
        title=f"{100 * parts.loss.value:.1f} points of agreement are lost",
        how=_HOW,
        chart=Chart(
            series=(shown,),
            x_title="lost by",
            y_title="share of positions",
            axis=Axis.CATEGORY,
            unit=Unit.SHARE,
            level=0.0,
            shows_values=True,
        ),
        definitions=(LOSS_PARTS, AGREEMENT),
        size=Size.WIDE,
    )


def _table(parts: Decomposition) -> Markup:
    return table(
        ["part", "points", "95% interval", "other factor the drafter's", "other factor right"],
        [_row(name, part) for name, part in _named(parts)],
        caption="Parts of the loss, in points of agreement",
    )


def _row(name: str, part: Part) -> list[Child]:
    ends = part.interval
    orders = part.orders or (None, None)
    return [
        name,
        f"{100 * part.value:+.1f}",
        f"{100 * ends.low:+.1f} to {100 * ends.high:+.1f}" if ends else "–",
        *("–" if each is None else f"{100 * each:+.1f}" for each in orders),
    ]
