"""Section parts on the drafter's attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from driftscope.analysis.closeup import HEAD_CHAINS
from driftscope.analysis.figures.results import ByDepth
from driftscope.analysis.number_words import listed, percent
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.findings.rules_attention import has_sink
from driftscope.metrics.attention import GENERATED, NULL, PROMPT, SELF, SINK
from driftscope_reports.drawing.chart import Chart, Kind, Series, Unit, depths
from driftscope_reports.drawing.palette import MASS_CLASSES, MassClass
from driftscope_reports.html.parts.run_series import about, axis_name, depth_chart, line
from driftscope_reports.model import Picture

_DEFINITIONS = (SELF, GENERATED, PROMPT, SINK, NULL)
_BY_FIELD = {
    "self_mass": SELF,
    "generated_mass": GENERATED,
    "prompt_mass": PROMPT,
    "sink_mass": SINK,
    "null_mass": NULL,
}


def pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """Return the masses by depth of each run that has any, overlaid by class if several have; then
    by layer and by head if there are several."""
    out = [_masses(i, run, runs) for i, run in enumerate(runs) if run.attention.by_layer]
    if len(out) > 1:
        out += [p for kind in MASS_CLASSES if (p := _overlaid(kind, runs))]
    for i, run in enumerate(runs):
        out += _layers(i, run, runs)
    heads = [_heads(i, run, runs) for i, run in enumerate(runs)]
    return [*out, *(p for of_class in zip_longest(*heads) for p in of_class if p)]


def _masses(index: int, run: RunSummary, runs: Sequence[RunSummary]) -> Picture:
    return Picture(
        id=f"attention-{index}",
        title=_title(run, runs),
        how="Share of the drafter's attention on its own draft tokens (bottom), on verified "
        "output, prompt and sink. Its own share grows by construction, because its tokens take the "
        f"nearest places.{_sink_note(run)}",
        chart=masses(run),
        definitions=_DEFINITIONS,
    )


def masses(run: RunSummary) -> Chart:
    """Return areas stacked to 1, the chain's own at the bottom."""
    series: list[Series] = []
    base: Sequence[float] = ()
    for kind in MASS_CLASSES:
        values: ByDepth | None = getattr(run.attention, kind.field)
        if values is None:
            continue
        base = base or [0.0] * len(values)
        values = _fitting(base, values)
        base = [a + b if math.isfinite(b) else a for a, b in zip(base, values, strict=True)]
        series.append(
            Series(
                name=kind.name,
                kind=Kind.AREA,
                x=depths(values),
                y=values,
                colour=kind.colour,
                pattern=kind.pattern,
            )
        )
    return depth_chart([run], series, "share of attention", Unit.SHARE)


def _fitting(base: Sequence[float], values: Sequence[float]) -> ByDepth:
    """Return `values` cut where the stack has reached 1: the mean over only those layers to which a
    class applies can exceed its share of all layers."""
    return tuple(min(value, max(1.0 - low, 0.0)) for low, value in zip(base, values, strict=True))


def _overlaid(kind: MassClass, runs: Sequence[RunSummary]) -> Picture | None:
    """Return one class of all runs as lines, because stacked areas cannot be compared between
    runs."""
    known = [(i, run, v) for i, run in enumerate(runs) if (v := getattr(run.attention, kind.field))]
    drawn = [(i, run, v) for i, run, v in known if any(map(math.isfinite, v))]
    if not drawn:
        return None
    series = [line(i, run.label, v, run.spread.get(kind.field)) for i, run, v in drawn]
    ends = [f"{percent(v[0])} to {percent(v[-1])} ({run.label})" for _, run, v in drawn]
    return Picture(
        id=f"masses-{kind.field.removesuffix('_mass')}",
        title=f"Attention on {_TITLES.get(kind.field, kind.name)}: {listed(ends)}",
        how=_HOW_OVERLAID[kind.field],
        chart=depth_chart(runs, series, "share of attention", Unit.SHARE),
        definitions=(_BY_FIELD[kind.field],),
    )


_TITLES = {"prompt_mass": "the prompt", "sink_mass": "the sink"}
_HOW_OVERLAID = {
    "self_mass": "One of the classes above, with all runs in one picture. It grows by "
    "construction, because the chain takes the nearest places.",
    "generated_mass": "One of the classes above, with all runs in one picture. It falls a little "
    "by construction, because the chain takes its share.",
    "prompt_mass": "One of the classes above, with all runs in one picture. It falls a little by "
    "construction, because the chain takes its share.",
    "sink_mass": "One of the classes above, with all runs in one picture. A line that falls "
    "to less than half is a lost sink; its height alone means nothing.",
    "null_mass": "One of the classes above, with all runs in one picture. It is the share taken by "
    "a learned sink bias; few drafters have one.",
}


def _title(run: RunSummary, runs: Sequence[RunSummary]) -> str:
    own = run.attention.self_mass
    if own is None:
        return about(run, runs, f"attention by {run.manifest.query_kind}")
    return about(
        run,
        runs,
        f"at {run.manifest.query_kind} {run.depths} the chain's own draft tokens get "
        f"{percent(own[-1])} of the attention",
    )


def _sink_note(run: RunSummary) -> str:
    if has_sink(run) is not False:
        return ""
    return " This target has no attention sink, so statements about sink loss do not apply."


def _layers(index: int, run: RunSummary, runs: Sequence[RunSummary]) -> list[Picture]:
    """Return the chain's own share by layer, for drafters with more than one layer."""
    by_layer = run.attention.by_layer.get("self_mass", ())
    if not by_layer or len(by_layer[0]) < 2:
        return []
    columns = list(zip(*by_layer, strict=True))
    series = [line(n, f"layer {n}", values) for n, values in enumerate(columns)]
    ends = [(values[-1], n) for n, values in enumerate(columns) if math.isfinite(values[-1])]
    most = f"layer {max(ends)[1]} attends to it most" if ends else "by layer"
    return [
        Picture(
            id=f"attention-layers-{index}",
            title=about(run, runs, f"attention on the chain itself differs by layer; {most}"),
            how="One line per layer of the drafter: its share of attention on the chain's own "
            "draft tokens. If the lines are far apart, the mean over layers hides something.",
            chart=depth_chart([run], series, "on the chain itself", Unit.SHARE),
            definitions=(SELF,),
        )
    ]


def _heads(index: int, run: RunSummary, runs: Sequence[RunSummary]) -> list[Picture]:
    heads = run.closeup.heads if run.closeup else None
    if heads is None:
        return []
    out = []
    for kind in MASS_CLASSES:
        name = kind.field.removesuffix("_mass")
        rows = heads.masses.get(name)
        if rows is None or name == "null" or (name == "sink" and has_sink(run) is False):
            continue
        on = _TITLES.get(kind.field, kind.name)
        words = about(run, runs, f"attention on {on}, head by head")
        out.append(_head_map(index, run, name, words, rows, heads.heads))
    return out


_ALONE = {
    True: "A single row that turns bright is one head that drifts alone, which the mean hides.",
    False: "A single row that turns dark is one head that turns away alone, which the mean hides.",
}
"""Reading hints: for the map of the chain itself (True), and for those of the context (False)."""


def _head_map(
    index: int, run: RunSummary, name: str, words: str, rows: Sequence[ByDepth], per_layer: int
) -> Picture:
    series = tuple(
        Series(
            name=f"layer {n // per_layer} head {n % per_layer}"
            if len(rows) > per_layer
            else f"head {n}",
            sign=f"{n // per_layer}.{n % per_layer}" if len(rows) > per_layer else f"{n}",
            kind=Kind.CELLS,
            x=depths(row),
            y=row,
        )
        for n, row in enumerate(rows)
    )
    last = [row[-1] for row in rows if math.isfinite(row[-1])] or [math.nan]
    return Picture(
        id=f"heads-{name}-{index}",
        title=f"{words}: {percent(min(last))} to {percent(max(last))} at "
        f"{axis_name([run])} {run.depths}",
        how="One row per attention head, one column per depth; the brighter a cell, the more of "
        f"the head's attention goes there. {_ALONE[name == 'self']}",
        chart=Chart(
            series=series,
            x_title=axis_name([run]),
            y_title=_rows(rows, per_layer),
            unit=Unit.SHARE,
            height=min(max(180, 60 + 14 * len(rows)), 620),
        ),
        note=_sampled(run),
        definitions=(_BY_FIELD[f"{name}_mass"],),
    )


def _sampled(run: RunSummary) -> str | None:
    if run.recording.chains <= HEAD_CHAINS:
        return None
    return f"From about {HEAD_CHAINS:,} chains, sampled evenly from all recorded chains."


def _rows(rows: Sequence[ByDepth], per_layer: int) -> str:
    return "layer.head" if len(rows) > per_layer else "head"
