"""From a trace to its summary."""

from __future__ import annotations

import numpy as np

from driftscope.analysis import measure
from driftscope.analysis.chains import AUX, Chains, chains_of
from driftscope.analysis.columns import floats, ints, matrix
from driftscope.analysis.consistency import check
from driftscope.analysis.cost.cells import cells_of
from driftscope.analysis.grouping import groups_of
from driftscope.analysis.join import accepted_of_chains
from driftscope.analysis.requests import Requests, requests_of
from driftscope.analysis.rounds import Rounds, rounds_of
from driftscope.analysis.segments import segments_of
from driftscope.analysis.summary import Latency, Recording, RunSummary
from driftscope.metrics.chains import by_depth
from driftscope.metrics.fallback import fallback
from driftscope.metrics.latency import mean_s
from driftscope.metrics.overhead import overhead_fraction
from driftscope.metrics.throughput import StepCost
from driftscope.trace.reader import Trace

ENOUGH_STEPS = 10
"""Unrecorded steps from which a median step time is taken; with fewer, recorded ones count too."""


def summarise(trace: Trace, label: str) -> RunSummary:
    """The summary of `trace`, called `label` from here on.

    Raises MixedTraceError, DamagedTraceError or NoDataError.
    """
    check(trace)
    requests = requests_of(trace)
    rounds, chains = rounds_of(trace, requests), chains_of(trace, requests)
    return RunSummary(
        label=label,
        manifest=trace.manifest,
        rounds=len(rounds),
        requests=len(requests),
        acceptance=measure.acceptance(rounds, trace.manifest.k, intervals=True),
        attention=measure.attention(
            chains, trace.manifest.k, trace.manifest.sink_slots, sinkless=trace.manifest.sinkless
        ),
        hidden=measure.hidden(chains, *(_aux(trace, name, chains) for name in AUX)),
        confidence=measure.confidence(chains),
        latency=Latency(ttft_s=mean_s(requests.ttft_s), tpot_s=mean_s(requests.tpot_s)),
        fallback=fallback(int((rounds.accepted == 0).sum()), len(rounds), rounds.reasons),
        recording=_recording(trace, requests, rounds, chains),
        cost=_cost(trace),
        segments=segments_of(requests, rounds, chains, trace.manifest.k),
        problems=trace.problems,
        cells=cells_of(trace.step),
        groups=groups_of(trace, requests),
    )


def _aux(trace: Trace, name: str, chains: Chains) -> tuple[float, ...] | None:
    """Mean by captured layer."""
    values = matrix(trace.draft, name, len(trace.manifest.aux_layers))
    return None if values is None else by_depth(values, chains.weight)


def _recording(trace: Trace, requests: Requests, rounds: Rounds, chains: Chains) -> Recording:
    verified = np.isfinite(accepted_of_chains(trace, requests))
    return Recording(
        chains=len(chains),
        verified_chains=int(verified.sum()),
        chunked_chains=int(chains.chunked_prefill.sum()),
        broken_chains=int(chains.broken.sum()),
        short_rounds=int((rounds.drafted < trace.manifest.k).sum()),
        dropped=sum(sum(status.dropped.values()) for status in trace.statuses),
        errors=sum(sum(status.errors.values()) for status in trace.statuses),
        overhead_fraction=_overhead(trace),
    )


def _overhead(trace: Trace) -> float | None:
    """Worker time comes by step; a status counts only for the engine core, or it would be twice."""
    engine_s = sum(s.probe_s for s in trace.statuses if not s.source.startswith("worker"))
    return overhead_fraction(
        float(floats(trace.step, "probe_s").sum()),
        engine_s,
        float(floats(trace.step, "step_s").sum()),
    )


def _cost(trace: Trace) -> StepCost | None:
    """Median times of steps that drafted, without the probe's own; a prefill is an outlier."""
    drew = ints(trace.step, "chains") > 0
    plain = drew & (floats(trace.step, "recorded") == 0)
    recorded = int(plain.sum()) < ENOUGH_STEPS
    chosen = drew if recorded else plain
    if not chosen.any():
        return None
    probe_s = floats(trace.step, "probe_s")
    step_s = float(np.median((floats(trace.step, "step_s") - probe_s)[chosen]))
    draft_s = float(np.median((floats(trace.step, "draft_s") - probe_s)[chosen]))
    if not 0 < draft_s < step_s:
        return None
    return StepCost(step_s=step_s, draft_s=draft_s, recorded=recorded)
