"""Rounds of finished requests by the kind of text that they draft."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from driftscope.regions.round_places import first_drafted, regions_at
from driftscope.telemetry.collect.batch_counter import BadRowError
from driftscope.telemetry.collect.instruments import (
    REGION_ACCEPTED,
    REGION_PROPOSED,
    REGION_ROUNDS,
)
from driftscope.telemetry.collect.tally import Tally
from driftscope.vocabulary import Region

REMEMBERED_ROUNDS = 2_097_152
"""Most rounds of running requests that are kept, 24 bytes each. Those of the oldest requests are
discarded beyond it, and are in no region."""

_Rounds = tuple["array[int]", "array[int]", "array[int]"]
"""Position, drafted and accepted tokens of a request's rounds so far."""


class RegionCounter:
    """Keeps the rounds of running requests, and counts them by region once a request has ended.

    A request has its regions when it ends. Rounds of a request without them are not counted.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._open: OrderedDict[str, _Rounds] = OrderedDict()
        self._kept = 0

    def verified(self, batch: pa.RecordBatch) -> None:
        """Keep the rounds of a batch of `verify`."""
        names = ("request", "position", "drafted", "accepted")
        columns = (batch.column(name).to_pylist() for name in names)
        for request, *numbers in zip(*columns, strict=True):
            if numbers[1]:
                self._keep(request, numbers)

    def finished(self, row: Mapping[str, Any]) -> None:
        """Count the rounds of a request that ended; `row` is its RequestRow by column."""
        rounds = self._open.pop(row["request"], None)
        if rounds is None:
            return
        self._kept -= len(rounds[0])
        if row["region_starts"]:
            self._count(row, rounds)

    def _keep(self, request: str, numbers: list[int]) -> None:
        rounds = self._open.get(request)
        if rounds is None:
            rounds = self._open[request] = array("q"), array("q"), array("q")
        for column, number in zip(rounds, numbers, strict=True):
            column.append(number)
        self._kept += 1
        while self._kept > REMEMBERED_ROUNDS:
            self._kept -= len(self._open.popitem(last=False)[1][0])

    def _count(self, row: Mapping[str, Any], rounds: _Rounds) -> None:
        if len(row["region_starts"]) != len(row["region_codes"] or ()):
            raise BadRowError("a row whose region_starts and region_codes differ in length")
        position, drafted, accepted = rounds
        places = regions_at(first_drafted(position, row["prompt_tokens"]), row["region_starts"])
        codes = np.asarray(row["region_codes"])[places]
        for code in np.unique(codes).tolist():
            if not 0 <= code < len(Region.ALL):  # a region of a later version
                continue
            mine, name = codes == code, Region.ALL[code]
            self._tally.add(REGION_ROUNDS, int(mine.sum()), region=name)
            self._tally.add(REGION_PROPOSED, int(np.asarray(drafted)[mine].sum()), region=name)
            self._tally.add(REGION_ACCEPTED, int(np.asarray(accepted)[mine].sum()), region=name)
