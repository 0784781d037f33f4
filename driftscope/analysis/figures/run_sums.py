"""Sums of a run: the results of all passes over its rows that an analysis needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.chain_sums import Chains, chains_of, doubtful, finite_sums
from driftscope.analysis.figures.consistency import check_chains, check_rounds, shape_of
from driftscope.analysis.figures.request_codes import Requests, clusters_of, requests_of
from driftscope.analysis.figures.round_sums import Rounds, mix_of, over_buckets, rounds_of
from driftscope.analysis.figures.step_cells import StepCell, cells_of
from driftscope.analysis.passes.broken import broken
from driftscope.analysis.passes.chains import chains, shallower
from driftscope.analysis.passes.requests import requests_of_chains
from driftscope.analysis.passes.rounds import by_context, by_length, undrafted
from driftscope.analysis.passes.steps import steps, steps_in_blocks, typical_step
from driftscope.analysis.passes.views import CLUSTERS, REQUEST
from driftscope.analysis.query.chain_shape import Shape
from driftscope.analysis.query.column_arrays import Codes, Matrix, floats, sums, whole
from driftscope.analysis.query.record_views import Tables
from driftscope.metrics.fallback import UNKNOWN
from driftscope.metrics.throughput import StepCost

ENOUGH_STEPS = 10
"""Smallest number of unrecorded steps for a median step time; with fewer, recorded ones count
too."""
EXACT_STEPS = 5_000_000
"""Largest number of steps for which a median is exact; above, it is a t-digest's."""
STEPS_READ = 1_000_000
"""Number of consecutive steps that the cost model reads; of more steps it reads evenly spread
blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shallower:
    """Recorded chains that are too short for the figures by depth of a run of several K."""

    chains: int
    weight: float
    """Number of chains that the recorded ones stand for."""
    chunked: int
    """Number of these chains for which the drafter's cache is in doubt."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """One run as small tables: rounds by request, chains by cluster of requests."""

    tables: Tables
    shape: Shape
    requests: Requests
    rounds: Rounds
    """Rounds of each request that has decode steps."""
    in_context: pa.Table
    """Rounds by request and by `bucket`, the power of two at or below the length of the context."""
    undrafted: NDArray[np.int64]
    """Decode steps without a draft; rows of this and the next five fields are those of `rounds`."""
    structured: NDArray[np.int64]
    """Steps without a draft because a grammar rejected it."""
    deliberate: NDArray[np.int64]
    """Steps without a draft because a setting asked for none."""
    first_s: Matrix
    """Unix time of the first decode step."""
    last_s: Matrix
    reasons: Mapping[str, NDArray[np.int64]]
    """Steps without a draft by reason, sorted by name."""
    clusters: Codes
    """Cluster of each request, [requests]."""
    chains: Chains
    shallower: Shallower
    by_length: pa.Table | None
    """Rounds by request and by tokens drafted, as `length`; None in a run of one K."""
    broken: int
    """Number of chains with a value that is not a finite number."""
    recorded: NDArray[np.int64]
    """Number of recorded chains of each request, [requests]."""
    drafted_in: NDArray[np.int64]
    """First and last step with a recorded chain of each request, [requests, 2]; -1 if it has
    none."""

    def rounds_of(self, table: pa.Table, request: Codes) -> Rounds:
        """Return the rounds of a pass by request; its rows belong to `request`."""
        return rounds_of(table, request, self.rounds.mix)

    def strata(self, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the clusters of the requests that `wanted` selects, as a mask over cluster
        numbers. A cluster's requests are all selected or none, if `wanted` respects the strata from
        which clusters were made."""
        out = np.zeros(int(self.clusters.max(initial=-1)) + 1, dtype=np.bool_)
        out[self.clusters[wanted]] = True
        return out


def collect(tables: Tables) -> Sums:
    """Collect the sums of a run. Raises MixedTraceError, DamagedTraceError or NoDataError."""
    rows, shape = tables.engine.rows, shape_of(tables)
    in_context = rows(by_context(shape))
    by_drafted = _in_order(rows(by_length(shape))) if shape.mixed else None
    mix = np.zeros(shape.k + 1) if by_drafted is None else mix_of(by_drafted, shape.k)
    verify = over_buckets(in_context).sort_by([(name, "ascending") for name in REQUEST])
    drawn = rows(requests_of_chains())
    requests = requests_of(tables, verify, drawn)
    clusters = clusters_of(np.unique(requests.labels.astype(str), return_inverse=True)[1])
    measured = _chains(tables, requests, clusters, shape)
    check_chains(tables, measured, shape)
    check_rounds(tables, verify)
    found = chains_of(measured, shape)
    return Sums(
        tables=tables,
        shape=shape,
        requests=requests,
        in_context=in_context,
        rounds=rounds_of(verify, requests.codes(verify), mix),
        undrafted=whole(verify, "undrafted"),
        structured=whole(verify, "structured"),
        deliberate=whole(verify, "deliberate"),
        first_s=floats(verify, "first_s"),
        last_s=floats(verify, "last_s"),
        reasons=_reasons(tables, requests, requests.codes(verify)),
        clusters=clusters,
        chains=found,
        shallower=_shallower(tables, shape),
        by_length=by_drafted,
        broken=_broken(tables, shape, found) if doubtful(measured, shape) else 0,
        recorded=_recorded(requests, drawn),
        drafted_in=_drafted_in(requests, drawn),
    )


def _chains(tables: Tables, requests: Requests, clusters: Codes, shape: Shape) -> pa.Table:
    view = requests.keys.append_column("cluster", pa.array(clusters, pa.int64()))
    tables.engine.view(CLUSTERS, view, view.schema)
    found = []
    for derived in tables.parts:
        tables.use(derived)
        quick = finite_sums(tables.engine.rows(chains(shape, derived, False)), shape)
        found.append(tables.engine.rows(chains(shape, derived, True)) if quick is None else quick)
    return pa.concat_tables(found, promote_options="permissive")


def _in_order(by_drafted: pa.Table) -> pa.Table:
    """Sort rows, so that sums over them are equal to the bit whatever files or engine they come
    from."""
    return by_drafted.sort_by([(name, "ascending") for name in ("length", *REQUEST)])


def _shallower(tables: Tables, shape: Shape) -> Shallower:
    if not shape.mixed:
        return Shallower(chains=0, weight=0.0, chunked=0)
    found = tables.engine.rows(shallower(shape))
    weight = float(sums(found, "weight")[0])
    return Shallower(chains=_one(found, "chains"), weight=weight, chunked=_one(found, "chunked"))


def _recorded(requests: Requests, drawn: pa.Table) -> NDArray[np.int64]:
    out = np.zeros(len(requests), dtype=np.int64)
    out[requests.codes(drawn)] = whole(drawn, "chains")
    return out


def _drafted_in(requests: Requests, drawn: pa.Table) -> NDArray[np.int64]:
    out = np.full((len(requests), 2), -1, dtype=np.int64)
    first, last = whole(drawn, "first_step"), whole(drawn, "last_step")
    out[requests.codes(drawn)] = np.stack([first, last], axis=1)
    return out


def _broken(tables: Tables, shape: Shape, found: Chains) -> int:
    total, taken = 0, tuple(sorted(found.means))
    for derived in tables.parts:
        tables.use(derived)
        total += _one(tables.engine.rows(broken(shape, derived, taken)), "chains")
    return total


def _reasons(tables: Tables, requests: Requests, rows: Codes) -> dict[str, NDArray[np.int64]]:
    """Return the steps without a draft by reason, [rows] each; `rows` are the requests of the
    rounds."""
    found = tables.engine.rows(undrafted())
    number, request = whole(found, "rows"), requests.codes(found)
    reason = np.asarray([name or UNKNOWN for name in found.column("reason").to_pylist()], object)
    return {
        name: np.bincount(request[mine], number[mine], len(requests)).astype(np.int64)[rows]
        for name in sorted(set(reason.tolist()))
        for mine in (reason == name,)
    }


def _one(table: pa.Table, name: str) -> int:
    return int(whole(table, name).sum())


def step_cost(tables: Tables) -> StepCost | None:
    """Return median times of steps that drafted, without the probe's own time; a prefill is an
    outlier."""
    counts = tables.engine.rows(steps())
    plain, drew = _one(counts, "plain"), _one(counts, "drew")
    recorded = plain < ENOUGH_STEPS
    if not drew:
        return None
    found = tables.engine.rows(typical_step(recorded, drew <= EXACT_STEPS))
    step_s, draft_s = (float(floats(found, name)[0]) for name in ("step_s", "draft_s"))
    if not 0 < draft_s < step_s:
        return None
    return StepCost(step_s=step_s, draft_s=draft_s, recorded=recorded)


def step_cells(tables: Tables) -> tuple[StepCell, ...]:
    """Return step times by K and batch size."""
    number = _one(tables.engine.rows(steps()), "steps")
    return cells_of(tables.engine.rows(steps_in_blocks(-(-number // STEPS_READ) or 1)))


def probe_time(tables: Tables) -> tuple[float, float]:
    """Return the probe's seconds in the workers' steps, and the seconds of those steps."""
    counts = tables.engine.rows(steps())
    return float(sums(counts, "probe_s")[0]), float(sums(counts, "step_s")[0])
