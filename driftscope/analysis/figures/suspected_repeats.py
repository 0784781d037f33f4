"""Units of a recording without digests of prompts, from requests that look alike."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from driftscope.analysis.figures.request_codes import Requests
from driftscope.analysis.figures.units import SUSPECTED, Units
from driftscope.analysis.query.column_arrays import Codes, whole
from driftscope.analysis.query.record_views import REQUEST, SUSPECTS, Tables, clusters, table
from driftscope.analysis.statistics.look_alikes import look_alikes

if TYPE_CHECKING:
    import ibis.expr.types as ir

FIRST_ROUNDS = 10
"""Number of rounds at the beginning of an answer that have to agree."""
LOOKED_AT = 10_000
"""Number of requests that are looked at; of more, the first in order of their names."""


def with_suspected(tables: Tables, requests: Requests) -> Requests:
    """Return the requests with units of those that look alike, if the recording says nothing about
    repeated prompts and enough of them do."""
    units = requests.units
    if units.seen or units.in_time is not None:
        return requests
    label = np.unique(requests.labels.astype(str), return_inverse=True)[1]
    length = np.unique(requests.prompt_tokens, return_inverse=True)[1].reshape(-1)
    looked_at = _candidates(requests, label, length)
    if len(looked_at) < 2:
        return requests
    beginning = np.full(len(requests), -1, dtype=np.int64)
    beginning[looked_at] = _beginnings(tables, requests, looked_at)
    group = look_alikes(label, length, beginning)
    if group is None:
        return requests
    suspected = Units(unit=group, noun=SUSPECTED, suspected=True, prompt=units.prompt)
    return replace(requests, units=suspected)


def _candidates(requests: Requests, label: Codes, length: Codes) -> Codes:
    """Return the greedy requests whose label and prompt length another one shares."""
    greedy = np.flatnonzero((requests.temperature == 0) & np.isfinite(requests.prompt_tokens))
    kind = label[greedy] * (int(length.max(initial=0)) + 1) + length[greedy]
    _, at, size = np.unique(kind, return_inverse=True, return_counts=True)
    return np.asarray(greedy[size[at] > 1][:LOOKED_AT], dtype=np.int64)


def _beginnings(tables: Tables, requests: Requests, looked_at: Codes) -> Codes:
    """Return a number for each request, equal for equal first rounds; -1 for fewer rounds."""
    view = requests.keys.take(pa.array(looked_at, pa.int64()))
    view = view.append_column("cluster", pa.array(np.arange(len(looked_at)), pa.int64()))
    tables.engine.view(SUSPECTS, view, view.schema)
    rows = tables.engine.rows(first_rounds(FIRST_ROUNDS))
    rounds = np.full((len(looked_at), FIRST_ROUNDS, 2), -1, dtype=np.int64)
    place = whole(rows, "cluster"), whole(rows, "nth")
    for at, name in enumerate(("drafted", "accepted")):
        rounds[(*place, np.full(len(place[0]), at))] = whole(rows, name)
    flat = rounds.reshape(len(looked_at), -1)
    code = np.unique(flat, axis=0, return_inverse=True)[1].reshape(-1)
    return np.asarray(np.where((flat >= 0).all(axis=1), code, -1), dtype=np.int64)


@cache
def first_rounds(first: int) -> ir.Table:
    """Return the `first` rounds of each request in SUSPECTS, `nth` counts from 0."""
    import ibis

    rows = table("verify")
    rows = rows.filter(rows.drafted > 0).join(clusters(SUSPECTS), REQUEST)
    order = ibis.window(group_by="cluster", order_by=(rows.time_s, rows.position))
    rows = rows.mutate(nth=ibis.row_number().over(order))
    rows = rows.filter(rows.nth < first)
    return rows.select("cluster", "nth", "drafted", accepted=rows.accepted.fill_null(0))
