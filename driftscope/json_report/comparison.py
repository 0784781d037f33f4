"""A comparison of two runs as a JSON document."""

from __future__ import annotations

from dataclasses import asdict

from driftscope.analysis.compare.comparison_verdict import verdict
from driftscope.analysis.compare.run_comparison import Comparison
from driftscope.analysis.compare.run_differences import doubt
from driftscope.analysis.compare.time_comparison import TPOT
from driftscope.analysis.figures.request_pairing import UNPAIRED
from driftscope.analysis.statistics.multiple_comparisons import ALPHA
from driftscope.json_report.document import COMPARISON, text

HOLM = "Holm"
JOINT = {True: "max-|t|, signs of pairs drawn", False: "max-|t|, requests dealt anew"}
"""Adjustment of p-values, by whether requests are paired."""


def to_json(found: Comparison) -> str:
    """Return the comparison as text, newline at the end."""
    content = {
        **asdict(found),
        "verdict": verdict(found),
        "parts_from": found.parts_from,
        "correction": HOLM if found.at(TPOT) else JOINT[found.pairing != UNPAIRED],
        "apart_at": found.apart_at,
        "bound": found.bound,
        "warning": doubt(found.unlike),
        "alpha": ALPHA,
        "differences": [{**asdict(d), "differs": d.differs} for d in found.differences],
    }
    return text(COMPARISON, content)
