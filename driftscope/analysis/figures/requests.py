"""Requests of a run: their codes, and which of them count as independent of each other, and the
load that they were.

A request's unit is the first of these that the recording knows: session, conversation, question of
a replay, prompt; otherwise it is the request itself. A workload label is never a unit unless
`--cluster label` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from driftscope.analysis.query.query_engine import Codes, Matrix, QueryEngine, floats, in_order
from driftscope.analysis.query.record_views import REQUEST, Tables, table
from driftscope.analysis.statistics.ratio import nested, spans_of
from driftscope.errors import UsageError
from driftscope.metrics.latency import life_s

if TYPE_CHECKING:
    import ibis.expr.types as ir


@cache
def requests_of_chains() -> ir.Table:
    """Return the requests that have a recorded chain, with their number of chains and the first and
    last step with one."""
    draft = table("draft")
    return draft.group_by(*REQUEST).aggregate(
        chains=draft.count(), first_step=draft.step.min(), last_step=draft.step.max()
    )


@cache
def requests_that_finished() -> ir.Table:
    """Return the request rows, one per finished request, in order of time."""
    rows = table("request")
    return rows.select(
        *REQUEST,
        "label",
        "arrival_s",
        "prompt_tokens",
        "output_tokens",
        "ttft_s",
        "tpot_s",
        "temperature",
        "structured",
        "finish_reason",
        "prompt_digest",
        "conversation",
        "session",
        "pair",
        "time_s",
        has_regions=rows.region_starts.notnull(),
    ).order_by("time_s", *REQUEST)


@cache
def times_of_requests() -> ir.Table:
    """Return the times of every finished request, whatever conditions leave out."""
    rows = table("request_all", "request")
    return rows.select("arrival_s", "ttft_s", "tpot_s", "output_tokens")


SESSION, CONVERSATION, PAIR, PROMPT = "session", "conversation", "pair", "prompt_digest"
COLUMNS = (SESSION, CONVERSATION, PAIR, PROMPT, "label", "request")
"""Columns of a request that may be chosen as its unit."""
NOUNS = {
    SESSION: "session",
    CONVERSATION: "conversation",
    PAIR: "question",
    PROMPT: "prompt",
    "label": "label",
    "request": "request",
}
"""Word for one unit, by the column that it comes from."""
MIXED = "independent group"
"""Word for units that come from several columns."""
Names = NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """Unit of each request of a run."""

    unit: Codes
    """Number of each request's unit, from 0, [requests]."""
    crossed: Codes | None = None
    """Number of each request's prompt, if prompts and units cross; None if one is nested in the
    other."""
    noun: str = NOUNS["request"]
    """Word for one unit."""
    seen: bool = False
    """Whether repeated prompts can be seen: the recording has digests, or a column was chosen."""
    in_time: Codes | None = None
    """Session or conversation of each request; None if the recording knows none."""
    prompt: Codes | None = None
    """Number of each request's prompt, -1 if not known; None if no prompt is known to repeat."""

    def __len__(self) -> int:
        return len(self.unit)


def own_units(requests: int) -> Units:
    """Return units of which each is one request."""
    return Units(unit=np.arange(requests))


def units_of(finished: pa.Table, at: Codes, requests: int, column: str | None = None) -> Units:
    """Return the units of `requests` requests.

    `finished` has the rows of those that ended, which are at the indices `at`. `column` is the
    column that the user chose as unit. Raises UsageError for an unknown one.
    """
    if column is not None and column not in COLUMNS:
        raise UsageError(f"--cluster {column!r}: give one of {', '.join(COLUMNS)}")
    names = {name: _names(finished, name, at, requests) for name in COLUMNS}
    if column is not None:
        return Units(unit=_codes(names[column], column), noun=NOUNS[column], seen=True)
    # A conversation has a later turn; a prompt alone is none.
    pairs = zip(names[CONVERSATION], names[PROMPT], strict=True)
    going_on = {root for root, own in pairs if root is not None and root != own}
    names[CONVERSATION] = _objects(
        [root if root in going_on else None for root in names[CONVERSATION]]
    )
    seen = _any_named(names[PROMPT])
    if not any(_any_named(names[name]) for name in (SESSION, CONVERSATION, PAIR, PROMPT)):
        return own_units(requests)
    # The units by sessions and conversations, by prompts, or by both where they cross.
    alone = np.array([None] * len(names[PROMPT]), dtype=object)
    of_time, of_prompt = (
        _first(names, columns, alone) for columns in ((SESSION, CONVERSATION), (PAIR, PROMPT))
    )
    timed, prompts = _codes(of_time[0]), _codes(of_prompt[0])
    in_time = timed if _any_named(of_time[0]) else None
    codes, known = _codes(names[PROMPT]), np.array([name is not None for name in names[PROMPT]])
    repeat = known.any() and len(np.unique(codes[known])) < known.sum()
    prompt = np.where(known, codes, -1) if repeat else None
    plain = Units(unit=prompts, noun=_noun(of_prompt[1]), seen=seen, in_time=in_time, prompt=prompt)
    if in_time is None:
        return plain
    lacks = np.array([name is None for name in of_time[0]], dtype=np.bool_)
    joined, kinds = of_time[0].copy(), of_time[1].copy()
    joined[lacks], kinds[lacks] = of_prompt[0][lacks], of_prompt[1][lacks]
    unit = _codes(joined)
    if nested(unit, prompts):
        return plain
    crossed = None if nested(prompts, unit) else prompts
    return replace(plain, unit=unit, crossed=crossed, noun=_noun(kinds))


_Found = tuple[Names, Names]
"""Name of the unit of each request, None if it has none, and the column that it comes from."""


def _first(names: dict[str, Names], columns: tuple[str, ...], alone: Names) -> _Found:
    """Return the first of these columns that each request has."""
    found, kind = alone.copy(), alone.copy()
    for column in reversed(columns):
        is_named = np.array([name is not None for name in names[column]], dtype=np.bool_)
        found[is_named] = _objects([(column, name) for name in names[column][is_named]])
        kind[is_named] = NOUNS[column]
    return found, kind


def _names(finished: pa.Table, column: str, at: Codes, requests: int) -> Names:
    out = np.full(requests, None, dtype=object)
    recorded = finished.column(column) if column in finished.column_names else None
    if recorded is not None and recorded.null_count < len(recorded):
        out[at] = recorded.to_pylist()
    return out


def _any_named(names: Names) -> bool:
    return any(name is not None for name in names)


def _codes(names: Names, column: str = "") -> Codes:
    """Return a number for each name, in order of its first request; a request without a name has a
    number of its own, or shares one if the `column` is the user's choice."""
    if not _any_named(names) and column in ("", PROMPT):
        return np.arange(len(names))
    kinds: dict[object, int] = {}
    code = np.array([-1 if name is None else kinds.setdefault(name, len(kinds)) for name in names])
    nameless = code < 0
    code[nameless] = len(kinds)
    if column in ("", PROMPT):
        code[nameless] += np.arange(nameless.sum())
    _, first, rank = np.unique(code, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[rank])


def _noun(kinds: Names) -> str:
    words = {kind or NOUNS["request"] for kind in kinds.tolist()}
    if len(words) > 1:
        words -= {NOUNS["request"]}
    return words.pop() if len(words) == 1 else MIXED


def _objects(values: Sequence[object]) -> Names:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


UNLABELLED = "(unlabelled)"
UNFINISHED = "(not finished)"
"""Label of requests with steps in the run but without a request row: the run broke off before their
end."""
SAME_LOAD = 1.2
"""Largest ratio of two loads that count as equal: a faster server finishes its requests sooner, so
that equal traffic need not mean equally many requests at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Load of a server, from when its requests arrived and ended."""

    at_once: float
    """Mean number of requests in the server while it had any."""
    met: float
    """Mean number of requests in the server that a request met, itself included: above `at_once`
    in a burst."""
    gaps_s: Matrix
    """Times between arrivals, ascending, [requests - 1]."""

    def is_like(self, other: Load) -> bool:
        """Whether two loads count as equal: as many requests at once, or requests that arrived in
        the same rhythm, of which a slower server has more at once."""
        if all(
            _ratio(mine, theirs) <= SAME_LOAD
            for mine, theirs in ((self.at_once, other.at_once), (self.met, other.met))
        ):
            return True
        rates = [gaps.mean() if len(gaps) else 0.0 for gaps in (self.gaps_s, other.gaps_s)]
        if min(rates) <= 0 or _ratio(*rates) > SAME_LOAD:
            return False
        every = np.concatenate([self.gaps_s, other.gaps_s])
        places = [
            np.searchsorted(gaps, every, side="right") / len(gaps)
            for gaps in (self.gaps_s, other.gaps_s)
        ]
        largest_gap = float(np.abs(places[0] - places[1]).max())
        return largest_gap <= _RHYTHM * math.sqrt(1 / len(self.gaps_s) + 1 / len(other.gaps_s))


_RHYTHM = 1.36
"""Critical distance of Kolmogorov and Smirnov for two samples at 5 %, for sizes of 1."""


def load_of(arrival_s: Matrix, life: Matrix) -> Load | None:
    """Return the load of a server from the arrivals and lives of its requests in seconds; None if
    those of fewer than two requests are known."""
    known = np.isfinite(arrival_s) & np.isfinite(life) & (life > 0)
    if known.sum() < 2:
        return None
    begin, end = arrival_s[known], arrival_s[known] + life[known]
    at = np.concatenate([begin, end])
    step = np.concatenate([np.ones(len(begin)), -np.ones(len(end))])
    order = np.argsort(at, kind="stable")
    lasted, inside = np.diff(at[order]), np.cumsum(step[order])[:-1]
    busy = float(lasted[inside > 0].sum())
    asked = float((inside * lasted).sum())
    if not busy > 0 or not asked > 0:
        return None
    return Load(
        at_once=asked / busy,
        met=float((np.square(inside) * lasted).sum()) / asked,
        gaps_s=np.sort(np.diff(np.sort(begin))),
    )


def _ratio(a: float, b: float) -> float:
    return max(a, b) / min(a, b)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Every request that any table of the run mentions, arrays of [requests] each, in order of
    replica and name."""

    keys: pa.Table
    """Replica and name of each request."""
    labels: NDArray[np.object_]
    """Workload label of each request."""
    ttft_s: Matrix
    """Time to first token in seconds; in this field and the next five, NaN stands for an unknown
    number."""
    tpot_s: Matrix
    arrival_s: Matrix
    prompt_tokens: Matrix
    output_tokens: Matrix
    temperature: Matrix
    finish_reason: NDArray[np.object_]
    """Reason why each request ended; "" if it is not known."""
    structured: NDArray[np.object_]
    """Kind of structured output that each request asked for; "" if it is not known."""
    replica: NDArray[np.int64]
    units: Units
    """Requests that count as independent of each other."""
    digests: NDArray[np.object_]
    """Digest of each request's prompt; "" if it is not known."""
    has_regions: bool = False
    """Whether regions of some request's answer were recorded."""
    load: Load | None = None
    """Load of the server, of all its requests, also those that conditions leave out; None if it is
    not known."""

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def show(self, engine: QueryEngine, name: str, chosen: Codes) -> None:
        """Define the view `name` on the `chosen` requests, each with its number as `cluster`."""
        view = self.keys.take(pa.array(chosen, pa.int64()))
        view = view.append_column("cluster", pa.array(chosen, pa.int64()))
        engine.view(name, view, view.schema)

    def codes(self, table: pa.Table) -> Codes:
        """Return the request that each row of `table`, which has replica and request columns,
        belongs to, [rows]."""
        return index_of(table, self.keys)

    @property
    def spans(self) -> Codes | None:
        """Span of time in which each request arrived, [requests]; None if there are too few."""
        return spans_of(self.arrival_s, life_s(self.ttft_s, self.tpot_s, self.output_tokens))

    @property
    def finished(self) -> NDArray[np.bool_]:
        """Whether each request has a request row, [requests]."""
        return np.asarray(self.labels != UNFINISHED)


def requests_of(tables: Tables, *mentions: pa.Table) -> Requests:
    """Return the requests of a run, including those that only other tables mention."""
    finished = tables.engine.rows(requests_that_finished())
    types = {"replica": pa.int64(), "request": pa.string()}
    mentioned = [
        pa.table({name: rows.column(name).cast(kind) for name, kind in types.items()})
        for rows in (finished, *mentions)
    ]
    distinct = pa.concat_tables(mentioned).group_by([*types]).aggregate([])
    keys = in_order(distinct, *types)
    at = index_of(finished, keys)
    labels = np.full(keys.num_rows, UNFINISHED, dtype=np.object_)
    labels[at] = pc.fill_null(finished.column("label"), UNLABELLED).to_pylist()
    texts = {}
    for name in ("finish_reason", "structured", "prompt_digest"):
        texts[name] = np.full(keys.num_rows, "", dtype=np.object_)
        texts[name][at] = pc.fill_null(finished.column(name), "").to_pylist()
    numbers = {}
    for name in _NUMBERS:
        numbers[name] = np.full(keys.num_rows, np.nan)
        numbers[name][at] = floats(finished, name)
    rows = tables.engine.rows(times_of_requests())
    ttft_s, tpot_s, tokens = (floats(rows, n) for n in ("ttft_s", "tpot_s", "output_tokens"))
    return Requests(
        keys=keys,
        labels=labels,
        units=units_of(finished, at, keys.num_rows, tables.cluster),
        digests=texts.pop("prompt_digest"),
        has_regions=pc.any(finished.column("has_regions")).as_py() is True,
        replica=np.asarray(keys.column("replica").to_numpy(), dtype=np.int64),
        load=load_of(floats(rows, "arrival_s"), life_s(ttft_s, tpot_s, tokens)),
        **texts,
        **numbers,
    )


_NUMBERS = ("ttft_s", "tpot_s", "arrival_s", "prompt_tokens", "output_tokens", "temperature")


def evenly(requests: Codes, rows: NDArray[np.int64], most: int) -> Codes:
    """Return every n-th of `requests`, so that they have about `most` of all `rows`; all of them if
    they have no more than that."""
    every = max(1, -(-int(rows.sum()) // most))
    return requests[::every]


def index_of(table: pa.Table, keys: pa.Table, *, missing: int | None = None) -> Codes:
    """Return the row of `keys` with the request of each row of `table`, [rows]; `missing` where it
    has none. Both tables have replica and request columns."""
    positions = pc.index_in(_keyed_names(table), value_set=_keyed_names(keys).combine_chunks())
    known = positions if missing is None else pc.fill_null(positions, missing)
    return np.asarray(known.to_numpy(), dtype=np.int64)


def _keyed_names(table: pa.Table) -> pa.ChunkedArray:
    replica = table.column("replica").cast(pa.string())
    return pc.binary_join_element_wise(replica, table.column("request").cast(pa.string()), "/")
