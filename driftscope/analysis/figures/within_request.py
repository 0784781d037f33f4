"""How acceptance goes with the drafter's internals within requests, depth by depth.

A row is one depth i of one round that verification reached: i - 1 tokens were accepted. Its outcome
is whether token i was accepted, its measure what was known of the drafter when it proposed token i:
the attention mass of that query on the chain itself, or how much the state fed to that query had
grown. Rows are compared within one request and one depth only, so that neither labels, prompts nor
depths are mixed; how far the answer has come is a covariate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.chain_sample import COMPARED, chain_sample
from driftscope.analysis.figures.chain_shape import Elements, Shape
from driftscope.analysis.figures.chains import deep_enough
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.passes.verified import KEY, verified_chains
from driftscope.analysis.query.column_arrays import Codes, Matrix, floats, ranked, whole
from driftscope.analysis.query.query_engine import Later
from driftscope.analysis.query.record_views import Derived, sampled
from driftscope.analysis.statistics.multiple_comparisons import holm
from driftscope.analysis.statistics.within_strata import Answer, Association, Rows, association
from driftscope.metrics import attention
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH
from driftscope.vocabulary import CONFIDENCE_BY_DEPTH, SELF_MASS

if TYPE_CHECKING:
    import ibis.expr.types as ir

WITHIN = "within_requests"
"""Name of the view of the requests whose chains are looked at."""
FED = "fed_rms"


def column(name: str, index: int) -> str:
    """Return the column of a quantity at depth `index` + 1."""
    return f"{name}_{index}"


@cache
def internals(shape: Shape, derived: Derived, in_steps: bool) -> ir.Table:
    """Return the verified chains of one file layout, one row each: request, position, tokens
    accepted and drafted, and by depth the mass on the chain itself (averaged over layers), the RMS
    fed forward and the drafter's confidence, as far as they were recorded. `in_steps` is that of
    `passes.views.sampled`."""
    rows = sampled(deep_enough(shape), WITHIN, in_steps)
    lists = Elements(rows, dict(derived), shape)
    columns = {}
    for index in range(shape.depths):
        if SELF_MASS not in shape.absent:
            own = attention.over_layers(lists.layers(SELF_MASS, index))
            columns[column(SELF_MASS, index)] = own
        for name in (FED, *CONFIDENCE_BY_DEPTH):
            columns[column(name, index)] = lists.at(name, index)
    chains = rows.select(*KEY, chain_s=rows.time_s, **columns)
    rounds = verified_chains()
    both = rounds.join(chains, [*KEY, rounds.drafted_s == chains.chain_s])
    return both.select(*KEY, "accepted", "drawn", *columns)


CHAINS_WITHIN = 100_000
"""Number of chains that are looked at; of more, a sample of those that are compared."""
LEAST_SD = 10 * 2.0**-11
"""Standard deviation within strata below which a measure counts as constant: ten times the step to
which a sealed trace rounds a number near 1."""
FIRST_GROWN = 3
"""First depth whose query is fed a state that has grown: query 2 is fed the state of query 1, the
reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinRequest:
    """How acceptance goes with one measure within requests."""

    measure: str
    """Name of the measure's definition, as in `driftscope.metrics`."""
    alone: Association | None
    """Relation to the measure; None if there is too little to estimate it."""
    beyond_confidence: Association | None
    """Association that is left beside the drafter's own confidence (top-1 probability and
    entropy), which may lie on the path from the measure to acceptance."""


def answers(relations: Sequence[WithinRequest]) -> tuple[Answer, ...]:
    """Return whether acceptance goes with each measure of a run. The p-values are adjusted by
    Holm's rule, since all measures are asked together."""
    known = [each.alone for each in relations if each.alone]
    adjusted = dict(zip(map(id, known), holm([each.p for each in known]), strict=True))
    return tuple(
        Answer.CANNOT_TELL if each.alone is None else each.alone.answer(adjusted[id(each.alone)])
        for each in relations
    )


def within_requests(run: Sums) -> Later[tuple[WithinRequest, ...]]:
    """Read the rows that give the relation to each measure of a run, to be computed later; ()
    without chains. The rows of `passes.verified` must be stored."""
    if not run.recorded.any():
        return Later(tuple)
    sample = chain_sample(run, CHAINS_WITHIN, chain_sample(run, COMPARED).requests)
    sample.show(run, WITHIN, np.arange(len(run.requests)))
    in_steps = sample.steps is not None
    parts = []
    for derived in run.tables.parts:
        run.tables.use(derived)
        parts.append(run.tables.engine.rows(internals(run.shape, derived, in_steps)))
    chains = pa.concat_tables(parts, promote_options="permissive")
    in_order = [("cluster", "ascending"), ("position", "ascending")]
    return Later(lambda: tuple(relations(chains.sort_by(in_order), run.shape.depths, run.clusters)))


def relations(
    chains: pa.Table, depths: int, clusters: Codes | None = None
) -> Iterator[WithinRequest]:
    """Yield the relation to each measure that the `chains`, rows of `passes.internals`, have;
    `clusters` are those of all requests."""
    request = whole(chains, "cluster")
    unit = request if clusters is None else clusters[request]
    measures = ((SELF.name, SELF_MASS, _own_mass), (GROWTH.name, FED, _log_growth))
    for name, needed, measure in measures:
        if _recorded(chains, column(needed, 0)):
            x = np.column_stack([measure(chains, index) for index in range(depths)])
            yield WithinRequest(
                measure=name,
                alone=association(_rows(chains, x, (), unit), least_sd=LEAST_SD),
                beyond_confidence=association(
                    _rows(chains, x, CONFIDENCE_BY_DEPTH, unit), least_sd=LEAST_SD
                ),
            )


def _recorded(chains: pa.Table, name: str) -> bool:
    return name in chains.column_names and bool(np.isfinite(floats(chains, name)).any())


def _own_mass(chains: pa.Table, index: int) -> Matrix:
    return floats(chains, column(SELF_MASS, index))


def _log_growth(chains: pa.Table, index: int) -> Matrix:
    """Return the logarithm of the growth of what the query of this depth was fed; NaN where it is
    the reference itself."""
    if index + 1 < FIRST_GROWN:
        return np.full(chains.num_rows, np.nan)
    first, fed = floats(chains, column(FED, 0)), floats(chains, column(FED, index - 1))
    good = (first > 0) & (fed > 0)
    grown = np.where(good, fed, 1) / np.where(good, first, 1)
    return np.asarray(np.where(good, np.log(grown), np.nan))


def _rows(chains: pa.Table, x: Matrix, confidence: tuple[str, ...], unit: Codes) -> Rows:
    """Return a row for each depth that verification reached; `x` is the measure, [chains, depths],
    and `unit` the cluster of each chain."""
    request, position = whole(chains, "cluster"), whole(chains, "position")
    accepted, drawn = whole(chains, "accepted"), whole(chains, "drawn")
    depths = x.shape[1]
    index = np.arange(depths)
    reached = (index < drawn[:, None]) & (index <= accepted[:, None])
    chain, depth = np.nonzero(reached)
    known = [
        np.column_stack([floats(chains, column(name, at)) for at in range(depths)])[reached]
        for name in confidence
    ]
    return Rows(
        cluster=unit[chain],
        stratum=request[chain] * depths + depth,
        y=(accepted[chain] > depth).astype(np.float64),
        x=x[reached],
        covariates=np.column_stack([_log_progress(request, position)[chain], *known]),
    )


def _log_progress(request: NDArray[np.int64], position: NDArray[np.int64]) -> Matrix:
    """Return the logarithm of how many tokens the answer had, counted from the first of these
    chains."""
    _, code = ranked(request)
    first = np.full(int(code.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, code, position)
    return np.asarray(np.log1p((position - first[code]).astype(np.float64)))
