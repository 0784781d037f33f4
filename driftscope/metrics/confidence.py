"""The drafter's confidence in its own tokens, and its agreement with the target at each depth."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    "curve, each weighted by its number of tokens. Few tokens alone make it larger than 0.",
    unit="1",
    range="0 to 1",
    source="expected calibration error, Guo et al. 2017",
)
BIAS = Definition(
    name="confidence.bias",
    title="Confidence minus acceptance",
    meaning="Mean confidence of the tokens that verification reached, minus the share of them that "
    "the target accepted. Above 0 the drafter is surer than it is right.",
    unit="1",
    range="-1 to 1",
    source="driftscope",
)
SURVIVAL_ECE = Definition(
    name="confidence.survival_ece",
    title="Calibration error of the chain",
    meaning="Calibration error of the product of the confidences up to a depth, as the chance that "
    "a round is accepted that far. What trims drafts by confidence uses this product.",
    unit="1",
    range="0 to 1",
    source="DSpark, arXiv 2607.05147",
)
AUROC = Definition(
    name="confidence.auroc",
    title="AUROC",
    meaning="Chance that an accepted token had more confidence than a rejected one of the same "
    "depth, ties counted half. At 0.5 no threshold can tell them apart.",
    unit="1",
    range="0 to 1",
    source="Mann and Whitney 1947; interval over clusters, Obuchowski 1997",
)
BRIER = Definition(
    name="confidence.brier",
    title="Brier score",
    meaning="Mean square of confidence minus outcome: reliability (0 if calibrated) minus "
    "resolution (what confidence tells) plus uncertainty (acceptance itself), and what the groups "
    "of the reliability curve hide.",
    unit="1",
    range="0 to 1",
    source="Brier 1950; decomposition, Murphy 1973",
)
TEMPERATURE = Definition(
    name="confidence.temperature",
    title="Fitted temperature",
    meaning="Number by which to divide the logit of the confidence so that it predicts acceptance "
    "best (largest likelihood). Above 1 the drafter is too sure, below 1 not sure enough.",
    unit="1",
    range="above 0",
    source="Guo et al. 2017; by depth, DSpark, arXiv 2607.05147",
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
NEAR_MISSES = Definition(
    name="near_misses",
    title="Near misses",
    meaning="Of the chains that end before K, the share whose first wrong token was nearly right: "
    "the target's token is among the drafter's best n, or the drafted one is the target's second "
    "choice.",
    unit="1",
    range="0 to 1",
    source="driftscope ablate",
)


def calibration_error(weight: ArrayLike, sure: ArrayLike, accepted: ArrayLike) -> float | None:
    """Return the calibration error from sums by bin: `weight` is all weight, `sure` weighted
    confidence and `accepted` weight accepted; None without tokens."""
    whole = np.asarray(weight, dtype=np.float64).sum()
    if not whole:
        return None
    return float(np.abs(np.asarray(sure) - np.asarray(accepted)).sum() / whole)


Array = NDArray[np.float64]
SUREST = 2.0**-12
"""Distance from 0 and 1 to which a confidence is moved for its logit: half the step to which a
sealed trace rounds a number near 1."""


def placements(score: Array, hit: NDArray[np.bool_]) -> Array:
    """Return, for each token, the share of the tokens of the other outcome that it is rightly
    placed from, ties counted half: the mean over the accepted ones is the AUROC. There must be both
    outcomes."""

    def below(values: Array, among: Array) -> Array:
        ordered = np.sort(among)
        sides = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
        return np.asarray(sum(sides) / (2.0 * len(among)), dtype=np.float64)

    out = np.empty(len(score))
    out[hit] = below(score[hit], score[~hit])
    out[~hit] = 1.0 - below(score[~hit], score[hit])
    return out


def brier_parts(
    tokens: Array, sure: Array, accepted: Array, score: float
) -> tuple[float, float, float, float]:
    """Return reliability, resolution, uncertainty and the rest, whose sum, resolution negative, is
    the Brier `score`; the others are sums by group."""
    n = tokens.sum()
    rate = accepted.sum() / n
    reliability = float((tokens * np.square((sure - accepted) / tokens)).sum() / n)
    resolution = float((tokens * np.square(accepted / tokens - rate)).sum() / n)
    uncertainty = float(rate * (1.0 - rate))
    return reliability, resolution, uncertainty, score - reliability + resolution - uncertainty


def logit_of(confidence: Array) -> Array:
    """Return the logit of confidences, those nearer to 0 or 1 than SUREST moved to there."""
    inner = np.clip(confidence, SUREST, 1.0 - SUREST)
    return np.asarray(np.log(inner) - np.log1p(-inner))


def fitted_slope(logit: Array, hit: Array) -> float:
    """Return the factor of the logits, 1 / temperature, with the largest likelihood, by Newton's
    method within -10 to 10."""
    slope = 1.0
    for _ in range(50):
        chance = 1.0 / (1.0 + np.exp(-slope * logit))
        curvature = float((chance * (1.0 - chance) * logit * logit).sum())
        if not curvature > 0:
            break
        step = float(((hit - chance) * logit).sum()) / curvature
        slope = float(np.clip(slope + np.clip(step, -1.0, 1.0), -10.0, 10.0))
        if abs(step) < 1e-10:
            break
    return slope
