"""Sections on what each intervention changes, and on the draft vocabulary."""

from __future__ import annotations

from driftscope.ablate.ablation import Ablation
from driftscope.ablate.effect import Effect, PairedBy
from driftscope.ablate.intervention import AS_SERVED
from driftscope.ablate.vocabulary_coverage import RegionCoverage, VocabularyCoverage
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Child, Markup, el
from driftscope_reports.model import Section

_CAUTION = (
    "A drafter was trained as it is: an intervention that costs acceptance shows that the drafter "
    "uses what was taken, not that it is good for it. One that gains nothing does not clear its "
    "suspect, because a drafter that was trained with the change may gain."
)
_BY_PROMPT = (
    "Where differences are paired by prompt, the target answered the prompts anew. The answers "
    "differ then, and may be easier or harder to draft."
)


def section(result: Ablation) -> Section:
    """Return the section of the interventions."""
    served = result.effects[0].acceptance.length
    notes = [_CAUTION]
    if any(each.paired_by is PairedBy.PROMPT for each in result.effects):
        notes.append(_BY_PROMPT)
    return Section(
        id="interventions",
        name="What each intervention changes",
        lead=f"Acceptance length as served: {served:.2f} tokens per round, each position counting "
        "as a round. The intervals of the changes hold for all interventions together.",
        body=el(
            "div",
            _table(result),
            [el("p", words, class_="note") for words in notes],
            [
                el("p", f"Not applicable: {name}: {reason}.", class_="note")
                for name, reason in result.not_applicable.items()
            ],
        ),
    )


def _table(result: Ablation) -> Markup:
    head = ["intervention", "with", "what a change shows", "acceptance length", "change"]
    return table(
        [*head, "interval of the change", "prompts", "paired by"],
        [_row(each) for each in result.effects],
        words=3,
        caption="Acceptance length under each intervention",
        sortable=True,
    )


def _row(effect: Effect) -> list[Child]:
    made, ends = effect.intervention, effect.interval
    served = made.id == AS_SERVED
    interval = f"{ends.low:+.2f} to {ends.high:+.2f}" if ends and not served else "–"
    return [
        made.id,
        made.changes,
        made.shows or "–",
        f"{effect.acceptance.length:.2f}",
        "–" if served else f"{effect.difference:+.2f}",
        interval,
        str(effect.prompts),
        "–" if served else effect.paired_by.value,
    ]


def vocabulary(coverage: VocabularyCoverage) -> Section:
    """Return the section on tokens that the drafter cannot draft."""
    return Section(
        id="vocabulary",
        name="Tokens that the draft vocabulary lacks",
        lead=f"{coverage.lacking:.1%} of the tokens of the target's answers are not in the draft "
        "vocabulary: a chain ends at each of them.",
        body=table(
            ["kind of text", "lacking", "95% interval", "tokens"],
            [_region(each) for each in coverage.by_region],
            caption="Share of tokens that the draft vocabulary lacks, by kind of text",
            sortable=True,
        ),
    )


def _region(each: RegionCoverage) -> list[Child]:
    ends = each.interval
    return [
        each.region,
        f"{each.lacking:.1%}",
        f"{ends.low:.1%} to {ends.high:.1%}" if ends else "–",
        f"{each.tokens:,}",
    ]
