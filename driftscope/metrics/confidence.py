"""The drafter's confidence in its own tokens, and its agreement with the target at each depth."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from driftscope.metrics.definition import Definition

BINS = 10
"""Number of equally wide confidence bins, as in published reliability curves (Guo et al. 2017)."""
CALIBRATED = 0.1
"""Largest difference of mean confidence and rate at depth 1 of a drafter that knows how often it is
right. Drafters with a mistake in the wiring that accept little are surer than right by 0.12 or
more, or right by chance only."""
RIGHT_BY_SKILL = 0.2
"""Rate at depth 1 that chance does not reach: a trained head on random states reached 0.18 in the
shipped target."""
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
    meaning="Entropy of the same softmax. Higher means less confident.",
    unit="nat",
    range="0 to log(draft vocabulary)",
    source="driftscope",
)
RELIABILITY = Definition(
    name="confidence.reliability",
    title="Reliability",
    meaning="Mean confidence of the tokens that verification reached, and the share of them that "
    "the target accepted, in groups by the drafter's confidence. A drafter is calibrated if the "
    "two agree.",
    unit="1",
    range="0 to 1",
    source="Guo et al. 2017, On Calibration of Modern Neural Networks",
)
ECE = Definition(
    name="confidence.ece",
    title="Calibration error",
    meaning="Mean distance between confidence and acceptance over the groups of the reliability "
    "curve, each weighted by its number of tokens.",
    unit="1",
    range="0 to 1",
    source="expected calibration error, Guo et al. 2017",
)
AGREEMENT = Definition(
    name="agreement",
    title="Agreement",
    meaning="Share of the positions at which the token drafted at this depth is the target's, "
    "whatever came before it in the chain.",
    unit="1",
    range="0 to 1",
    source="driftscope ablate",
)
LOSS_PARTS = Definition(
    name="decomposition",
    title="Parts of the loss of agreement",
    meaning="Agreement at depth 1 minus that at depth K, divided into what right tokens give back, "
    "what right states give back, and the rest. The first two are means over both orders.",
    unit="1",
    range="-1 to 1",
    source="driftscope ablate; the Shapley value of two factors",
)


def calibration_error(weight: ArrayLike, sure: ArrayLike, accepted: ArrayLike) -> float | None:
    """Return the calibration error from sums by bin: `weight` is all weight, `sure` weighted
    confidence and `accepted` weight accepted; None without tokens."""
    whole = np.asarray(weight, dtype=np.float64).sum()
    if not whole:
        return None
    return float(np.abs(np.asarray(sure) - np.asarray(accepted)).sum() / whole)
