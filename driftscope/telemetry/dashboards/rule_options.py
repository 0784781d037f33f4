"""Windows and thresholds of the rules, which `driftscope dashboards` takes as options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ACCEPTANCE_FELL_BELOW = 0.8
"""Acceptance length as a share of its reference below which an alert begins. Across workloads one
drafter's length differs by about a tenth; a wrong chat template cost the paper's pre-norm drafter
38 % (arXiv 2605.09992)."""
ACCEPTANCE_BACK_AT = 0.85
"""Share at which it ends: a length that varies around one bound would end it again and again."""
GROWTH_ROSE_TO = 1.25
"""Ratio of hidden growth to its reference above which an alert begins. A drafter's growth depends
on its weights: it changes when they do, or when inputs are far from the training data."""
GROWTH_BACK_AT = 1.18
LEAST_ROUNDS = 1
"""Rounds per second below which a mean is unreliable."""
LEAST_CHAINS = 20
"""Recorded chains in `Times.chain_window` below which their mean says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Durations of the rules, in Prometheus's syntax."""

    window: str = "5m"
    """Time window of the rates of what every round counts."""
    chain_window: str = "30m"
    """Time window of means over recorded chains: at the default budget about one step in 200 is
    recorded, so that shorter windows often hold none."""
    past: str = "7d"
    """Length of a model's own past, which ends a `gap` ago."""
    gap: str = "1h"
    hold: str = "10m"
    """Time for which a condition must hold before its alert fires, and for which a model must be
    back before it ends. At least `window`: the last rounds before a pause are few."""
    keep: str = "30m"
    """Time for which an alert goes on after its condition has ended."""
    memory: str = "1d"
    """Time for which the state of a model is kept while none of its engines reports."""
    evaluate: str = "30s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Bounds that depend on a fleet's traffic."""

    least_rounds: float = LEAST_ROUNDS
    acceptance: float = ACCEPTANCE_FELL_BELOW
    acceptance_back: float = ACCEPTANCE_BACK_AT
    references: Mapping[str, float] = field(default_factory=dict)
    """Acceptance length to compare with, by served model name, in place of its past."""
