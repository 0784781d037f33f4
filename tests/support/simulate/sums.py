"""Sums by request of a simulated run, without files, for thousands of runs."""

from __future__ import annotations

import numpy as np
from support.simulate.draw import Chunk, Ints, chunks
from support.simulate.truth import Truth

from driftscope.analysis.compare import Comparison, comparison
from driftscope.analysis.figures.change_points import Series
from driftscope.analysis.figures.rounds import Rounds, Side, mix_over
from driftscope.analysis.pairing import UNPAIRED, Pairing


def side(truth: Truth, drafted: int | None = None) -> Side:
    """Return the rounds of `truth` by request, in the form of
    `figures.run_sums.Sums.side`; with `drafted`, only rounds that drafted that many tokens."""
    counts, labels, units = [], [], []
    for chunk in chunks(truth):
        counts.append(_counts(truth, chunk, drafted))
        units.append(np.stack([chunk.session, chunk.prompt]))
        labels += [str(truth.prompts[kind].label) for kind in chunk.kind.tolist()]
    histogram, lengths, exhausted, tokens = np.concatenate(counts, axis=1)
    session, prompt = np.concatenate(units, axis=1)
    there = histogram.sum(axis=1) > 0
    rounds = Rounds(
        request=np.arange(len(there)),
        rounds=histogram.sum(axis=1),
        verified=lengths @ np.arange(truth.k + 1),
        histogram=histogram,
        lengths=lengths,
        exhausted=exhausted,
        mix=mix_over(lengths.sum(axis=0), tokens.sum(axis=0)),
        unit=session if truth.sessions else prompt,
        crossed=prompt if truth.sessions and truth.repeats > 1 else None,
    )
    return Side(rounds=rounds.where(there), labels=tuple(np.array(labels)[there].tolist()))


def unpaired(first: Side, second: Side) -> Comparison:
    """Return the comparison of two runs whose requests are not paired."""
    none = np.empty(0, dtype=np.int64)
    pairing = Pairing(how=UNPAIRED, first=none, second=none, alone=0)
    return comparison(first, second, ("a", "b"), pairing)


def _counts(truth: Truth, chunk: Chunk, only: int | None) -> Ints:
    """Return [4, requests, K + 1]: rounds by tokens accepted, rounds by tokens drafted, the fully
    accepted ones of the latter, and the tokens that they yielded."""
    rows = (chunk.accepted >= 0) & (chunk.verified > 0)
    rows &= True if only is None else chunk.verified == only
    request, drafted, accepted = (
        column[rows] for column in (chunk.request, chunk.verified, chunk.accepted)
    )
    out = np.zeros((4, len(chunk.kind), truth.k + 1), dtype=np.int64)
    np.add.at(out[0], (request, accepted), 1)
    np.add.at(out[1], (request, drafted), 1)
    np.add.at(out[2], (request, drafted), accepted == drafted)
    np.add.at(out[3], (request, drafted), accepted + 1)
    return out


def marginal_at_k(truth: Truth, k: int) -> np.ndarray:
    """Return the true marginal rates, [k], of the rounds that draft `k` tokens, over their batch
    sizes."""
    batches: list[int] = []
    for chunk in chunks(truth):
        mine = (chunk.accepted >= 0) & (chunk.verified == k)
        batches += chunk.batch[chunk.step[mine]].tolist()
    size, rounds = np.unique(batches, return_counts=True)
    return np.average([truth.marginal_at(int(b))[:k] for b in size], axis=0, weights=rounds)


def series(truth: Truth) -> Series:
    """Return the requests of `truth`, one of which starts each second."""
    drawn = side(truth)
    rounds = drawn.rounds.rounds.astype(np.float64)
    return Series(
        start_s=np.arange(len(rounds), dtype=np.float64),
        end_s=float(len(rounds)),
        tokens=drawn.rounds.comparable_tokens()[:, 0],
        rounds=rounds,
        labels=np.array(drawn.labels),
    )


def rounds_by_key(
    truth: Truth, keys: Ints, accepted: Ints, per_request: int
) -> tuple[Rounds, Ints]:
    """Return the sums of rounds of one K by key, and the key of each row; a key over `per_request`
    is the request."""
    key, row = np.unique(keys, return_inverse=True)
    histogram = np.zeros((len(key), truth.k + 1), dtype=np.int64)
    np.add.at(histogram, (row, accepted), 1)
    number = histogram.sum(axis=1)
    lengths, whole = np.zeros_like(histogram), np.zeros_like(histogram)
    lengths[:, -1], whole[:, -1] = number, histogram[:, -1]
    rounds = Rounds(
        request=key // per_request,
        rounds=number,
        verified=number * truth.k,
        histogram=histogram,
        lengths=lengths,
        exhausted=whole,
        mix=np.zeros(truth.k + 1),
    )
    return rounds, key
