"""Correlation of the errors of a run's figures and its baseline's, for shared prompts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from driftscope.analysis.figures.request_pairing import UNPAIRED, Pairing, pair
from driftscope.analysis.figures.round_sums import Rounds
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.column_arrays import Codes, Matrix


def correlations(run: Sums, baseline: Sums) -> Mapping[str, float]:
    """Return correlations by path of the JSON report; {} for runs that did not answer the same
    prompts.

    They are computed from the jackknife's influences over pairs of requests. Requests without a
    partner, which the figures also count, have nothing in common, so the correlation is reduced by
    their share.
    """
    there = [np.zeros(len(each.requests), dtype=np.bool_) for each in (run, baseline)]
    for mine, each in zip(there, (run, baseline), strict=True):
        mine[each.rounds.request[each.rounds.rounds > 0]] = True
    pairing = pair(run.requests, baseline.requests, *there)
    if pairing.how == UNPAIRED:
        return {}
    share = len(pairing.first) / np.sqrt(float(there[0].sum()) * float(there[1].sum()))
    return {name: share * value for name, value in _of(run, baseline, pairing).items()}


def _of(run: Sums, baseline: Sums, pairing: Pairing) -> dict[str, float]:
    ours, theirs = _rounds(run, pairing.first), _rounds(baseline, pairing.second)
    out = of_acceptance(ours, theirs.grouped_like(ours))
    times = run.requests.tpot_s[pairing.first], baseline.requests.tpot_s[pairing.second]
    known = np.isfinite(times[0]) & np.isfinite(times[1])
    if known.sum() > 1:
        same = _correlation(*(each[known] - each[known].mean() for each in times))
        out |= {"latency.tpot_s": same} if np.isfinite(same) else {}
    return out


def of_acceptance(ours: Rounds, theirs: Rounds) -> dict[str, float]:
    """Return the correlations of the acceptance length and of the rate at each depth, for rounds
    whose rows are pairs; a figure that does not vary is left out."""
    deep = ours.k, theirs.k
    k = min(deep)
    a, b = (
        np.hstack([each.length_ratio().influence, each.marginal_ratio().influence[:, :k]])
        for each in (ours, theirs)
    )
    names = ["acceptance.mean_length", *(f"acceptance.marginal[{d}]" for d in range(k))]
    out = {name: _correlation(a[:, at], b[:, at]) for at, name in enumerate(names)}
    if deep[0] == deep[1]:  # otherwise their last depths differ
        out |= {f"acceptance.marginal[{d - k}]": out[names[d + 1]] for d in range(k)}
    return {name: value for name, value in out.items() if np.isfinite(value)}


def _rounds(run: Sums, requests: Codes) -> Rounds:
    """Return the rows of these requests, in this order."""
    place = np.zeros(len(run.requests), dtype=np.int64)
    place[run.rounds.request] = np.arange(len(run.rounds.request))
    return run.rounds.where(place[requests])


def _correlation(a: Matrix, b: Matrix) -> float:
    size = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum() / size) if size > 0 else float("nan")
