"""Size of the drafter's hidden state by depth, as RMS: ||x||_2 / sqrt(dimension)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftscope.metrics.definition import Definition

_PAPER = "Attention Drift, arXiv 2605.09992 (RMS, not the raw L2 norm)"

IN_RMS = Definition(
    name="hidden.in_rms",
    title="State fed in",
    meaning="RMS of the hidden state that enters the drafter's first layer. At depth 1 it comes "
    "from the target, at further depths from the drafter itself.",
    unit="1",
    range="0 or more",
    source=_PAPER,
)
PRENORM_RMS = Definition(
    name="hidden.prenorm_rms",
    title="Before the final norm",
    meaning="RMS of the residual stream after the drafter's last layer, before its final norm.",
    unit="1",
    range="0 or more",
    source=_PAPER,
)
POSTNORM_RMS = Definition(
    name="hidden.postnorm_rms",
    title="After the final norm",
    meaning="RMS of the state after the drafter's final norm.",
    unit="1",
    range="0 or more",
    source=_PAPER,
)
FED_RMS = Definition(
    name="hidden.fed_rms",
    title="State fed to the next depth",
    meaning="RMS of the state that the drafter feeds to its own next depth: the state after the "
    "final norm in EAGLE-3.1 (norm_output), the one before the norm in EAGLE-3.",
    unit="1",
    range="0 or more",
    source=_PAPER,
)
GROWTH = Definition(
    name="hidden.growth",
    title="Growth of the hidden state",
    meaning="RMS of the state fed forward at depth K divided by that at depth 1. 1 means that it "
    "keeps its size.",
    unit="1",
    range="0 or more",
    source=_PAPER,
)
AUX_RMS = Definition(
    name="hidden.aux_rms",
    title="Captured target layers",
    meaning="RMS of each target layer's hidden state that the drafter reads, before and, if there "
    "is one, after fc_norm or norm_before_fc.",
    unit="1",
    range="0 or more",
    source="EAGLE-3.1 (fc_norm), vllm-project/vllm#42764",
)
IMBALANCE = Definition(
    name="hidden.aux_imbalance",
    title="Imbalance of the captured layers",
    meaning="RMS of the largest captured target layer over that of the smallest, before and after "
    "the norm in front of the fc. A layer that is far larger than another dominates it.",
    unit="1",
    range="1 or more",
    source="EAGLE-3.1 (fc_norm), vllm-project/vllm#42764",
)


def imbalance(rms: Sequence[float] | None) -> float | None:
    """Return the largest over the smallest RMS; None for fewer than two layers or if one is not a
    positive number."""
    if rms is None or len(rms) < 2 or not all(math.isfinite(r) and r > 0 for r in rms):
        return None
    return max(rms) / min(rms)


def growth(rms: Sequence[float]) -> float | None:
    """Return the last over the first RMS of one quantity by depth; None if that is not a finite
    number."""
    if len(rms) < 1 or not rms[0]:
        return None
    ratio = rms[-1] / rms[0]
    return ratio if math.isfinite(ratio) else None


def per_depth(grown: float, depths: int) -> float:
    """Return the growth from one depth to the next, the geometric mean over `depths` depths; 1 for
    fewer than two."""
    return float(grown ** (1.0 / (depths - 1))) if depths > 1 else 1.0
