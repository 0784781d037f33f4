"""A comparison of two runs as a JSON document."""

from __future__ import annotations

from typing import Any

from driftscope.analysis.compare import TPOT, Comparison, verdict
from driftscope.analysis.figures.side import UNPAIRED
from driftscope.analysis.run_differences import doubt
from driftscope.analysis.statistics.permutation import ALPHA
from driftscope.json_report.document import COMPARISON, plain, text

HOLM = "Holm"
JOINT = {True: "max-|t|, signs of pairs drawn", False: "max-|t|, requests dealt anew"}
"""Adjustment of p-values, by whether requests are paired."""


def to_json(comparison: Comparison) -> str:
    """Return the comparison as text, newline at the end."""
    return text(COMPARISON, content(comparison))


def content(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values, which other documents contain."""
    return {
        **plain(comparison),
        "verdict": verdict(comparison),
        "parts_from": comparison.parts_from,
        "correction": HOLM if comparison.at(TPOT) else JOINT[comparison.pairing != UNPAIRED],
        "apart_at": comparison.apart_at,
        "bound": comparison.bound,
        "warning": doubt(comparison.unlike),
        "alpha": ALPHA,
        "differences": [{**plain(d), "differs": d.differs} for d in comparison.differences],
    }
