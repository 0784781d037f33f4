"""Metrics of the drafter's confidence in its own tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from driftscope.metrics.definition import Definition

BINS = 10
"""Number of equally wide confidence bins, as in published reliability curves (Guo et al. 2017)."""

TOP1 = Definition(
    name="confidence.top1",
    title="Confidence",
    meaning="Largest probability in the drafter's softmax, averaged over recorded chains.",
    unit="1",
    range="0 to 1",
    source="driftscope",
)
ENTROPY = Definition(
    name="confidence.entropy",
    title="Entropy",
    meaning="Entropy of the same softmax. Higher means less sure.",
    unit="nat",
    range="0 to log(draft vocabulary)",
    source="driftscope",
)
RELIABILITY = Definition(
    name="confidence.reliability",
    title="Reliability",
    meaning="Of the tokens that verification reached, grouped by the drafter's confidence: their "
    "mean confidence, and the share that the target accepted. Calibrated means that both agree.",
    unit="1",
    range="0 to 1",
    source="Guo et al. 2017, On Calibration of Modern Neural Networks",
)
ECE = Definition(
    name="confidence.ece",
    title="Calibration error",
    meaning="Mean distance of confidence and acceptance over the groups of the reliability curve, "
    "each weighing as many tokens as it holds.",
    unit="1",
    range="0 to 1",
    source="expected calibration error, Guo et al. 2017",
)


def calibration_error(weight: ArrayLike, sure: ArrayLike, accepted: ArrayLike) -> float | None:
    """Return the calibration error from sums by bin: `weight` is all weight, `sure` weighted
    confidence and `accepted` weight accepted; None without tokens."""
    whole = np.asarray(weight, dtype=np.float64).sum()
    if not whole:
        return None
    return float(np.abs(np.asarray(sure) - np.asarray(accepted)).sum() / whole)
