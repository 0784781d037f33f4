"""A simulated run as sums by request, without files: for thousands of runs."""

from __future__ import annotations

import numpy as np
from support.simulate.draw import chunks
from support.simulate.truth import Truth

from driftscope.analysis.changes import Series
from driftscope.analysis.compare import Side
from driftscope.analysis.rounds import Rounds


def side(truth: Truth) -> Side:
    """The rounds of `truth` by request, as `driftscope.analysis.compare.side_of` has them."""
    counts, labels, first = [], [], 0
    for chunk in chunks(truth):
        rows = (chunk.accepted >= 0) & (chunk.drafted > 0)
        code = chunk.request[rows] * (truth.k + 1) + chunk.accepted[rows]
        table = np.bincount(code, minlength=len(chunk.kind) * (truth.k + 1))
        counts.append(table.reshape(-1, truth.k + 1))
        labels += [str(truth.prompts[kind].label) for kind in chunk.kind.tolist()]
        first += len(chunk.kind)
    histogram = np.concatenate(counts)
    rounds = histogram.sum(axis=1)
    there = rounds > 0
    return Side(
        rounds=Rounds(
            request=np.arange(first)[there],
            rounds=rounds[there],
            drafted=rounds[there] * truth.k,
            short=np.zeros(int(there.sum()), dtype=np.int64),
            histogram=histogram[there],
        ),
        labels=np.array(labels)[there],
    )


def series(truth: Truth) -> Series:
    """The requests of `truth`, one of which starts each second."""
    drawn = side(truth)
    tokens, rounds = drawn.rounds.by_request()
    return Series(
        start_s=np.arange(len(rounds), dtype=np.float64),
        end_s=float(len(rounds)),
        tokens=tokens[:, 0].copy(),
        rounds=rounds[:, 0],
        labels=drawn.labels,
    )
