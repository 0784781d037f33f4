"""Computation of a run's summary: what is queried once its sums are known, and arithmetic on it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.circumstances import groups_of
from driftscope.analysis.closeup import closeup_of
from driftscope.analysis.condition_columns import WEIGHTS
from driftscope.analysis.cost import StepTimes, step_times
from driftscope.analysis.figures.attention_drift import attention_drift
from driftscope.analysis.figures.chains import chains_in_buckets, denominator, numerator
from driftscope.analysis.figures.change_points import changes_of
from driftscope.analysis.figures.requests import Requests, evenly
from driftscope.analysis.figures.results import (
    AcceptanceAtK,
    Latency,
    LengthAtK,
    Recording,
    Segment,
    acceptance_at,
    acceptance_of,
    attention_of,
    chain_fall,
    confidence_of,
    hidden_of,
    spread_of_chains,
    spread_of_fallback,
    spread_of_rounds,
)
from driftscope.analysis.figures.rounds import Rounds, by_batch, duration, rounds_in_buckets
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.figures.verified_chains import (
    VerifiedChains,
    inside_and_acceptance,
    look_at,
    near_misses,
    verification_of,
)
from driftscope.analysis.query.query_engine import floats, in_order, sums_column, whole
from driftscope.analysis.query.record_views import (
    CHOSEN,
    PART,
    REQUEST,
    Derived,
    cut,
    numbered,
    table,
    updates_of,
)
from driftscope.analysis.query.row_filters import (
    BY_K,
    BY_LABEL,
    Bucket,
    Update,
    bucket_of,
    name_of,
)
from driftscope.analysis.statistics.ratio import mean_time_interval, ratio_intervals
from driftscope.analysis.summary.run_summary import RunSummary, independence_of, rank_states
from driftscope.metrics.fallback import effective_k, fallback
from driftscope.metrics.hidden import growth
from driftscope.metrics.latency import (
    StepCost,
    cost_of,
    inter_token_s,
    mean_s,
    outside_steps,
    overhead_fraction,
)

if TYPE_CHECKING:
    import ibis.expr.types as ir


def summary_of(label: str, run: Sums, by: str = BY_LABEL) -> RunSummary:
    """Return the summary of a run, named `label`, whose segments are split `by` a key of
    `driftscope.analysis.query.row_filters.BY` or a span of time. Raises UsageError for an unknown
    way to split.
    """
    in_steps = look_at(run)
    verification, (within, calibrated) = verification_of(run), inside_and_acceptance(run, in_steps)
    in_batch = run.tables.engine.rows(by_batch(run.shape, narrowed=run.tables.is_narrowed))
    steps, requests, seen_whole = step_times(run.tables), run.requests, run.seen_whole
    undrafted = int(run.undrafted.sum())
    return RunSummary(
        label=label,
        manifest=run.tables.manifest,
        problems=run.tables.problems,
        slice=run.slice,
        cohort=run.cohort,
        independence=independence_of(run.rounds, requests.units),
        k=run.shape.k,
        ks=run.shape.ks,
        depths=run.shape.depths,
        rounds=len(run.rounds),
        requests=len(requests),
        acceptance=acceptance_of(run.rounds, spread=seen_whole, by_k=_by_k(run)),
        lengths_by_k=lengths_by_k(run),
        changes=changes_of(run, in_batch) if seen_whole and run.rounds.comparable_k else None,
        side=run.side,
        groups=groups_of(run, in_batch, verification.by_execution),
        segments=segments_of(run) if by == BY_LABEL else segments_by(run, by),
        closeup=closeup_of(run, steps.rows),
        attention=attention_of(run.chains),
        attention_drift=attention_drift(run, in_steps),
        hidden=hidden_of(run.chains),
        confidence=confidence_of(run.chains, calibrated, near_misses(run, in_steps)),
        within_request=within,
        spread={
            **spread_of_chains(run.chains),
            **(spread_of_rounds(run.rounds) if seen_whole else {}),
        },
        latency=_latency(requests, steps.cost),
        cost=steps.cost,
        cells=steps.cells,
        slowdown=steps.slowdown,
        fallback=replace(
            fallback(
                int(run.rounds.histogram[:, 0].sum()),
                len(run.rounds),
                {name: int(number.sum()) for name, number in run.reasons.items()},
            ),
            drafts=run.drafts,
            cut=dict(run.cut),
        ),
        fall=chain_fall(run.rounds.reached, run.rounds.at_risk, run.rounds.over_clusters)
        if seen_whole and not run.shape.mixed
        else None,
        fallback_spread=spread_of_fallback(run.rounds, run.reasons),
        effective_k=effective_k(int(run.rounds.verified.sum()), len(run.rounds) + undrafted),
        recording=_recording(run, verification, steps),
        updates=_updates(run),
        rank_states=rank_states(run.tables),
    )


def _by_k(run: Sums) -> tuple[AcceptanceAtK, ...]:
    """Return the acceptance for each K that the run asked for and some round drafted; () in a run
    of one K."""
    if run.by_length is None:
        return ()
    length = whole(run.by_length, "length")
    rounds = run.rounds_of(run.by_length, run.requests.codes(run.by_length))
    parts = [(k, rounds.where(length == k)) for k in run.shape.ks]
    return tuple(acceptance_at(k, part.requests, part) for k, part in parts if len(part))


def _latency(requests: Requests, cost: StepCost | None) -> Latency:
    units, spans = requests.units, requests.spans
    return Latency(
        ttft_s=mean_s(requests.ttft_s),
        tpot_s=mean_s(requests.tpot_s),
        tpot_s_interval=mean_time_interval(requests.tpot_s, spans, units.unit, units.crossed),
        ttft_s_interval=mean_time_interval(requests.ttft_s, spans, units.unit, units.crossed),
        inter_token_s=inter_token_s(requests.tpot_s, requests.output_tokens),
        draft_s=None if cost is None else cost.draft_s,
        verify_s=None if cost is None else cost.step_s - cost.draft_s,
    )


def _recording(run: Sums, checked: VerifiedChains, steps: StepTimes) -> Recording:
    statuses, chains = run.tables.statuses, len(run.chains) + run.shallower.chains
    some, verified = 0 < checked.looked_at < chains, checked.verified
    whole_rounds = int(run.rounds.lengths[:, list(run.shape.ks)].sum())
    stand_for = float(run.chains.weight.sum()) + run.shallower.weight
    # The cost of the probe, all in. A worker's hooks and its steps come from the step rows, of
    # which there may be a part only; what the statuses count covers the run and is scaled to that
    # part, if they know the time of all steps.
    overhead = None
    if steps.step_s:
        costs = [cost_of(s.source, s.probe_s, s.writer_s, s.step_s) for s in statuses]
        engine_s, writer_s, all_s = outside_steps(costs)
        share = min(1.0, steps.step_s / all_s) if all_s else 1.0
        overhead = overhead_fraction(
            steps.probe_s, share * engine_s, steps.step_s, share * writer_s
        )
    return Recording(
        chains=chains,
        verified_chains=round(verified / checked.looked_at * chains) if some else verified,
        looked_at=checked.looked_at if some else None,
        chunked_chains=int(run.chains.chunked.sum()) + run.shallower.chunked,
        broken_chains=run.broken,
        short_rounds=len(run.rounds) - whole_rounds,
        dropped=sum(sum(status.dropped.values()) for status in statuses),
        errors=sum(sum(status.errors.values()) for status in statuses),
        overhead_fraction=overhead,
        sampling=chains / stand_for if stand_for else None,
        begun_before=0 if run.slice else run.begun_before,
    )


def segments_of(run: Sums) -> tuple[Segment, ...]:
    """Return one segment per label, sorted by name. Requests that have not finished have no label
    that is known."""
    found = []
    for label in sorted(set(run.requests.labels[run.requests.finished].tolist())):
        here = run.requests.labels == label
        chains = run.chains.of(here)
        fed, own = chains.means.get("fed_rms"), chains.over_layers("self_mass")
        segment = _segment(
            label,
            "label",
            run,
            run.rounds.of(here),
            growth(fed.all().tolist()) if fed is not None and len(chains) else None,
            float(own.all()[-1]) if own is not None and len(chains) else None,
        )
        times = [mean_s(values[here]) for values in (run.requests.ttft_s, run.requests.tpot_s)]
        found.append(replace(segment, requests=int(here.sum()), ttft_s=times[0], tpot_s=times[1]))
    return tuple(found)


def segments_by(run: Sums, by: str) -> tuple[Segment, ...]:
    """Return one segment per bucket of `by`, see `driftscope.analysis.query.row_filters`, made
    from the decode steps and chains in the bucket.

    Raises UsageError for an unknown way to split.
    """
    begin_s = float(floats(run.tables.engine.rows(duration()), "first_s")[0])
    bucket = bucket_of(by, begin_s)
    cut(run.tables, "verify", "verify", bucket)
    round_sums = run.tables.engine.rows(rounds_in_buckets(run.shape))
    round_sums = in_order(round_sums, "bucket", *REQUEST)
    drift = _drift_in(run, bucket, by_k=by == BY_K)
    rounds = run.rounds_of(round_sums, run.requests.codes(round_sums))
    names = np.asarray(round_sums.column("bucket").to_pylist(), dtype=np.str_)
    names_of = {f"{update.number:04d}": f"after {update.name}" for update in _updates(run)}
    return tuple(
        _segment(
            (by == WEIGHTS and names_of.get(name)) or name_of(by, name),
            by,
            run,
            rounds.where(names == name),
            *drift.get(name, (None, None)),
        )
        for name in np.unique(names).tolist()
    )


def _updates(run: Sums) -> tuple[Update, ...]:
    """Return the updates of the weights of the first replica that noted any."""
    return next((tuple(updates) for _, updates in sorted(updates_of(run.tables).items())), ())


def _segment(
    name: str, by: str, run: Sums, rounds: Rounds, grown: float | None, own: float | None
) -> Segment:
    accepted = acceptance_of(rounds, spread=True) if len(rounds) else None
    requests: NDArray[np.int64] = np.unique(rounds.request)
    reach = accepted.marginal[-1] if accepted else math.nan
    return Segment(
        label=name,
        by=by,
        requests=len(requests),
        rounds=len(rounds),
        mean_length=accepted.mean_length if accepted else None,
        reach=reach if math.isfinite(reach) else None,
        growth=grown,
        self_mass=own,
        ttft_s=mean_s(run.requests.ttft_s[requests]),
        tpot_s=mean_s(run.requests.tpot_s[requests]),
        mean_length_interval=accepted.mean_length_interval if accepted else None,
    )


_Drift = tuple[float | None, float | None]
"""Growth of the state fed forward, and mass on the chain at the last depth."""


def _drift_in(run: Sums, bucket: Bucket, *, by_k: bool) -> dict[str, _Drift]:
    """Return the drift by bucket; `by_k`: to the last depth of the bucket's own chains."""
    if not len(run.chains) + run.shallower.chains:
        return {}

    def in_buckets(derived: Derived) -> ir.Table:
        cut(run.tables, PART, "draft", bucket)
        return chains_in_buckets(run.shape, derived, by_k)

    chain_sums = run.tables.of_parts(in_buckets)
    names = np.asarray(chain_sums.column("bucket").to_pylist(), dtype=np.object_)
    out: dict[str, _Drift] = {}
    for name in set(names) - {None}:
        group_sums = chain_sums.filter(pa.array(names == name))
        first, last, own = (
            _mean(group_sums, name) for name in ("fed_rms", "fed_rms_last", "self_mass_last")
        )
        out[name] = (None if last is None else growth([first or math.nan, last]), own)
    return out


def _mean(table: pa.Table, name: str) -> float | None:
    """Return the mean of a column; None if nothing finite was measured."""
    if denominator(name, 0) not in table.column_names:
        return None
    weight = float(sums_column(table, denominator(name, 0)).sum())
    return float(sums_column(table, numerator(name, 0)).sum()) / weight if weight else None


@cache
def match_runs() -> ir.Table:
    """Count the runs of matching tokens of the requests in CHOSEN, by request and length.

    A round that accepts fewer tokens than it verified ends a run, with a miss. A round that accepts
    all of them goes on: its tokens and the one that the target adds, which no drafter was asked
    for, count as matches. A step without a draft, and the end of the request, end a run without a
    miss.
    """
    import ibis

    rows = table("verify").join(numbered(CHOSEN), REQUEST)
    verified, accepted = rows.verified.fill_null(0), rows.accepted.fill_null(0)
    whole = (verified > 0) & (accepted >= verified)
    missed = (verified > 0) & (accepted < verified)
    rows = rows.select(
        "cluster",
        "time_s",
        "position",
        ends=(~whole).cast("int64"),
        missed=missed.cast("int64"),
        matches=accepted + whole.cast("int64"),
    )
    before = ibis.window(
        group_by="cluster", order_by=(rows.time_s, rows.position), preceding=(None, 1)
    )
    rows = rows.mutate(run=rows.ends.sum().over(before).fill_null(0))
    runs = rows.group_by("cluster", "run").aggregate(
        matches=lambda t: t.matches.sum(), missed=lambda t: t.missed.max()
    )
    runs = runs.filter((runs.matches > 0) | (runs.missed > 0))
    return runs.group_by("cluster", "matches", "missed").aggregate(runs=lambda t: t.count())


ROUNDS_IN_ORDER = 500_000
"""Number of rounds that are put in order; of more rounds, those of evenly spread requests."""
Counts = NDArray[np.int64]


def lengths_by_k(run: Sums) -> tuple[LengthAtK, ...]:
    """Return the acceptance length for K = 1 .. the one that ran; () for a run of several K, whose
    rounds do not show what a longer chain would have matched.

    The rounds of each request are joined into one sequence of matches and misses, and this sequence
    is cut anew into rounds of at most K' matches and one token of the target. A run of m matches
    and a miss is then served in floor(m / (K' + 1)) + 1 rounds.

    This is exact if it lies in the text whether a token is guessed: a fresh chain then guesses the
    same tokens right as the chain that ran. Cutting off each chain after K' tokens would then be
    too low, because the next round begins where the longer chain was at its worst depths. If it
    lies in the depth instead, cutting off is exact and this is too low: by up to 5 % for a
    simulated drafter that drifts. `make prediction` compares both with live runs of each K'.
    """
    if run.shape.mixed or not len(run.rounds):
        return ()
    used = np.flatnonzero(run.rounds.rounds > 0)
    chosen = evenly(run.rounds.request[used], run.rounds.rounds[used], ROUNDS_IN_ORDER)
    run.requests.show(run.tables.engine, CHOSEN, chosen)
    runs = run.tables.engine.rows(match_runs())
    return recut(
        np.unique(run.requests.units.unit[whole(runs, "cluster")], return_inverse=True)[1],
        whole(runs, "matches"),
        whole(runs, "missed"),
        whole(runs, "runs"),
        k=run.shape.k,
    )


def recut(
    cluster: Counts, matches: Counts, missed: Counts, runs: Counts, *, k: int
) -> tuple[LengthAtK, ...]:
    """Return the acceptance length for K = 1 .. `k` from counts of runs of matches, [kinds] each:
    their cluster, length, whether (1) or not (0) a miss ends them, and their number."""
    n = int(cluster.max(initial=-1)) + 1
    tokens = np.bincount(cluster, weights=runs * (matches + missed), minlength=n).astype(np.float64)
    found = []
    for depth in range(1, k + 1):
        whole_rounds, left = np.divmod(matches, depth + 1)
        counts = runs * (whole_rounds + np.where(missed > 0, 1, left > 0))
        rounds = np.bincount(cluster, weights=counts, minlength=n).astype(np.float64)
        spread = ratio_intervals(tokens[:, None], rounds[:, None])
        found.append(
            LengthAtK(
                k=depth,
                mean_length=float(tokens.sum() / rounds.sum()),
                mean_length_interval=spread[0] if spread else None,
            )
        )
    return tuple(found)
