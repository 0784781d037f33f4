"""Rounds of a run by the kind of text that they draft, compared inside each request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.circumstances.groups import Group
from driftscope.analysis.circumstances.named_group import group_of
from driftscope.analysis.figures.round_sums import Rounds
from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.passes.rounds import rounds_in_buckets
from driftscope.analysis.passes.views import REQUEST
from driftscope.analysis.query.buckets import NEAR_TOKENS, TEXT, TEXT_SEPARATOR
from driftscope.analysis.query.record_views import cut
from driftscope.analysis.statistics.contrast import Contrast
from driftscope.analysis.statistics.same_request import Halves, within_requests
from driftscope.vocabulary import Region

OTHER_TEXT = "other text of the same answers"
NEAR = f"within {NEAR_TOKENS} tokens of its begin"
FAR = "the rest of the block"
COPIED, NEW = "copied", "new"
Names = NDArray[np.str_]


def text_rounds(run: Sums) -> pa.Table | None:
    """Return the rounds by request and kind of text, see `buckets.TEXT`; None if no finished
    request has regions."""
    if not run.requests.has_regions:
        return None
    cut(run.tables, "verify", "verify", TEXT)
    rows = run.tables.engine.rows(rounds_in_buckets(run.shape))
    return rows.sort_by([(name, "ascending") for name in ("bucket", *REQUEST)])


def text_groups(run: Sums, table: pa.Table | None) -> dict[str, Any]:
    """Return the fields of `Groups` about kinds of text, from `text_rounds`."""
    if table is None or not table.num_rows:
        return {}
    rounds = run.rounds_of(table, run.requests.codes(table))
    parts = [name.split(TEXT_SEPARATOR) for name in table.column("bucket").to_pylist()]
    region, place, copied = np.asarray(parts, dtype=np.str_).T
    copied = np.where(copied == "1", COPIED, NEW)
    return {
        "region": tuple(_groups(rounds, region, Region.ALL)),
        "copied": tuple(_groups(rounds, copied, (COPIED, NEW))),
        **within_requests_of(rounds, region, place == "near"),
    }


def within_requests_of(rounds: Rounds, region: Names, near: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the fields of `Groups` that compare kinds of text inside each request; `region` and
    `near` are those of the rows of `rounds`, [rows]."""
    return {
        "regions_within_request": tuple(_regions_within(rounds, region)),
        "boundary_within_request": _boundary_within(rounds, region, near),
    }


def _groups(rounds: Rounds, names: Names, order: tuple[str, ...]) -> Iterator[Group]:
    for name in order:
        mine = rounds.where(names == name)
        if len(mine):
            yield group_of(name, mine)


def _regions_within(rounds: Rounds, region: Names) -> Iterator[Contrast]:
    """Yield each region compared with all other text of the same answers."""
    for name in Region.ALL:
        second = region == name
        if second.any():
            halves = _halves(rounds, second, np.zeros(len(region), dtype=np.int64))
            if contrast := within_requests(halves, OTHER_TEXT, name):
                yield contrast


def _boundary_within(rounds: Rounds, region: Names, near: NDArray[np.bool_]) -> Contrast | None:
    """Compare the first tokens of blocks with the rest of the same region in the same request."""
    stratum = np.unique(region, return_inverse=True)[1]
    return within_requests(_halves(rounds, near, stratum), FAR, NEAR)


def _halves(rounds: Rounds, second: NDArray[np.bool_], stratum: NDArray[np.int64]) -> Halves:
    """Return the sums of both kinds by request and stratum."""
    strata = int(stratum.max(initial=0)) + 1
    key, at = np.unique(rounds.request * strata + stratum, return_inverse=True)
    there, accepted = np.zeros((len(key), 2)), np.zeros((len(key), 2))
    place = (at, second.astype(np.int64))
    np.add.at(there, place, rounds.rounds)
    np.add.at(accepted, place, rounds.comparable_tokens()[:, 0] - rounds.rounds)
    first = np.unique(at, return_index=True)[1]
    return Halves(
        accepted=accepted,
        rounds=there,
        request=rounds.request[first],
        cluster=rounds.cluster[first],
        crossed=None if rounds.crossed is None else rounds.crossed[first],
    )
