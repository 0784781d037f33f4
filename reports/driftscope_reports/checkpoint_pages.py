"""An inspection, and an ablation, each as one HTML file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from driftscope.ablate.intervention import AS_SERVED
from driftscope.ablate.result import (
    PARTS,
    WRONG_TOKENS,
    Ablation,
    Decomposition,
    Effect,
    VocabularyCoverage,
    conclusion_of,
)
from driftscope.analysis.figures.near_misses import NearMisses
from driftscope.analysis.number_words import between, count, number, percent
from driftscope.analysis.statistics.intervals import Interval
from driftscope.inspect.checks.result import CheckLevel
from driftscope.inspect.inspection import Inspection, Soundness
from driftscope.inspect.trial.result import STOPPED, Trial, Tried, by_reason
from driftscope.inspect.trial.verdict import best_repair
from driftscope.metrics.acceptance import MARGINAL, MEAN_LENGTH
from driftscope.metrics.confidence import AGREEMENT, LOSS_PARTS, TOP1
from driftscope.metrics.hidden import FED_RMS, PRENORM_RMS
from driftscope.trace.manifest import BY_DEPTH
from driftscope_reports.charts import Axis, Unit, bars, figure, line, plain
from driftscope_reports.model import Picture, Section, section_html, table
from driftscope_reports.page import Content, framed, part, render
from driftscope_reports.sections_inside import CLASSES, mass_areas, near_misses_picture


def _ends(interval: Interval | None, form: str, factor: float = 1.0) -> str:
    """Return the cell of an interval whose ends, times `factor`, are written like `form`."""
    if interval is None:
        return "–"
    return f"{factor * interval.low:{form}} to {factor * interval.high:{form}}"


def _again(command: str | None) -> list[Markup]:
    return [part("paragraph", "Made again with:"), part("to_copy", command)] if command else []


def _page(
    title: str,
    opening: Sequence[Any],
    made: Sequence[Section],
    cards: Sequence[tuple[tuple[str, str], Markup]] = (),
) -> str:
    """Return the page of an opening, `cards` with their place in the contents, and sections."""
    return framed(
        Content(
            title=title,
            skip="Skip to the result",
            contents=[
                ("verdict", "Result"),
                *(place for place, _ in cards),
                *((section.id, section.name) for section in made),
            ],
            main=[
                part("opening", *opening),
                *(card for _, card in cards),
                *(section_html(section) for section in made),
            ],
            figures={p.id: plain(p.chart) for section in made for p in section.pictures},
        )
    )


def _chart(series: Sequence[Any], y_title: str, unit: Unit = Unit.NUMBER) -> Any:
    return figure(series, x_title=BY_DEPTH, y_title=y_title, unit=unit)


LEVELS = {
    CheckLevel.ERROR: ("▲ error", "high"),
    CheckLevel.WARNING: ("◆ warning", "medium"),
    CheckLevel.NOTE: ("ℹ note", "info"),
}
"""Sign, word and CSS class of each level, so that it is never shown by colour alone."""
_HEALTHY = ("✓ No error, no warning", "good")


def inspection_html(result: Inspection, *, command: str | None = None) -> str:
    """Return the page of an inspection: what was found, errors first; the trial. `command` is the
    command line that made it, shown at its end."""
    name, trial, sizes = Path(result.drafter).name or result.drafter, result.trial, result.sizes
    # The first screen: how bad it is, and the result in one sentence.
    worst = next((level for level in CheckLevel if result.count(level)), CheckLevel.NOTE)
    words = _HEALTHY if worst is CheckLevel.NOTE else LEVELS[worst]
    if worst is CheckLevel.NOTE and result.answer is Soundness.CANNOT_TELL and trial:
        words = "◆ not promised", "medium"
    counts = ", ".join(
        f"{number} {level}{'' if number == 1 else 's'}"
        for level in CheckLevel
        if (number := result.count(level))
    )
    first = result.results[0] if result.results else None
    lead = f"; first: {first.title}" if first and first.level is CheckLevel.ERROR else ""
    summary = f"{name}: {counts or 'nothing found'} in {result.checks} checks{lead}"
    cards = render(
        "inspection_results.jinja",
        results=[(found, *LEVELS[found.level]) for found in result.results],
        checks=result.checks,
    )
    row = [
        name,
        result.drafter,
        result.format if result.known else f"{result.format}, layout not known",
        sizes.licence or "–",
        f"{sizes.parameters:,}",
        f"{sizes.bytes:,}",
        "–" if sizes.share is None else f"{sizes.share:.1%}",
    ]
    head = ["drafter", "path", "format", "licence", "parameters", "bytes", "of the target's"]
    origin = Section(
        id="provenance",
        name="What was inspected",
        lead=f"Target: {result.target or 'none given'}.",
        below=[
            table(head, [row], words=4, caption="The drafter that was inspected"),
            *_again(command),
        ],
    )
    return _page(
        f"Inspection: {name}",
        (*words, summary, [result.conclusion]),
        [
            *([_by_depth(trial)] if trial and not trial.overflow else []),
            *([_repairs(trial)] if trial else []),
            origin,
        ],
        [(("findings", "Found"), cards)],
    )


def _by_depth(trial: Trial) -> Section:
    as_is = trial.acceptance
    length = between(as_is.mean_length_interval)
    masses = {name: trial.figures.get(f"{name}_mass") for name in CLASSES}
    sink, own = trial.figures["sink_mass"], trial.figures["self_mass"]
    return Section(
        id="trial",
        name="The drafter as it is",
        lead=f"Acceptance length {number(as_is.mean_length)}{length}: {as_is.rounds} rounds "
        f"of {trial.prompts} prompts at K = {trial.k}, as a server would make them.",
        above=[
            part(
                "bullets",
                [
                    *(_sentence(f"not promised: {reason}") for reason in trial.not_promised),
                    *(_sentence(line) for line in trial.inside.lines),
                ],
            )
        ],
        pictures=(
            _accepted(trial),
            Picture(
                id="masses",
                title=f"Attention: {percent(sink[0])} to {percent(sink[-1])} on the sink, "
                f"{percent(own[-1])} on the chain itself at depth {trial.k}",
                how="Mean share of the drafter's attention by class of slot. The chain's own slots "
                "grow by one with each depth, so a rising share alone is no drift.",
                chart=_chart(mass_areas(masses), "share of attention", Unit.SHARE),
                definitions=tuple(definition for _, definition, _ in CLASSES.values()),
                hero=True,
            ),
            _rms(trial),
            _top1(trial),
        ),
    )


def _accepted(trial: Trial) -> Picture:
    rates = trial.acceptance.marginal
    shown = line("as it is", rates, intervals=trial.acceptance.marginal_interval)
    return Picture(
        id="acceptance-marginal",
        title=f"Accepted: {percent(rates[0])} at depth 1, {percent(rates[-1])} at depth {trial.k}",
        how="Share of the rounds that are accepted up to this depth, so the line can only fall. "
        "Bars are 95% intervals over prompts.",
        chart=_chart((shown,), "of all rounds", Unit.SHARE),
        definitions=(MARGINAL, MEAN_LENGTH),
    )


def _rms(trial: Trial) -> Picture:
    fed = trial.figures["fed_rms"]
    return Picture(
        id="hidden",
        title=f"State fed to the next depth: RMS {number(fed[0])} to {number(fed[-1])}",
        how="Root mean square of the hidden state at each depth. A trained drafter sees states of "
        "one size at every depth.",
        chart=_chart(
            [
                line("before the final norm", trial.figures["prenorm_rms"], run=0),
                line("fed to the next depth", fed, run=1),
            ],
            "RMS",
        ),
        definitions=(PRENORM_RMS, FED_RMS),
    )


def _top1(trial: Trial) -> Picture:
    top1 = trial.figures["top1"]
    found = trial.inside.confidence
    rates = tuple(share.value if share else None for share in found.right)
    spread = tuple(share.interval if share else None for share in found.right)
    return Picture(
        id="confidence",
        title=f"Confidence: {percent(top1[0])} at depth 1, {percent(top1[-1])} at depth {trial.k}",
        how="Mean probability that the drafter gives to its own draft token, over all positions. "
        "Where drafts get that far with nothing wrong before, the two other lines compare it with "
        "the share of tokens that are right: confidence far above it is confidence in wrong "
        "tokens.",
        chart=_chart(
            [
                line("all positions", trial.figures["top1"]),
                line("sure, in accepted drafts", found.sure, run=1),
                line("right, in accepted drafts", rates, run=2, intervals=spread),
            ],
            "probability",
            Unit.SHARE,
        ),
        definitions=(TOP1,),
    )


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _repairs(trial: Trial) -> Section:
    best = best_repair(trial)
    head = ("change", "if it helps, this was wrong", "prompts", "acceptance length", "gain", "p")
    return Section(
        id="repairs",
        name="Repairs that were tried",
        lead=f"{count(len(trial.tried), 'change')}, one at a time"
        + (f" ({STOPPED}: another one may help more). " if trial.stopped else ". ")
        + (f"This one helps: {best.change.change}." if best else "None helps beyond chance."),
        below=[
            table(
                [*head[:5], "95% interval of the gain, corrected", head[5]],
                [_row(tried) for tried in (*trial.tried, *trial.renderings)],
                words=2,
                caption="Acceptance length with each repair",
                sortable=True,
            ),
            *(
                part("paragraph", f"Not tried: {', '.join(ids)}: {reason}.", "note")
                for reason, ids in by_reason(trial.not_applicable).items()
            ),
        ],
    )


def _row(tried: Tried) -> list[str]:
    gain = tried.gain
    return [
        tried.change.change,
        tried.change.mistake,
        str(tried.prompts),
        f"{tried.acceptance.mean_length:.2f}",
        f"{gain.difference:+.2f}",
        _ends(gain.interval, "+.2f"),
        f"{gain.p:.2g}",
    ]


def ablation_html(result: Ablation, *, command: str | None = None) -> str:
    """Return the page of an ablation: why acceptance falls. `command` is the command line that made
    it, shown at its end."""
    name, found = Path(result.drafter).name or result.drafter, conclusion_of(result)
    rows = [
        ["drafter", result.drafter],
        ["target", result.target],
        ["tokens per draft", str(result.k)],
        ["prompts", str(result.prompts)],
        ["positions", f"{result.positions:,}"],
    ]
    origin = Section(
        id="provenance",
        name="What was run",
        lead="Both models ran outside any engine, on the target's own greedy answers.",
        below=[table(["", ""], rows, words=2, caption="What was run"), *_again(command)],
    )
    models = f"{name} beside {Path(result.target).name}: {result.where}."
    # The first screen: what costs acceptance, and what to do.
    state = ("◆ Worth a look", "medium") if found.costs else ("✓ Nothing found", "info")
    return _page(
        f"Why: {name}",
        (*state, found.headline, [models], found.advice),
        [
            *([_loss(result.decomposition, result.k)] if result.decomposition else []),
            _interventions(result),
            _agreement(result),
            *([_near_misses(result.near_misses)] if result.near_misses else []),
            *([_vocabulary(result.vocabulary)] if result.vocabulary.lacking else []),
            origin,
        ],
    )


_HOW = (
    "Share of the positions at which the drafted token is the target's, whatever came before it in "
    "the chain. Differences of acceptance length, with intervals, are in the table above."
)
_TITLES = {
    "factors": "With the target's tokens or states",
    "state": "With another state or dtype",
    "attention": "With other attention",
    "lookup": "With n-gram lookup",
}
"""Titles of the pictures by group, in their order."""


def _group(effect: Effect) -> str:
    intervention = effect.intervention
    if intervention.lookup:
        return "lookup"
    if intervention.right_tokens or intervention.right_states:
        return "factors"
    return "attention" if intervention.attention else "state"


def _agreement(result: Ablation) -> Section:
    """Return the section: one picture for each group of interventions, as served in each."""
    served, *others = result.effects
    groups = {name: [other for other in others if _group(other) == name] for name in _TITLES}
    pictures = []
    for name, group in groups.items():
        if group or (name == "factors" and not others):
            effects = [("as served", served), *((one.intervention.id, one) for one in group)]
            lines = [line(of, one.agreement, run=at) for at, (of, one) in enumerate(effects)]
            picture = Picture(
                id=f"agreement-{name}",
                title=_TITLES[name] if group else "As served",
                how=_HOW,
                chart=_chart(lines, "of all positions", Unit.SHARE),
                definitions=(AGREEMENT,),
            )
            pictures.append(picture)
    return Section(
        id="agreement",
        name="Agreement by depth",
        lead=f"As served it falls from {served.agreement[0]:.1%} at depth 1 to "
        f"{served.agreement[-1]:.1%} at depth {result.k}.",
        pictures=tuple(pictures),
    )


_CAUTION = (
    "A drafter was trained as it is: an intervention that costs acceptance shows that the drafter "
    "uses what was taken, not that it is good for it. One that gains nothing does not clear its "
    "suspect, because a drafter that was trained with the change may gain."
)


def _interventions(result: Ablation) -> Section:
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
                [_effect_row(effect) for effect in result.effects],
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


def _effect_row(effect: Effect) -> list[str]:
    intervention = effect.intervention
    served = intervention.id == AS_SERVED
    return [
        intervention.id,
        intervention.changes,
        intervention.shows or "–",
        f"{effect.acceptance.mean_length:.2f}",
        "–" if served else f"{effect.difference:+.2f}",
        "–" if served else _ends(effect.interval, "+.2f"),
        str(effect.prompts),
    ]


def _vocabulary(coverage: VocabularyCoverage) -> Section:
    """Return the section on tokens that the drafter cannot draft."""
    rows = [
        [one.region, f"{one.lacking:.1%}", _ends(one.interval, ".1%"), f"{one.tokens:,}"]
        for one in coverage.by_region
    ]
    caption = "Share of tokens that the draft vocabulary lacks, by kind of text"
    head = ["kind of text", "lacking", "95% interval", "tokens"]
    return Section(
        id="vocabulary",
        name="Tokens that the draft vocabulary lacks",
        lead=coverage.words,
        below=[table(head, rows, caption=caption, sortable=True)],
    )


def _near_misses(found: NearMisses) -> Section:
    """Return the section on what the drafts that were rejected came close to."""
    rows = [
        [share.what, f"{share.value:.1%}", _ends(share.interval, ".1%")] for share in found.shares
    ]
    head = ["chains that end at", "share", "95% interval"]
    return Section(
        id="near",
        name="What the rejected tokens came close to",
        lead=found.words,
        pictures=(near_misses_picture(found, "prompts"),),
        below=[table(head, rows, caption="Shares of the chains that end early", sortable=True)],
    )


_HOW_LOSS = (
    "Each bar is a part of the loss between depth 1 and K, as a share of all positions; the last "
    "one is their sum. Lines are 95% intervals over prompts; a part whose interval includes 0 is "
    "not shown to exist."
)


def _loss(parts: Decomposition, k: int) -> Section:
    """Return the section on what the loss is made of."""
    rows = [
        [
            name,
            f"{100 * term.value:+.1f}",
            _ends(term.interval, "+.1f", 100),
            *(f"{100 * order:+.1f}" for order in term.orders or ()),
            *(() if term.orders else "––"),
        ]
        for name, term in parts.named
    ]
    drawn = bars(
        "share of positions",
        ("states", "tokens", "rest", "in all"),
        [term.value for _, term in parts.named],
        intervals=[term.interval for _, term in parts.named],
        colours=("run-0", "same", "same", "apart"),
    )
    picture = Picture(
        id="loss",
        title=f"{100 * parts.loss.value:.1f} points of agreement are lost",
        how=_HOW_LOSS,
        chart=figure(
            [drawn],
            x_title="lost by",
            y_title="share of positions",
            axis=Axis.CATEGORY,
            unit=Unit.SHARE,
            level=0.0,
        ),
        definitions=(LOSS_PARTS, AGREEMENT),
        hero=True,
    )
    factors = ["other factor the drafter's", "other factor right"]
    head = ["part", "points", "95% interval", *factors]
    return Section(
        id="why",
        name="Why: what the loss is made of",
        lead=parts.words(k),
        pictures=(picture,),
        below=[
            table(head, rows, caption="Parts of the loss, in points of agreement"),
            part("paragraph", WRONG_TOKENS),
            part("paragraph", PARTS, "note"),
        ],
    )
