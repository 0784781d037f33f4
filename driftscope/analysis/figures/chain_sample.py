"""Sample of the chains of a very large run, for passes that look at chains one by one.

The sample consists of whole requests, in bands that are evenly spread over the run. The requests of
a band begin one after another, so that an engine reads the rows of a few steps and skips the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.figures.run_sums import Sums
from driftscope.analysis.query.column_arrays import Codes
from driftscope.analysis.query.record_views import steps_of

BANDS = 25
"""Number of bands of requests. With fewer, a run whose traffic changes is seen at too few moments;
with more, an engine reads almost every part of the files."""
COMPARED = 500_000
"""Number of chains that are compared with their rounds one by one. With half a million tokens of
one depth, a calibration error is off by less than 0.002."""
MOST_STEPS = 2_000_000
"""Most steps that are listed for an engine; with more, it reads the rows of every step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainSample:
    """Requests whose chains are looked at."""

    requests: Codes
    """Numbers of the requests, ascending."""
    steps: NDArray[np.int64] | None
    """Steps outside of which no chain of these requests was recorded; None: any step."""

    def show(self, run: Sums, name: str, cluster: Codes) -> None:
        """Define the view `name` on the requests, each with its number in `cluster`, [requests of
        the run], and the view of their steps that `passes.views.sampled` reads."""
        engine = run.tables.engine
        view = run.requests.keys.take(pa.array(self.requests, pa.int64()))
        view = view.append_column("cluster", pa.array(cluster[self.requests], pa.int64()))
        engine.view(name, view, view.schema)
        if self.steps is not None:
            steps = pa.table({"step": pa.array(self.steps, pa.int64())})
            engine.view(steps_of(name), steps, steps.schema)


def chain_sample(run: Sums, most: int, among: Codes | None = None) -> ChainSample:
    """Return a sample of about `most` recorded chains; all of them, if there are no more.

    `among`: the numbers of the requests to choose from, by default all of the run.
    """
    there = np.flatnonzero(run.recorded) if among is None else among
    every = max(1, -(-int(run.recorded[there].sum()) // most))
    if every == 1:
        return ChainSample(requests=there, steps=None)
    by_time = there[np.argsort(run.drafted_in[there, 0], kind="stable")]
    band = max(1, len(there) // every // BANDS)
    rank = np.arange(len(by_time))
    requests = np.sort(by_time[rank % (band * every) < band])
    return ChainSample(requests=requests, steps=_steps(run.drafted_in[requests]))


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
