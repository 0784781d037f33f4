"""Simulated runs and what is concluded of them, as several tables need them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray
from support.simulate import Truth, simulate

from driftscope.analysis.compare import Comparison, comparison
from driftscope.analysis.figures.change_points import Series, changes
from driftscope.analysis.figures.rounds import Rounds, Side
from driftscope.analysis.pairing import BY_DIGEST, UNPAIRED, Pairing
from driftscope.analysis.replays import ReplaySummary
from driftscope.analysis.validity import validity_of
from driftscope.findings.finding import Finding
from driftscope.pipeline import conclude, summarise
from driftscope.trace.manifest import client_manifest
from driftscope.trace.reader import Trace, read_trace

Ints, Floats = NDArray[np.int64], NDArray[np.float64]


def chance(logit: Any) -> Any:
    """Return the probability of a logit."""
    return 1 / (1 + np.exp(-logit))


def accepted(random: RandomState, chances: Floats) -> Ints:
    """Draw the tokens that rounds accept, given the chance at each depth, the last axis."""
    hit = random.random_sample(chances.shape) < chances
    return np.minimum.accumulate(hit, axis=-1).sum(axis=-1)


def rounds_by_length(
    request: Ints, verified: Ints, accepted: Ints, requests: int, k: int
) -> Rounds:
    """Return the sums of rounds, given by request, tokens verified and tokens accepted."""
    sums = np.zeros((3, requests, k + 1), dtype=np.int64)
    np.add.at(sums[0], (request, accepted), 1)
    np.add.at(sums[1], (request, verified), 1)
    np.add.at(sums[2], (request, verified), accepted == verified)
    return Rounds(
        request=np.arange(requests),
        rounds=sums[0].sum(axis=1),
        verified=np.bincount(request, verified, requests).astype(np.int64),
        histogram=sums[0],
        lengths=sums[1],
        exhausted=sums[2],
        mix=np.zeros(k + 1),
    )


def compared(first: Side, second: Side, *, paired: bool = False) -> Comparison:
    """Compare two runs; paired ones answered the same prompts in one order."""
    rows = np.arange(len(first.labels) if paired else 0)
    how = BY_DIGEST if paired else UNPAIRED
    pairing = Pairing(how=how, first=rows, second=rows, alone=0)
    return comparison(first, second, ("a", "b"), pairing)


def differ(first: Side, second: Side, *, paired: bool = False) -> bool:
    """Return whether two runs are called different."""
    return any(row.differs for row in compared(first, second, paired=paired).differences)


def changed(tokens: Floats, rounds: Ints, **more: Any) -> bool:
    """Return whether a change over time is found in requests that began one after another."""
    n = len(tokens)
    series = Series(
        **{"start_s": np.arange(n, dtype=np.float64), "end_s": float(n), **more},
        tokens=np.asarray(tokens, dtype=np.float64),
        rounds=rounds.astype(np.float64),
        labels=np.full(n, "all"),
    )
    result = changes(series)
    return result is not None and bool(result.points)


def trace_of(truth: Truth) -> Trace:
    """Return a simulated run, as read from its files."""
    with tempfile.TemporaryDirectory() as folder:
        return read_trace(simulate(Path(folder) / "run", truth))


def findings_of(truth: Truth) -> tuple[Finding, ...]:
    """Return what is found in a simulated run."""
    return conclude([summarise(trace_of(truth), "run")]).findings


def measurement(label: str, workload: dict[str, Any], **facts: Any) -> ReplaySummary:
    """Return a measurement by a client, or a file's figures, without problems."""
    empty: dict[str, Any] = {"planned": None, "cells": (), "rows": ()}
    return ReplaySummary(
        **{**empty, **facts},
        label=label,
        manifest=client_manifest("abc", {"model": "m"} if workload else {}, workload, ()),
        ended={},
        joined=0,
        outside_s=None,
        gpu_used_bytes=None,
        gpu_power_w=None,
        problems=(),
        validity=validity_of({}, (), warmup=None, length=(None, None), tpot=()),
    )
