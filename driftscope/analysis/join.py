"""Puts each round beside the recorded chain that it verified."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from driftscope.analysis.columns import floats, ints
from driftscope.analysis.requests import Requests
from driftscope.trace.reader import Trace


def accepted_of_chains(trace: Trace, requests: Requests) -> NDArray[np.float64]:
    """[chains] tokens accepted of each recorded chain, NaN where it was never verified.

    The engine core writes a round later than the worker wrote its chain, or dies in between, so a
    round belongs to the latest chain of its request and position. A request's last chain is often
    never verified, and with sampling most rounds have no recorded chain.
    """
    chains = pd.DataFrame(
        {
            "request": requests.codes(trace.draft),
            "position": ints(trace.draft, "position"),
            "time_s": floats(trace.draft, "time_s"),
            "chain": np.arange(trace.draft.num_rows),
        }
    )
    rounds = pd.DataFrame(
        {
            "request": requests.codes(trace.verify),
            "position": ints(trace.verify, "position"),
            "time_s": floats(trace.verify, "time_s"),
            "accepted": ints(trace.verify, "accepted"),
        }
    )[ints(trace.verify, "drafted") > 0]
    joined = pd.merge_asof(
        rounds.sort_values("time_s", kind="stable"),
        chains.sort_values("time_s", kind="stable"),
        on="time_s",
        by=["request", "position"],
    ).dropna(subset="chain")
    accepted = np.full(trace.draft.num_rows, np.nan)
    accepted[joined["chain"].to_numpy(dtype=np.int64)] = joined["accepted"].to_numpy()
    return accepted
