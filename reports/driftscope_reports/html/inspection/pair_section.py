"""Section that compares two drafters, which drafted from the same positions."""

from __future__ import annotations

from driftscope.analysis.compare import (
    LENGTH,
    MARGINAL,
    Comparison,
    Difference,
    between_ends,
    signed,
    verdict,
)
from driftscope.analysis.number_words import number
from driftscope.inspect.pair_inspection import NO_REPAIRS
from driftscope.inspect.trial.paired_positions import PairTrial
from driftscope.metrics.acceptance import MARGINAL as MARGINAL_DEFINITION
from driftscope.metrics.acceptance import MEAN_LENGTH
from driftscope.trace.format.manifest import BY_DEPTH
from driftscope_reports.drawing.chart import Chart, Series, Unit
from driftscope_reports.html.inspection.trial_sections import interval_words
from driftscope_reports.html.parts.heatmap import Gap, Good, bars
from driftscope_reports.html.parts.run_series import line
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Child, Markup
from driftscope_reports.model import Picture, Section

_DEFINITIONS = (MARGINAL_DEFINITION, MEAN_LENGTH)


def section(trial: PairTrial) -> Section:
    """Return the section of a comparison."""
    served = [
        f"{number(each.length)}{interval_words(each.length_interval)} ({name})"
        for each, name in zip(trial.as_served, _names(trial.comparison), strict=True)
    ]
    return Section(
        id="compare",
        name="Both drafters compared",
        lead=f"{verdict(trial.comparison)}. In the rounds of a server, acceptance length "
        f"{' and '.join(served)}. {_left_out(trial)}{NO_REPAIRS}",
        pictures=(_both(trial.comparison), _difference(trial.comparison)),
        body=_table(trial),
    )


def _left_out(trial: PairTrial) -> str:
    return "Ctrl-C stopped the trial: the other prompts are left out. " if trial.stopped else ""


def _both(comparison: Comparison) -> Picture:
    depths = comparison.at(MARGINAL)
    values = [[each.first for each in depths], [each.second for each in depths]]
    names = _names(comparison)
    return Picture(
        id="compare-both",
        title=f"Acceptance by depth of {names[0]} and {names[1]}",
        how="Share of the drafts from all positions that are accepted up to this depth. Intervals "
        "are in the picture of the difference, because both drafted from the same positions.",
        chart=_chart(
            tuple(line(at, names[at], values[at]) for at in (0, 1)), "of all drafts", None
        ),
        definitions=_DEFINITIONS,
    )


def _difference(comparison: Comparison) -> Picture:
    depths = comparison.at(MARGINAL)
    gaps = [Gap(value=each.difference, interval=each.interval) for each in depths]
    numbers = [each.depth or 0 for each in depths]
    names = _names(comparison)
    return Picture(
        id="compare-difference",
        title=f"{names[1]} minus {names[0]}",
        how="Difference in the share of drafts accepted up to each depth, with its 95% interval "
        "over prompts. An interval that includes 0 shows no difference.",
        chart=_chart(bars(numbers, gaps, [Good.MORE] * len(gaps)), "difference", 0.0),
        definitions=_DEFINITIONS,
        both="compare-both",
    )


def _table(trial: PairTrial) -> Markup:
    return table(
        ["", *_names(trial.comparison), "difference", "95% interval", "p (adjusted)", ""],
        [_row(each) for each in trial.comparison.differences],
        caption=f"Differences over {trial.positions:,} positions of {trial.prompts} prompts",
    )


def _row(each: Difference) -> list[Child]:
    p = each.p_adjusted
    return [
        "acceptance length" if each.metric == LENGTH else f"accepted to depth {each.depth}",
        f"{each.first:.3f}",
        f"{each.second:.3f}",
        signed(each, each.difference),
        between_ends(each),
        "–" if p is None else f"{p:.4f}",
        "differs" if each.differs else "",
    ]


def _chart(series: tuple[Series, ...], y_title: str, level: float | None) -> Chart:
    return Chart(series=series, x_title=BY_DEPTH, y_title=y_title, unit=Unit.SHARE, level=level)


def _names(comparison: Comparison) -> tuple[str, str]:
    return comparison.first, comparison.second
