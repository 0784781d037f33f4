"""Ways of writing the prompts: as served, and those that an intervention changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from driftscope.ablate.intervention import (
    AS_SERVED,
    FIRST_TOKEN,
    INTERVENTIONS,
    TEMPLATE,
    Intervention,
)
from driftscope.inspect.trial import renderings as trial_renderings
from driftscope.inspect.trial.passages import LONGEST_PROMPT
from driftscope.inspect.trial.renderings import Rendering, renderings
from driftscope.inspect.trial.trial import Bench

_IDS = {trial_renderings.FIRST_TOKEN: FIRST_TOKEN, trial_renderings.TEMPLATE: TEMPLATE}
"""Interventions by the identifiers of what the trial tries."""
_CHANGES = {
    "first_token_off": "the prompts' first token left out",
    "first_token_on": "a first token before the prompts",
    trial_renderings.TEMPLATE: "the drafter's own chat template",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTemplate:
    """A chat template that the user names."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWriting:
    """Prompts that are written in one way, and the chains that are drafted on their answers."""

    id: str
    """AS_SERVED, or the intervention that writes them."""
    prompts: Mapping[str, Sequence[int]]
    interventions: tuple[Intervention, ...]


def rewritings(
    bench: Bench, drafters: str | None, given: GivenTemplate | None, wanted: Collection[str]
) -> tuple[list[tuple[Intervention, PromptWriting]], dict[str, str]]:
    """Return the wanted interventions that write the prompts in another way, and the reasons why
    others cannot. `drafters` is the drafter's own template, `given` the user's in place of it."""
    made, left_out = renderings(
        bench.teacher.tokenizer,
        bench.prompts,
        bench.conversations,
        (bench.template, given.text if given else drafters),
        whose="given" if given else "drafter's",
    )
    found = [_rewriting(each, given) for each in made]
    reasons = {_IDS[each.id]: each.reason for each in left_out}
    return (
        [each for each in found if each[0].id in wanted],
        {name: reason for name, reason in reasons.items() if name in wanted},
    )


def _rewriting(
    rendering: Rendering, given: GivenTemplate | None
) -> tuple[Intervention, PromptWriting]:
    change = rendering.change.id
    name = TEMPLATE if change == trial_renderings.TEMPLATE else FIRST_TOKEN
    words = f"the chat template {given.name}" if given and name == TEMPLATE else _CHANGES[change]
    writing = PromptWriting(
        id=name,
        prompts={key: ids[-LONGEST_PROMPT:] for key, ids in rendering.prompts.items()},
        interventions=(INTERVENTIONS[AS_SERVED],),
    )
    return replace(INTERVENTIONS[name], changes=words), writing
