"""The verify table as arrays: rounds, and the decode steps without a draft."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftscope.analysis.columns import Codes, ints
from driftscope.analysis.requests import Requests
from driftscope.trace.reader import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Decode steps of single requests; the first three arrays are [rounds], the rest
    [undrafted]."""

    request: Codes
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    undrafted_request: Codes
    reasons: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.request)

    def of(self, wanted: NDArray[np.bool_]) -> Rounds:
        """Those of the requests that `wanted`, [requests], names."""
        mine, undrafted = wanted[self.request], wanted[self.undrafted_request]
        return Rounds(
            request=self.request[mine],
            drafted=self.drafted[mine],
            accepted=self.accepted[mine],
            undrafted_request=self.undrafted_request[undrafted],
            reasons=self.reasons[undrafted],
        )


def rounds_of(trace: Trace, requests: Requests) -> Rounds:
    """The rounds of `trace`."""
    drafted = ints(trace.verify, "drafted")
    request = requests.codes(trace.verify)
    reasons = np.asarray(trace.verify.column("reason").to_pylist(), dtype=np.object_)
    is_round = drafted > 0
    return Rounds(
        request=request[is_round],
        drafted=drafted[is_round],
        accepted=ints(trace.verify, "accepted")[is_round],
        undrafted_request=request[~is_round],
        reasons=reasons[~is_round],
    )
