"""Distributions of durations, which a mean does not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.request_codes import Requests
from driftscope.analysis.query.column_arrays import floats

AT = tuple(i / 40 for i in range(41))
"""Probabilities of the quantiles kept: enough to draw a smooth curve."""
TTFT, TPOT, BETWEEN, STEP, DRAFT = "ttft_s", "tpot_s", "between_outputs_s", "step_s", "draft_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Distribution of one duration."""

    count: int
    mean_s: float
    quantiles_s: tuple[float, ...]
    """Quantiles at the probabilities `AT`, in seconds."""
    p99_s: float


def durations_of(
    requests: Requests, steps: pa.Table, rounds: pa.Table
) -> Mapping[str, Distribution]:
    """Return the distributions of the durations that the run has, by name; `rounds` may cover only
    some of its requests."""
    probe_s = floats(steps, "probe_s")
    samples = {
        TTFT: requests.ttft_s,
        TPOT: requests.tpot_s,
        BETWEEN: _between(rounds, requests),
        STEP: floats(steps, "step_s") - probe_s,
        DRAFT: floats(steps, "draft_s") - probe_s,
    }
    made = {name: distribution(values) for name, values in samples.items()}
    return {name: value for name, value in made.items() if value is not None}


def _between(rounds: pa.Table, requests: Requests) -> NDArray[np.float64]:
    """Return the times from each output of a request to its next, in seconds; an output is one
    token plus the accepted drafts."""
    request, time_s = requests.codes(rounds), floats(rounds, "time_s")
    order = np.lexsort((time_s, request))
    same = np.diff(request[order]) == 0
    gaps: NDArray[np.float64] = np.diff(time_s[order])[same]
    return gaps


def distribution(values: NDArray[np.float64]) -> Distribution | None:
    """Return the distribution of the `values`, in seconds, that are finite and not negative; None
    without one."""
    values = values[np.isfinite(values) & (values >= 0)]
    if not len(values):
        return None
    *kept, p99 = np.quantile(values, [*AT, 0.99])
    return Distribution(
        count=len(values),
        mean_s=float(f"{values.mean():.6g}"),
        quantiles_s=tuple(float(f"{value:.5g}") for value in kept),
        p99_s=float(f"{p99:.5g}"),
    )
