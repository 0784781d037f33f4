"""Runs the passes over a run's rows and keeps what they yield: all that an analysis needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis import passes
from driftscope.analysis.chains import Chains, chains_of, doubtful
from driftscope.analysis.columns import Codes, Matrix, floats, sums, whole
from driftscope.analysis.consistency import check_chains, check_rounds, shape_of
from driftscope.analysis.cost.cells import StepCell, cells_of
from driftscope.analysis.requests import Requests, clusters_of, requests_of
from driftscope.analysis.rounds import Rounds, rounds_of
from driftscope.analysis.shape import Shape
from driftscope.analysis.tables import Tables
from driftscope.metrics.confidence import BINS
from driftscope.metrics.throughput import StepCost

ENOUGH_STEPS = 10
"""Unrecorded steps from which a median step time is taken; with fewer, recorded ones count too."""
EXACT_STEPS = 5_000_000
"""Steps up to which a median is exact; beyond, a t-digest's."""
STEPS_READ = 1_000_000
"""Steps that the cost model looks at, one after the other; of more, evenly spread blocks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """One run as small tables: rounds by request, chains by cluster of requests."""

    tables: Tables
    shape: Shape
    requests: Requests
    rounds: Rounds
    """[requests that have decode steps]."""
    undrafted: NDArray[np.int64]
    """As `rounds`, as are the next four: decode steps without a draft."""
    structured: NDArray[np.int64]
    """Of these, those whose draft a grammar rejected."""
    deliberate: NDArray[np.int64]
    """Of these, those that a setting asked for."""
    first_s: Matrix
    """Time of the first decode step."""
    last_s: Matrix
    reasons: Mapping[str | None, int]
    """Decode steps without a draft, by reason."""
    clusters: Codes
    """[requests] the cluster that each is in."""
    chains: Chains
    broken: int
    """Chains with a value that is no finite number."""
    repeated: bool
    """Whether some position of a request was drafted or verified more than once."""
    verified: int
    """Recorded chains whose round is in the run."""

    def strata(self, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[numbers of clusters] those of the requests that `wanted` names; a cluster's requests are
        all in or all out, where `wanted` keeps to the strata that clusters were made of."""
        out = np.zeros(int(self.clusters.max(initial=-1)) + 1, dtype=np.bool_)
        out[self.clusters[wanted]] = True
        return out


def collect(tables: Tables) -> Sums:
    """The sums of a run. Raises MixedTraceError, DamagedTraceError or NoDataError."""
    rows, shape = tables.engine.rows, shape_of(tables)
    verify = rows(passes.rounds(shape.k)).sort_by([(name, "ascending") for name in passes.REQUEST])
    requests = requests_of(tables, verify, rows(passes.requests_of_chains()))
    clusters = clusters_of(np.unique(requests.labels.astype(str), return_inverse=True)[1])
    measured = _chains(tables, requests, clusters, shape)
    check_chains(tables, measured, shape)
    check_rounds(tables, verify)
    chains = chains_of(measured, shape)
    repeated = _repeated(tables) if len(chains) else False
    return Sums(
        tables=tables,
        shape=shape,
        requests=requests,
        rounds=rounds_of(verify, requests.codes(verify), shape.k),
        undrafted=whole(verify, "undrafted"),
        structured=whole(verify, "structured"),
        deliberate=whole(verify, "deliberate"),
        first_s=floats(verify, "first_s"),
        last_s=floats(verify, "last_s"),
        reasons=_reasons(tables),
        clusters=clusters,
        chains=chains,
        broken=_broken(tables, shape, chains) if doubtful(measured, shape) else 0,
        repeated=repeated,
        verified=_one(rows(passes.number_verified(repeated)), "chains") if len(chains) else 0,
    )


def _chains(tables: Tables, requests: Requests, clusters: Codes, shape: Shape) -> pa.Table:
    view = requests.keys.append_column("cluster", pa.array(clusters, pa.int64()))
    tables.engine.view(passes.CLUSTERS, view, view.schema)
    found = []
    for derived in tables.parts:
        tables.use(derived)
        found.append(tables.engine.rows(passes.chains(shape, derived)))
    return pa.concat_tables(found, promote_options="permissive")


def _broken(tables: Tables, shape: Shape, chains: Chains) -> int:
    total, taken = 0, tuple(sorted(chains.means))
    for derived in tables.parts:
        tables.use(derived)
        total += _one(tables.engine.rows(passes.broken(shape, derived, taken)), "chains")
    return total


def _repeated(tables: Tables) -> bool:
    queries = (passes.repeated_chains(), passes.repeated_rounds())
    return any(_one(tables.engine.rows(query), "keys") for query in queries)


def _reasons(tables: Tables) -> dict[str | None, int]:
    found = tables.engine.rows(passes.undrafted())
    return dict(zip(found.column("reason").to_pylist(), whole(found, "rows").tolist(), strict=True))


def _one(table: pa.Table, name: str) -> int:
    return int(whole(table, name).sum())


def step_cost(tables: Tables) -> StepCost | None:
    """Median times of steps that drafted, without the probe's own; a prefill is an outlier."""
    counts = tables.engine.rows(passes.steps())
    plain, drew = _one(counts, "plain"), _one(counts, "drew")
    recorded = plain < ENOUGH_STEPS
    if not drew:
        return None
    found = tables.engine.rows(passes.typical_step(recorded, drew <= EXACT_STEPS))
    step_s, draft_s = (float(floats(found, name)[0]) for name in ("step_s", "draft_s"))
    if not 0 < draft_s < step_s:
        return None
    return StepCost(step_s=step_s, draft_s=draft_s, recorded=recorded)


def step_cells(tables: Tables) -> tuple[StepCell, ...]:
    """Step times by K and batch size."""
    steps = _one(tables.engine.rows(passes.steps()), "steps")
    return cells_of(tables.engine.rows(passes.steps_in_blocks(-(-steps // STEPS_READ) or 1)))


def probe_time(tables: Tables) -> tuple[float, float]:
    """Seconds of the probe in the workers' steps, and of those steps."""
    counts = tables.engine.rows(passes.steps())
    return float(sums(counts, "probe_s")[0]), float(sums(counts, "step_s")[0])


def verified_by_confidence(run: Sums) -> pa.Table | None:
    """Verified tokens by depth and bin of confidence; None where no confidence was recorded."""
    if "top1" not in run.chains.means or not run.verified:
        return None
    return run.tables.engine.rows(passes.reliability(run.shape.k, BINS, run.repeated))
