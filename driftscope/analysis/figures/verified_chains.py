"""Recorded chains one by one, beside the rounds that verified them.

The chains are those of a sample of requests. Chains, rounds and their join are stored in the engine
under names of their own, DRAWN, DONE and VERIFIED, because they are read several times.

Acceptance is related to the drafter's internals within requests: a row is one depth i of one round
that verification reached, i - 1 tokens were accepted. Its outcome is whether token i was accepted,
its measure what was known of the drafter when it proposed token i: the attention mass of that query
on the chain itself, or how much the state fed to that query had grown. Rows are compared within one
request and one depth only, so that neither labels, prompts nor depths are mixed; how far the answer
has come is a covariate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.calibration import NONE as NO_CALIBRATION
from driftscope.analysis.figures.calibration import Calibrations, calibrations, scored_of
from driftscope.analysis.figures.chains import Elements, Shape, deep_enough
from driftscope.analysis.figures.near_misses import NearMisses, near_misses_of
from driftscope.analysis.figures.rounds import counts
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.query_engine import (
    Codes,
    Matrix,
    floats,
    in_order,
    ranked,
    total,
    whole,
)
from driftscope.analysis.query.record_views import (
    IN_BUCKETS,
    LOOKED_AT,
    REQUEST,
    STEPS_LOOKED_AT,
    Derived,
    cut,
    numbered,
    sampled,
    table,
)
from driftscope.analysis.query.row_filters import BY
from driftscope.analysis.statistics.permutation import holm
from driftscope.analysis.statistics.strata import Association, AssociationAnswer, Rows, association
from driftscope.metrics import attention
from driftscope.metrics.attention import SELF
from driftscope.metrics.hidden import GROWTH
from driftscope.vocabulary import CONFIDENCE_BY_DEPTH, MASSES, SELF_MASS

if TYPE_CHECKING:
    import ibis.expr.types as ir

BANDS = 25
"""Number of bands of requests. With fewer, a run whose traffic changes is seen at too few moments;
with more, an engine reads almost every part of the files."""
COMPARED = 100_000
"""Number of chains that are looked at one by one."""
MOST_STEPS = 2_000_000
"""Most steps that are listed for an engine; with more, it reads the rows of every step."""


def chain_sample(run: Sums, among: Codes | None = None) -> tuple[Codes, NDArray[np.int64] | None]:
    """Return the numbers of requests, ascending, that have about COMPARED recorded chains, or all
    requests if there are no more; and the steps outside of which no chain of these requests was
    recorded, None for any step.

    `among`: the numbers of the requests to choose from, by default all of the run.
    """
    candidates = np.flatnonzero(run.recorded) if among is None else among
    every = max(1, -(-int(run.recorded[candidates].sum()) // COMPARED))
    if every == 1:
        return candidates, None
    by_time = candidates[np.argsort(run.drafted_in[candidates, 0], kind="stable")]
    band = max(1, len(candidates) // every // BANDS)
    rank = np.arange(len(by_time))
    requests = np.sort(by_time[rank % (band * every) < band])
    return requests, _steps(run.drafted_in[requests])


def _steps(spans: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the steps within any of the `spans`, [requests, 2], ascending; None if there are more
    than MOST_STEPS."""
    in_order = spans[np.argsort(spans[:, 0], kind="stable")]
    first = in_order[:, 0]
    reached = np.maximum.accumulate(in_order[:, 1])
    # The steps of a span that no earlier one has.
    begin = np.maximum(first, np.concatenate([first[:1], reached[:-1] + 1]))
    number = np.maximum(reached - begin + 1, 0)
    if not 0 <= int(number.astype(np.float64).sum()) <= MOST_STEPS:
        return None
    ends = np.cumsum(number)
    return np.asarray(np.repeat(begin - (ends - number), number) + np.arange(int(number.sum())))


DRAWN, DONE, VERIFIED = "drawn", "done", "verified"
KEY = ("cluster", "position")
"""Number of a request, and the position at which its chain starts."""


@cache
def drafted_chains(in_steps: bool = False) -> ir.Table:
    """Return the chains of these requests; `in_steps` is that of `record_views.sampled`."""
    rows = sampled(table("draft"), in_steps)
    return rows.select(*KEY, "top1", "rate", "execution", drafted_s=rows.time_s, drawn=rows.k)


@cache
def verified_rounds() -> ir.Table:
    """Return the rounds of these requests."""
    rows = table("verify")
    rows = rows.filter(rows.verified > 0).join(numbered(LOOKED_AT), REQUEST)
    return rows.select(*KEY, "verified", "accepted", "time_s")


def verified_chains() -> ir.Table:
    """Return the rows stored under VERIFIED."""
    return _unbound_table(VERIFIED, joined(repeated=False))


def _unbound_table(name: str, rows: ir.Table) -> ir.Table:
    import ibis

    return ibis.table(rows.schema(), name=name)


@cache
def _repeated(name: str) -> ir.Table:
    """Count the positions of a request that were drafted, or verified, more than once."""
    rows = _unbound_table(name, drafted_chains() if name == DRAWN else verified_rounds())
    keys = rows.group_by(*KEY).aggregate(rows=lambda t: t.count())
    return keys.filter(keys.rows > 1).aggregate(keys=lambda t: t.count())


@cache
def joined(repeated: bool) -> ir.Table:
    """Join recorded chains with the rounds that verified them, one row per verified chain.

    The engine core writes a round later than the worker wrote its chain, or dies in between, so a
    round belongs to the latest chain of its request and position. A request's last chain is often
    never verified, and with sampling most rounds have no recorded chain. If no position was
    `repeated`, no search for the latest chain is needed.
    """
    import ibis

    chains, rounds = (
        _unbound_table(DRAWN, drafted_chains()),
        _unbound_table(DONE, verified_rounds()),
    )
    if not repeated:
        return _joined(chains, rounds).select(*KEY, *_PAIR_COLUMNS)
    order = ibis.window(group_by=KEY, order_by="drafted_s")
    chains = chains.mutate(next_s=chains.drafted_s.lead().over(order))
    both = _joined(chains, rounds)
    both = both.filter(both.next_s.isnull() | (both.time_s < both.next_s))
    latest = ibis.window(group_by=(*KEY, "drafted_s"), order_by=both.time_s.desc())
    both = both.mutate(place=ibis.row_number().over(latest))
    return both.filter(both.place == 0).select(*KEY, *_PAIR_COLUMNS)


_PAIR_COLUMNS = ("accepted", "top1", "rate", "execution", "drawn", "drafted_s")


def _joined(chains: ir.Table, rounds: ir.Table) -> ir.Table:
    """Join chains and rounds; `drawn` is how much of a chain was verified."""
    import ibis

    both = rounds.join(chains, [*KEY, rounds.time_s >= chains.drafted_s])
    return both.mutate(drawn=ibis.least(both.drawn, both.verified))


@cache
def by_execution(shape: Shape) -> ir.Table:
    """Sum verified chains by execution and request."""
    both = verified_chains()
    sums = counts(both.drawn, both.accepted, shape)
    return both.group_by("execution", "cluster").aggregate(**sums)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VerifiedChains:
    """Outcome of the recorded chains that were looked at."""

    looked_at: int
    verified: int
    """Number of these chains whose round is in the run."""
    by_execution: pa.Table | None
    """Verified chains, see `by_execution`; None if all ran in the same way."""


def verification_of(run: Sums) -> VerifiedChains:
    """Return what became of the chains of a run that `look_at` stored."""
    if not run.recorded.any():
        return VerifiedChains(looked_at=0, verified=0, by_execution=None)
    rows = run.tables.engine.rows
    counted = verified_chains().aggregate(chains=lambda t: t.count())
    verified = total(rows(counted), "chains")
    by_mode = verified and len(set(run.shape.executions)) > 1
    return VerifiedChains(
        looked_at=int(run.recorded[chain_sample(run)[0]].sum()),
        verified=verified,
        by_execution=rows(by_execution(run.shape)) if by_mode else None,
    )


def look_at(run: Sums, among: Codes | None = None) -> bool:
    """Define LOOKED_AT on some requests, by default a sample of all that have chains, and store
    their verified chains; return whether STEPS_LOOKED_AT has their steps."""
    engine, (requests, steps) = run.tables.engine, chain_sample(run, among)
    if not len(requests):
        return False
    run.requests.show(engine, LOOKED_AT, requests)
    if steps is not None:
        listed = pa.table({"step": pa.array(steps, pa.int64())})
        engine.view(STEPS_LOOKED_AT, listed, listed.schema)
    engine.keep(DRAWN, drafted_chains(steps is not None))
    engine.keep(DONE, verified_rounds())
    repeated = (whole(engine.rows(_repeated(name)), "keys").sum() for name in (DRAWN, DONE))
    engine.keep(VERIFIED, joined(any(repeated)))
    return steps is not None


FED, TOP1 = "fed_rms", "top1"


def column(name: str, index: int) -> str:
    """Return the column of a quantity at depth `index` + 1."""
    return f"{name}_{index}"


@cache
def internals(
    shape: Shape,
    derived: Derived,
    in_steps: bool,
    names: tuple[str, ...],
    depths: tuple[int, ...],
) -> ir.Table:
    """Return the verified chains of one file layout, one row each: request, position, tokens
    accepted and verified, and lists at some depths (from 0), masses averaged over layers, as far as
    they were recorded. `in_steps` is that of `record_views.sampled`."""
    rows = sampled(deep_enough(shape), in_steps)
    lists = Elements(rows, dict(derived), shape)
    columns = {
        column(name, depth): attention.over_layers(lists.layers(name, depth))
        if name in MASSES
        else lists.at(name, depth)
        for name in names
        if name not in shape.absent
        for depth in depths
    }
    chains = rows.select(*KEY, chain_s=rows.time_s, **columns)
    rounds = verified_chains()
    both = rounds.join(chains, [*KEY, rounds.drafted_s == chains.chain_s])
    return both.select(*KEY, "accepted", "drawn", "drafted_s", "rate", *columns)


@cache
def rejected_tokens(in_steps: bool) -> ir.Table:
    """Return what is recorded of the rejected tokens of these requests."""
    rows = sampled(table("draft"), in_steps)
    rows = rows.filter(rows.target_token_rank.notnull())
    rank, close = (
        rows[name].cast("float64") for name in ("target_token_rank", "rejected_closeness")
    )
    return rows.select(
        "cluster", rank=rank, close=close, excluded=rows.rejected_excluded.cast("int64")
    )


@cache
def regions_of_rounds() -> ir.Table:
    """Return the kind of text from which each round of these requests drafts, where it is known;
    the view of rounds in buckets must be cut by it."""
    rows = table(f"verify_{IN_BUCKETS}", "verify", bucket="string")
    rows = rows.filter(rows.bucket.notnull() & (rows.verified > 0))
    rows = rows.join(numbered(LOOKED_AT), REQUEST)
    return rows.select(*KEY, region=rows.bucket)


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


def answers(relations: Sequence[WithinRequest]) -> tuple[AssociationAnswer, ...]:
    """Return whether acceptance goes with each measure of a run. The p-values are adjusted by
    Holm's rule, since all measures are asked together."""
    known = [relation.alone for relation in relations if relation.alone]
    adjusted = dict(zip(map(id, known), holm([answer.p for answer in known]), strict=True))
    return tuple(
        AssociationAnswer.CANNOT_TELL
        if relation.alone is None
        else relation.alone.answer(adjusted[id(relation.alone)])
        for relation in relations
    )


def near_misses(run: Sums, in_steps: bool) -> NearMisses | None:
    """Return what the rejected tokens of a run came close to; None if that was not recorded.
    `in_steps` is what `look_at` returned."""
    if not run.recorded.any():
        return None
    rows = run.tables.engine.rows(rejected_tokens(in_steps))
    excluded = whole(rows, "excluded") > 0
    clusters = run.requests.units.unit[whole(rows, "cluster")]
    return near_misses_of(floats(rows, "rank"), floats(rows, "close"), excluded, clusters)


def inside_and_acceptance(
    run: Sums, in_steps: bool
) -> tuple[tuple[WithinRequest, ...], Calibrations]:
    """Return the relation of acceptance to each measure of a run, and how the drafter's confidence
    predicts it; ((), none) without chains. `in_steps` is what `look_at` returned."""
    if not run.recorded.any():
        return (), NO_CALIBRATION
    shape, unit = run.shape, run.requests.units.unit
    names, depths = (SELF_MASS, FED, *CONFIDENCE_BY_DEPTH), tuple(range(shape.depths))
    chains = run.tables.of_parts(lambda part: internals(shape, part, in_steps, names, depths))
    chains = in_order(chains, "cluster", "position")
    found = tuple(relations(chains, shape.depths, unit))
    if not _recorded(chains, column(TOP1, 0)):
        return found, NO_CALIBRATION
    regions = None
    if run.requests.has_regions:
        cut(run.tables, "verify", "verify", BY["region"])
        regions = run.tables.engine.rows(regions_of_rounds())
    sure = np.column_stack([floats(chains, column(TOP1, index)) for index in range(shape.depths)])
    labels = np.array([str(label) for label in run.requests.labels.tolist()], dtype=np.str_)
    return found, calibrations(scored_of(chains, sure, unit, labels, regions))


def relations(
    chains: pa.Table, depths: int, clusters: Codes | None = None
) -> Iterator[WithinRequest]:
    """Yield the relation to each measure that the `chains`, rows of `internals`, have;
    `clusters` are those of all requests."""
    request = whole(chains, "cluster")
    unit = request if clusters is None else clusters[request]
    for name, needed in ((SELF.name, SELF_MASS), (GROWTH.name, FED)):
        if _recorded(chains, column(needed, 0)):
            x = np.column_stack([floats(chains, column(needed, at)) for at in range(depths)])
            if needed == FED:
                # The logarithm of the growth of what the query of each depth was fed; NaN where
                # that is the reference itself.
                first, fed = x[:, :1], x[:, FIRST_GROWN - 2 : depths - 1]
                good = (first > 0) & (fed > 0)
                grown = np.where(good, fed, 1) / np.where(good, first, 1)
                x = np.full_like(x, np.nan)
                x[:, FIRST_GROWN - 1 :] = np.where(good, np.log(grown), np.nan)
            yield WithinRequest(
                measure=name,
                alone=association(_rows(chains, x, (), unit), least_sd=LEAST_SD),
                beyond_confidence=association(
                    _rows(chains, x, CONFIDENCE_BY_DEPTH, unit), least_sd=LEAST_SD
                ),
            )


def _recorded(chains: pa.Table, name: str) -> bool:
    return name in chains.column_names and bool(np.isfinite(floats(chains, name)).any())


def _rows(chains: pa.Table, x: Matrix, confidence: tuple[str, ...], unit: Codes) -> Rows:
    """Return a row for each depth that verification reached; `x` is the measure, [chains, depths],
    and `unit` the cluster of each chain."""
    request, position = whole(chains, "cluster"), whole(chains, "position")
    accepted, tested = whole(chains, "accepted"), whole(chains, "drawn")
    depths = x.shape[1]
    index = np.arange(depths)
    reached = (index < tested[:, None]) & (index <= accepted[:, None])
    chain, depth = np.nonzero(reached)
    known = [
        np.column_stack([floats(chains, column(name, at)) for at in range(depths)])[reached]
        for name in confidence
    ]
    _, code = ranked(request)
    first = np.full(int(code.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, code, position)
    return Rows(
        cluster=unit[chain],
        stratum=request[chain] * depths + depth,
        y=(accepted[chain] > depth).astype(np.float64),
        x=x[reached],
        covariates=np.column_stack(
            [np.log1p((position - first[code]).astype(np.float64))[chain], *known]
        ),
    )
