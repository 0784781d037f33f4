"""A comparison of two runs, as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from driftscope.analysis.compare.run_comparison import (
    LENGTH,
    MARGINAL,
    WHOLE,
    Comparison,
    Difference,
)
from driftscope.analysis.compare.run_differences import doubt
from driftscope.analysis.compare.time_comparison import TPOT, TTFT
from driftscope.analysis.figures.request_pairing import UNPAIRED
from driftscope.analysis.number_words import (
    NOTHING,
    count,
    largest,
    milliseconds,
    number,
    runs_of_numbers,
)
from driftscope.analysis.statistics.multiple_comparisons import ALPHA
from driftscope.boundary import strict_json
from driftscope_reports.terminal.run_table import plain

SCHEMA_VERSION = 1
HOLM = "Holm"
JOINT = {True: "max-|t|, signs of pairs drawn", False: "max-|t|, requests dealt anew"}
"""How p-values are adjusted: by whether requests are paired."""
_DIGITS = 9
_TIMES = {TPOT: "time per output token", TTFT: "time to first token"}
_NAMES = {LENGTH: "acceptance length", **_TIMES}


def to_json(found: Comparison) -> str:
    """The comparison as text, newline at the end; same runs, same bytes."""
    content = {
        **asdict(found),
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict(found),
        "parts_from": found.parts_from,
        "correction": HOLM if found.at(TPOT) else JOINT[found.pairing != UNPAIRED],
        "apart_at": found.apart_at,
        "bound": found.bound,
        "warning": doubt(found.unlike),
        "alpha": ALPHA,
        "differences": [{**asdict(d), "differs": d.differs} for d in found.differences],
    }
    return strict_json.dumps(_clean(content), indent=1, sort_keys=True) + "\n"


def verdict(found: Comparison) -> str:
    """One sentence: from which depth on which run accepts more, or that nothing shows it."""
    if times := found.at(TPOT):
        return _faster(found, times[0])
    depth, by_depth = found.parts_from, found.at(MARGINAL)
    (length,) = found.at(LENGTH)
    if depth is not None:
        at = by_depth[depth - 1]
        noun = "depth" if len(found.apart_at) == 1 else "depths"
        return (
            f"{_better(found, at)} accepts more from depth {depth} on: {_apart(at)} there (95% "
            f"interval {_between(at)}); the runs differ at {noun} "
            f"{runs_of_numbers(found.apart_at)}{_opposite(found, at, length)}"
        )
    if length.differs:
        return (
            f"{_better(found, length)} has the longer acceptance length, by "
            f"{_apart(length)} (95% interval {_between(length)}), and no single depth differs"
        )
    some = [d for d in found.differences if d.differs]
    if some:
        return f"the runs differ in {count(len(some), 'figure')} of single labels, and not overall"
    if found.bound is None:
        return "nothing tells the runs apart: too little is recorded to say how far apart they are"
    return f"nothing tells the runs apart: {largest(found.bound)}"


def _opposite(found: Comparison, at: Difference, length: Difference) -> str:
    """The other run, where it has the longer acceptance length all the same."""
    if (at.difference > 0) == (length.difference > 0):
        return ""
    return f"; {_better(found, length)} has the longer acceptance length, {_apart(length)}"


def _faster(found: Comparison, tpot: Difference) -> str:
    if not tpot.differs:
        return "nothing tells the runs' times per output token apart"
    better = found.second if tpot.difference < 0 else found.first
    low, high = sorted((tpot.first, tpot.second))
    return (
        f"{better} serves faster: {milliseconds(low)} per output token against "
        f"{milliseconds(high)} (95% interval of the difference {_between(tpot)})"
    )


def show(found: Comparison) -> None:
    """The comparison on stdout: the verdict first."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)
    console.print(f"{verdict(found)}.")
    console.print(_pairing(found))
    if said := doubt(found.unlike):
        console.print(f"Mind: {plain(said)}.")
    table = Table("", found.first, found.second, "difference", "95% interval", "p (adjusted)", "")
    for each in found.differences:
        table.add_row(
            _name(each),
            milliseconds(each.first) if each.metric in _TIMES else number(each.first, 3),
            milliseconds(each.second) if each.metric in _TIMES else number(each.second, 3),
            _signed(each, each.difference),
            _between(each) if each.interval else "not tested",
            _p(each.p_adjusted),
            "differs" if each.differs else "",
        )
    console.print(table)


def _name(each: Difference) -> str:
    what = _NAMES.get(each.metric, f"accepted to depth {each.depth}")
    return what if each.segment == WHOLE else f"{each.segment}: {what}"


def _pairing(found: Comparison) -> str:
    if found.pairing == UNPAIRED:
        return (
            f"Unpaired: {found.requests[0]:,} against {count(found.requests[1], 'request')}; the "
            "runs did not answer the same prompts."
        )
    alone = f"; {found.alone:,} without a partner left out" if found.alone else ""
    return f"Paired by {found.pairing}: {count(found.pairs, 'pair')}{alone}."


def _better(found: Comparison, at: Difference) -> str:
    return found.second if at.difference > 0 else found.first


def _apart(at: Difference) -> str:
    low, high = sorted((at.first, at.second))
    return f"{high:.3f} against {low:.3f}"


def _between(each: Difference) -> str:
    if each.interval is None:
        return "–"
    return f"{_signed(each, each.interval.low)} to {_signed(each, each.interval.high)}"


def _signed(each: Difference, value: float) -> str:
    if not math.isfinite(value):
        return NOTHING
    return f"{1000 * value:+.2f} ms" if each.metric in _TIMES else f"{value:+.3f}"


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def _clean(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
