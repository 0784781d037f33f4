"""Section parts on the size of the drafter's hidden state."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.number_words import listed, times
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.metrics.definition import Definition
from driftscope.metrics.hidden import AUX_RMS, FED_RMS, GROWTH, IN_RMS, POSTNORM_RMS, PRENORM_RMS
from driftscope.trace.manifest import AUX_FROM_ENGINE
from driftscope_reports.drawing.chart import Axis, Chart, Kind, Series
from driftscope_reports.drawing.palette import colour
from driftscope_reports.html.parts.run_series import axis_name, depth_chart, line
from driftscope_reports.model import Picture

_QUANTITIES = (
    ("fed_rms", FED_RMS, "The size of the state that each depth feeds to the next."),
    ("in_rms", IN_RMS, "The size of the state that enters the drafter's first layer."),
    ("prenorm_rms", PRENORM_RMS, "The size of the state after the drafter's last layer."),
    (
        "postnorm_rms",
        POSTNORM_RMS,
        "The size of the state after the final norm, which should be flat.",
    ),
)


def pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """Return the RMS by depth for each place where it was measured; then the captured target
    layers."""
    out = [p for name, what, words in _QUANTITIES if (p := _picture(runs, name, what, words))]
    captured = _captured(runs)
    return [*out, captured] if captured else out


def _picture(
    runs: Sequence[RunSummary], field: str, what: Definition, words: str
) -> Picture | None:
    known = [
        (i, run.label, values)
        for i, run in enumerate(runs)
        if (values := getattr(run.hidden, field)) is not None
    ]
    if not known:
        return None
    ratios = [
        f"{times(values[-1] / values[0] if values[0] else None)}"
        f"{f' ({label})' if len(runs) > 1 else ''}"
        for _, label, values in known
    ]
    return Picture(
        id=f"hidden-{field.removesuffix('_rms')}",
        title=f"{what.title}: {listed(ratios)} from {axis_name(runs)} 1 to the last",
        how=f"{words} A flat line is healthy, whatever its level.",
        chart=depth_chart(
            runs, [line(i, label, v, runs[i].spread.get(field)) for i, label, v in known], "RMS"
        ),
        definitions=(what, GROWTH),
    )


def _captured_names(run: RunSummary) -> tuple[str, ...]:
    """Return the names of the captured states; numbers if the run does not name its layers."""
    if run.manifest.aux_layers:
        return tuple(f"layer {layer}" for layer in run.manifest.aux_layers)
    states = run.hidden.aux_rms or run.hidden.aux_norm_rms or ()
    return tuple(f"state {number}" for number in range(1, len(states) + 1))


def _choice(runs: Sequence[RunSummary]) -> str:
    """Return a sentence on the runs whose layers the engine chose; "" if there are none."""
    chosen = [run for run in runs if run.manifest.aux_layers_source == AUX_FROM_ENGINE]
    if not chosen:
        return ""
    which = "" if len(chosen) == len(runs) else f" in {listed([run.label for run in chosen])}"
    return (
        f" The layers{which} are the engine's default, since the drafter's config names none that "
        "the engine reads: check that the drafter was trained on them."
    )


def _captured(runs: Sequence[RunSummary]) -> Picture | None:
    """Return the target's layers that the drafter reads, before and after the norms ahead of fc."""
    series = []
    for i, run in enumerate(runs):
        names = _captured_names(run)
        kinds = (("as captured", run.hidden.aux_rms, ""), ("normed", run.hidden.aux_norm_rms, "/"))
        for words, values, pattern in kinds:
            if values is not None and len(values) == len(names) and names:
                series.append(
                    Series(
                        name=f"{run.label}, {words}",
                        kind=Kind.BAR,
                        x=names,
                        y=tuple(values),
                        colour=colour(i),
                        pattern=pattern,
                    )
                )
    if not series:
        return None
    spread = [max(v) / min(v) for s in series if (v := [y for y in s.y if y])]
    return Picture(
        id="hidden-captured",
        title=f"The captured target layers differ up to {times(max(spread, default=None))} in size",
        how="The target layers that the drafter reads, as captured and, if there is one, after the "
        "norm before its fc. Without a norm the largest layer dominates the others."
        + _choice(runs),
        chart=Chart(
            series=tuple(series), x_title="target layer", y_title="RMS", axis=Axis.CATEGORY
        ),
        definitions=(AUX_RMS,),
    )
