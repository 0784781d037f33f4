"""How large the drafter's hidden state is."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.analyze import Analysis
from driftscope.analysis.summary import RunSummary
from driftscope.analysis.words import listed, number, times
from driftscope.metrics.definition import Definition
from driftscope.metrics.hidden import AUX_RMS, FED_RMS, GROWTH, IN_RMS, POSTNORM_RMS, PRENORM_RMS
from driftscope_reports import figures
from driftscope_reports.markup import Markup, join
from driftscope_reports.section import Panel, Section
from driftscope_reports.tables import DepthRow, by_depth, table

_QUANTITIES = (
    ("fed_rms", FED_RMS),
    ("in_rms", IN_RMS),
    ("prenorm_rms", PRENORM_RMS),
    ("postnorm_rms", POSTNORM_RMS),
)


def section(analysis: Analysis) -> Section | None:
    """RMS by depth; None when no run recorded any."""
    panels = tuple(
        panel for field, what in _QUANTITIES if (panel := _panel(analysis.runs, field, what))
    )
    if not panels:
        return None
    return Section(
        id="hidden",
        title=_title(analysis.runs),
        how="A drafter feeds its own hidden state back to itself at every depth. If the state that "
        "is fed grows, each depth works on inputs it was not trained on: a flat line is healthy, "
        "whatever its height.",
        panels=panels,
        numbers=_numbers(analysis.runs),
        definitions=(GROWTH, FED_RMS, IN_RMS, PRENORM_RMS, POSTNORM_RMS, AUX_RMS),
        affects="masses",
    )


def _panel(runs: Sequence[RunSummary], field: str, what: Definition) -> Panel | None:
    lines = [
        (i, run.label, values)
        for i, run in enumerate(runs)
        if (values := getattr(run.hidden, field)) is not None
    ]
    if not lines:
        return None
    return Panel(
        id=f"hidden-{field.removesuffix('_rms')}",
        caption=f"{what.title}: RMS by depth",
        definition=what,
        figure=figures.lines(lines, y_title="RMS"),
    )


def _title(runs: Sequence[RunSummary]) -> str:
    grown = [f"{times(r.hidden.growth)} ({r.label})" for r in runs if r.hidden.growth is not None]
    if not grown:
        return "Size of the hidden state by depth"
    return f"From the first depth to the last, the state fed back changes in size {listed(grown)}"


def _numbers(runs: Sequence[RunSummary]) -> Markup:
    rows: list[DepthRow] = [
        (run.label, what.title, getattr(run.hidden, field))
        for run in runs
        for field, what in _QUANTITIES
    ]
    return join([by_depth(rows), _captured(runs)])


def _captured(runs: Sequence[RunSummary]) -> Markup | None:
    """The target's layers that the drafter reads, before and after the norms ahead of fc."""
    rows = [
        [
            run.label,
            f"target layer {layer}",
            number(rms, 3),
            number(run.hidden.aux_norm_rms[at] if run.hidden.aux_norm_rms else None, 3),
        ]
        for run in runs
        for at, (layer, rms) in enumerate(
            zip(run.manifest.aux_layers, run.hidden.aux_rms or (), strict=False)
        )
    ]
    head = ["run", AUX_RMS.title, "RMS as captured", "after their norm"]
    return table(head, rows, words=2) if rows else None
