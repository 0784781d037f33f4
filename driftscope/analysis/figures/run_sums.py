"""Sums of a run: the results of all passes over its rows, and the requests that they leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.chains import (
    Chains,
    Shape,
    broken,
    chains,
    chains_of,
    check_chains,
    check_rounds,
    doubtful,
    finite_sums,
    shallower,
    shape_of,
)
from driftscope.analysis.figures.requests import Requests, index_of, requests_of, requests_of_chains
from driftscope.analysis.figures.rounds import (
    Rounds,
    Side,
    by_context,
    by_length,
    cut_for_confidence,
    mix_of,
    over_buckets,
    reasons,
    rounds_of,
    uncut_of,
)
from driftscope.analysis.number_words import count
from driftscope.analysis.query.query_engine import (
    Codes,
    Matrix,
    floats,
    in_order,
    sums_column,
    total,
    whole,
)
from driftscope.analysis.query.record_views import NUMBERED, REQUEST, SERVED, Tables, table
from driftscope.analysis.statistics.changes import Lifetimes, selection_of
from driftscope.boundary.json_document import written_property
from driftscope.metrics import acceptance as formula
from driftscope.metrics.fallback import UNKNOWN

if TYPE_CHECKING:
    import ibis.expr.types as ir


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Options that cut a run, and how many requests the whole run has."""

    where: str | None = None
    since: str | None = None
    requests: int
    """Number of requests of the whole run that have a decode step."""

    def words(self, kept: int) -> str:
        """Return the cut in words: "only --since 1s: 10 of 241 requests"; `kept` is the number of
        requests that are left."""
        options = (("--since", self.since), ("--where", self.where))
        cut = " and ".join(f"{name} {value}" for name, value in options if value is not None)
        return f"only {cut}: {kept:,} of {count(self.requests, 'request')}"


@cache
def lifetimes(view: str) -> ir.Table:
    """Return the rounds of each request, and the times of its first and last decode step, in a view
    of decode steps."""
    rows = table(view, "verify")
    return rows.group_by(*REQUEST).aggregate(
        rounds=(rows.verified.fill_null(0) > 0).sum(),
        first_s=rows.time_s.min(),
        last_s=rows.time_s.max(),
    )


@cache
def outcomes() -> ir.Table:
    """Count all rounds that meet the run's conditions by tokens accepted, with the largest number
    of tokens that one of them verified."""
    rows = table(SERVED, "verify")
    rows = rows.filter(rows.verified > 0).mutate(accepted=rows.accepted.fill_null(0))
    return rows.group_by("accepted").aggregate(
        rounds=lambda t: t.count(), longest=lambda t: t.verified.max()
    )


ALL_ROUNDS = "verify_all"
"""Name of the view of all rounds of a run, whatever its conditions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRounds:
    """Rounds as vLLM counts them: also those that figures leave out."""

    requests: int
    rounds: int
    mean_length: float
    counted: tuple[float, ...]
    """Rounds accepted up to each depth over all rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """How many rounds the figures of a run leave out, and why."""

    running: int
    """Number of requests that had not finished when the recording ended."""
    late_requests: int
    """Number of requests that began too late to be seen whole."""
    late_rounds: int
    early_requests: int
    """Number of requests that began before the beginning of a `--since` cut."""
    early_rounds: int
    duration_s: float | None
    """Time in seconds within which 95% of the requests finish decoding; None if all of them
    finished, or if too few did to know it."""
    enough: bool
    """Whether at least half of the rounds are left. If not, the figures use all rounds, and have
    neither interval nor trend."""
    served: CountedRounds
    start_s: float
    """Unix time of the first decode step of all requests."""
    end_s: float

    @written_property
    def left_out(self) -> int:
        """Number of rounds that the figures leave out."""
        return self.late_rounds + self.early_rounds if self.enough else 0


def cohort_of(tables: Tables, begin_s: float = -math.inf) -> tuple[Cohort | None, pa.Table | None]:
    """Return the cohort of a run that was cut at `begin_s`, and the requests that it leaves out;
    (None, None) if it is all requests, or if the run has no round."""
    lives, keys, spans = _lifetimes(tables)
    if not lives.rounds.sum():
        return None, None
    chosen = selection_of(lives, begin_s)
    outside = chosen.early | chosen.late
    if not (lives.rounds[outside] > 0).any():
        return None, None
    rounds = lives.rounds
    cohort = Cohort(
        running=int((~lives.ended).sum()),
        late_requests=int((rounds[chosen.late] > 0).sum()),
        late_rounds=int(rounds[chosen.late].sum()),
        early_requests=int((rounds[chosen.early] > 0).sum()),
        early_rounds=int(rounds[chosen.early].sum()),
        duration_s=chosen.duration_s,
        enough=chosen.enough,
        served=_served(tables, int((rounds > 0).sum())),
        start_s=spans[0],
        end_s=spans[1],
    )
    return cohort, keys.filter(pa.array(outside)) if chosen.enough else None


def _served(tables: Tables, requests: int) -> CountedRounds:
    counted = tables.engine.rows(outcomes())
    accepted = np.maximum(whole(counted, "accepted"), 0)
    rounds = whole(counted, "rounds")
    histogram = np.bincount(accepted, rounds, int(whole(counted, "longest").max()) + 1)
    n = int(histogram.sum())
    return CountedRounds(
        requests=requests,
        rounds=n,
        mean_length=float(formula.mean_length(accepted @ rounds, n)),
        counted=formula.marginal_rates(formula.counts_of(histogram), n),
    )


def _lifetimes(tables: Tables) -> tuple[Lifetimes, pa.Table, tuple[float, float]]:
    """Return the lives of all requests that have a decode step under the run's conditions, their
    keys, and the times of the first and the last of these steps."""
    lived = tables.engine.rows(lifetimes(ALL_ROUNDS))
    # A server's end is the last decode step of its replica.
    _, server = np.unique(whole(lived, "replica"), return_inverse=True)
    server_end_s = np.full(int(server.max(initial=-1)) + 1, -np.inf)
    np.fmax.at(server_end_s, server, floats(lived, "last_s"))
    met = tables.engine.rows(lifetimes("verify")) if tables.conditions else lived
    at = index_of(met, lived)
    # The requests whose end was recorded, whatever conditions the run has.
    finished = table("request_all", "request").select(*REQUEST).distinct()
    keys, ended = met.select(list(REQUEST)), tables.engine.rows(finished)
    lives = Lifetimes(
        start_s=floats(lived, "first_s")[at],
        last_s=floats(lived, "last_s")[at],
        end_s=server_end_s[server[at]],
        ended=np.asarray(index_of(keys, ended, missing=-1) >= 0)
        if ended.num_rows
        else np.zeros(keys.num_rows, dtype=np.bool_),
        rounds=whole(met, "rounds"),
    )
    first_s, last_s = floats(met, "first_s"), floats(met, "last_s")
    return lives, keys, (float(first_s.min(initial=np.inf)), float(last_s.max(initial=-np.inf)))


def longer(cohort: Cohort) -> str:
    """Return in words what to record so that enough requests are seen whole."""
    if not cohort.late_requests:
        return "choose an earlier --since"
    more = "stop recording after the requests, or record longer"
    if cohort.duration_s is None:
        return f"{more}: too few of them finished"
    return f"{more} than {2 * cohort.duration_s:,.1f} seconds"


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
    drafts: int
    """Number of drafts, whether or not any of their tokens were verified."""
    cut: Mapping[str, int]
    """Drafts of which fewer tokens were verified than drafted, by reason, sorted by name."""
    chains: Chains
    broken: int
    """Number of recorded chains with a value that is not a finite number."""
    shallower: Shallower
    by_length: pa.Table | None
    """Rounds by request and by tokens verified, as `length`; None in a run of one K."""
    recorded: NDArray[np.int64]
    """Number of recorded chains of each request, [requests]."""
    drafted_in: NDArray[np.int64]
    """First and last step with a recorded chain of each request, [requests, 2]; -1 if it has
    none."""
    begun_before: int = 0
    """Number of requests whose first recorded step lies beyond their prompt by more than a
    draft."""
    cohort: Cohort | None = None
    """Rounds that the sums leave out; None if they leave out none."""
    slice: Slice | None = None
    """Cut by `--since` or `--where`; None for a whole run."""

    @property
    def seen_whole(self) -> bool:
        """Whether enough requests were recorded whole for means and trends to be told."""
        return self.cohort is None or self.cohort.enough

    @property
    def side(self) -> Side:
        """Rounds of each request that has one, in the form in which runs are compared."""
        rounds = self.rounds.where(self.rounds.rounds > 0)
        labels = tuple(str(self.requests.labels[row]) for row in rounds.request.tolist())
        return Side(
            rounds=rounds, labels=labels, requests=self.requests, is_part=self.slice is not None
        )

    def rounds_of(self, table: pa.Table, request: Codes) -> Rounds:
        """Return the rounds of a pass by request; its rows belong to `request`."""
        rounds = self.rounds
        return rounds_of(table, request, rounds.mix, self.requests.units, rounds.uncut)


def collect(tables: Tables, cohort: Cohort | None = None) -> Sums:
    """Collect the sums of a run, whose `tables` already leave out what the `cohort` does.

    Raises MixedTraceError, DamagedTraceError or NoDataError.
    """
    rows, shape = tables.engine.rows, shape_of(tables)
    in_context = rows(by_context(shape))
    by_drafted = in_order(rows(by_length(shape)), "length", *REQUEST) if shape.mixed else None
    verify = over_buckets(in_context)
    uncut = _uncut(tables, verify, shape)
    mix = np.zeros(shape.k + 1) if by_drafted is None else mix_of(by_drafted, shape.k, uncut)
    drawn = rows(requests_of_chains())
    requests = requests_of(tables, verify, drawn)
    check_rounds(tables, verify)
    requests.show(tables.engine, NUMBERED, np.arange(len(requests)))
    passes = []
    for derived in tables.parts:
        tables.use(derived)
        finite = finite_sums(tables.engine.rows(chains(shape, derived, False)), shape)
        if finite is None:  # some are no numbers: sum again, and slowly, those that are
            finite = tables.engine.rows(chains(shape, derived, True))
        passes.append(finite)
    measured = pa.concat_tables(passes, promote_options="permissive")
    check_chains(tables, measured, shape)
    found = chains_of(measured, shape, requests.units)
    recorded, drafted_in = np.zeros(len(requests), np.int64), np.full((len(requests), 2), -1)
    recorded[requests.codes(drawn)] = whole(drawn, "chains")
    steps = [whole(drawn, name) for name in ("first_step", "last_step")]
    drafted_in[requests.codes(drawn)] = np.stack(steps, axis=1)
    return Sums(
        tables=tables,
        shape=shape,
        requests=requests,
        in_context=in_context,
        rounds=rounds_of(verify, requests.codes(verify), mix, requests.units, uncut),
        undrafted=whole(verify, "undrafted"),
        structured=whole(verify, "structured"),
        deliberate=whole(verify, "deliberate"),
        first_s=floats(verify, "first_s"),
        last_s=floats(verify, "last_s"),
        **_reasons(tables, requests, requests.codes(verify)),
        drafts=total(verify, "drafts"),
        chains=found,
        broken=_broken(tables, shape, found) if doubtful(measured, shape) else 0,
        shallower=_shallower(tables, shape),
        by_length=by_drafted,
        recorded=recorded,
        drafted_in=drafted_in,
        begun_before=int(
            (
                floats(verify, "first_position")
                > requests.prompt_tokens[requests.codes(verify)] + shape.k + 1
            ).sum()
        ),
        cohort=cohort,
    )


def _broken(tables: Tables, shape: Shape, found: Chains) -> int:
    names = tuple(sorted(found.means))
    return total(tables.of_parts(lambda derived: broken(shape, derived, names)), "chains")


def _shallower(tables: Tables, shape: Shape) -> Shallower:
    if not shape.mixed:
        return Shallower(chains=0, weight=0.0, chunked=0)
    totals = tables.engine.rows(shallower(shape))
    weight = float(sums_column(totals, "weight")[0])
    return Shallower(
        chains=total(totals, "chains"), weight=weight, chunked=total(totals, "chunked")
    )


def _uncut(tables: Tables, verify: pa.Table, shape: Shape) -> int | None:
    """Return `Rounds.uncut` of a run."""
    found = tables.engine.rows(cut_for_confidence())
    if not found.num_rows:
        return None
    cut = np.zeros(shape.k, np.int64)
    np.add.at(cut, whole(found, "verified"), whole(found, "rows"))
    rows = np.arange(verify.num_rows)
    return uncut_of(rounds_of(verify, rows, np.zeros(shape.k + 1)).at_risk.sum(axis=0), cut)


def _reasons(tables: Tables, requests: Requests, rows: Codes) -> dict[str, Any]:
    """Return `Sums.reasons`, whose `rows` are the requests of the rounds, and `Sums.cut`."""
    steps = tables.engine.rows(reasons())
    none, cut, request = whole(steps, "none"), whole(steps, "cut"), requests.codes(steps)
    reason = np.asarray([name or UNKNOWN for name in steps.column("reason").to_pylist()], object)
    named = [(name, reason == name) for name in sorted(set(reason.tolist()))]
    return {
        "reasons": {
            name: np.bincount(request[of_kind], none[of_kind], len(requests)).astype(np.int64)[rows]
            for name, of_kind in named
            if none[of_kind].any()
        },
        "cut": {name: int(cut[of_kind].sum()) for name, of_kind in named if cut[of_kind].any()},
    }
