"""Where the drafter looks."""

from __future__ import annotations

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.rules.attention import has_sink
from driftscope.analysis.summary import ByDepth, RunSummary
from driftscope.analysis.words import listed, percent
from driftscope.metrics.attention import GENERATED, NO_DRIFT, NULL, PROMPT, SELF, SINK
from driftscope_reports import figures
from driftscope_reports.markup import Markup, join
from driftscope_reports.section import Panel, Section
from driftscope_reports.tables import DepthRow, by_depth

_CLASSES = (
    ("sink_mass", SINK),
    ("prompt_mass", PROMPT),
    ("generated_mass", GENERATED),
    ("self_mass", SELF),
    ("null_mass", NULL),
)


def section(analysis: Analysis) -> Section | None:
    """Masses by depth; None when no run recorded any."""
    runs = [(i, run) for i, run in enumerate(analysis.runs) if run.attention.by_layer]
    if not runs:
        return None
    return Section(
        id="attention",
        title=_title([run for _, run in runs]),
        how="From the bottom, the areas are the drafter's attention on the chain's own guesses, on "
        "verified output, prompt and sink. The lowest grows a little by construction, because the "
        "chain gets longer: the dashed line is how much, and what lies above it moved to the "
        f"chain.{_sink_note(analysis.runs)}",
        panels=tuple(
            Panel(
                id=f"attention-{i}",
                caption=f"{run.label}: attention by depth",
                definition=SELF,
                figure=figures.masses(run.attention),
            )
            for i, run in runs
        ),
        numbers=_numbers([run for _, run in runs]),
        definitions=(SELF, NO_DRIFT, GENERATED, PROMPT, SINK),
        affects="masses",
    )


def _title(runs: list[RunSummary]) -> str:
    measured = [run for run in runs if run.attention.self_mass is not None]
    if not measured:
        return "Attention by depth"
    parts = [
        f"{percent(_last(run.attention.self_mass))} of {run.label}'s attention "
        f"({percent(_last(run.attention.no_drift_self_mass))} without drift)"
        for run in measured
    ]
    return f"At the last depth, the chain's own guesses get {listed(parts)}"


def _last(values: ByDepth | None) -> float | None:
    return None if values is None else values[-1]


def _sink_note(runs: tuple[RunSummary, ...]) -> str:
    without = [run.label for run in runs if has_sink(run) is False]
    if not without:
        return ""
    who = "" if len(without) == len(runs) else f" ({listed(without)})"
    return f" This target has no attention sink{who}, so statements about losing it do not apply."


def _numbers(runs: list[RunSummary]) -> Markup:
    rows: list[DepthRow] = []
    for run in runs:
        for field, definition in _CLASSES:
            values = getattr(run.attention, field)
            if values is not None or definition is not NULL:
                rows.append((run.label, definition.title, values))
        rows.append((run.label, f"{NO_DRIFT.title} (chain)", run.attention.no_drift_self_mass))
    return join([by_depth(rows), _layers(runs)])


def _layers(runs: list[RunSummary]) -> Markup | None:
    """The chain's own share layer by layer, for drafters with more than one."""
    rows: list[DepthRow] = []
    for run in runs:
        by_layer = run.attention.by_layer.get("self_mass", ())
        if by_layer and len(by_layer[0]) > 1:
            columns = zip(*by_layer, strict=True)
            rows += [
                (run.label, f"{SELF.title}, layer {layer}", values)
                for layer, values in enumerate(columns)
            ]
    return by_depth(rows) if rows else None
