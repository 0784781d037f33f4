"""Section on agreement by depth, as served and under each intervention."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.effect import Effect
from driftscope.ablate.intervention import AS_SERVED, Intervention
from driftscope.metrics.confidence import AGREEMENT
from driftscope.trace.manifest import BY_DEPTH
from driftscope_reports.drawing.chart import Chart, Unit
from driftscope_reports.html.parts.run_series import line
from driftscope_reports.model import Picture, Section

_HOW = (
    "Share of the positions at which the drafted token is the target's, whatever came before it in "
    "the chain. Differences of acceptance length, with intervals, are in the table above."
)
_ATTENTION, _FACTORS, _PROMPTS, _STATE = "attention", "factors", "prompts", "state"
_TITLES = {
    _FACTORS: "With the target's tokens or states",
    _STATE: "With another state or dtype",
    _ATTENTION: "With other attention",
    _PROMPTS: "With prompts written in another way",
}
"""Titles of the pictures by group, in their order."""


def section(result: Ablation) -> Section:
    """Return the section: one picture for each group of interventions, as served in each."""
    served, *others = result.effects
    groups = {name: [each for each in others if _group(each) == name] for name in _TITLES}
    pictures = [_picture(name, [served, *each]) for name, each in groups.items() if each]
    return Section(
        id="agreement",
        name="Agreement by depth",
        lead=f"As served it falls from {served.agreement[0]:.1%} at depth 1 to "
        f"{served.agreement[-1]:.1%} at depth {result.k}.",
        pictures=tuple(pictures) or (_picture(_FACTORS, [served]),),
    )


def _picture(group: str, effects: Sequence[Effect]) -> Picture:
    lines = tuple(line(at, _name(each), each.agreement) for at, each in enumerate(effects))
    return Picture(
        id=f"agreement-{group}",
        title=_TITLES[group] if len(effects) > 1 else "As served",
        how=_HOW,
        chart=Chart(series=lines, x_title=BY_DEPTH, y_title="of all positions", unit=Unit.SHARE),
        definitions=(AGREEMENT,),
    )


def _name(effect: Effect) -> str:
    made = effect.intervention
    return "as served" if made.id == AS_SERVED else made.id


def _group(effect: Effect) -> str:
    made: Intervention = effect.intervention
    if made.rewritten:
        return _PROMPTS
    if made.right_tokens or made.right_states:
        return _FACTORS
    return _ATTENTION if made.attention else _STATE
