"""Count batches of trace records into figures; a live engine and a recorded run share this code."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from driftscope.boundary.bounds import MAX_K, MAX_LAYERS
from driftscope.metrics.fallback import UNKNOWN
from driftscope.metrics.live import expected_self, over_layers, visible_sink
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.batch_columns import Matrix, matrix, numbers, rows_where, strings
from driftscope.telemetry.collect.tally import Tally
from driftscope.vocabulary import MASS_CLASSES

PLACES = ("in", "prenorm", "postnorm", "fed")
HARD_EXCESS = 0.10
"""Attention beyond the no-drift expectation above which a chain has drifted hard. This is the
threshold of the report's finding, half-way between the paper's two drafters (arXiv 2605.09992)."""
HARD_GROWTH = 2.0
"""Growth of the fed state above which a chain has drifted hard: between the paper's healthy drafter
(1.0) and its drifting one (3.6)."""
NOTABLE_CHAINS = 64
"""Most chains that drifted hard and are kept for spans until they are next collected."""
OPERATION = "text_completion"
PROVIDER = "vllm"


class BadRowError(ValueError):
    """Raised for a row that no engine writes; the message names the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotableChain:
    """A recorded chain that drifted hard, for its request's span."""

    time_s: float
    request: str
    position: int
    k: int
    growth: float | None
    excess: float | None


@dataclass(slots=True, kw_only=True)
class Feed:
    """Add the records of one process to a tally."""

    tally: Tally
    sink_slots: Callable[[], Sequence[int]]
    """Return the current sink set, which may still be under search."""
    first_rank: bool = True
    """False on other tensor-parallel ranks, which count only attention masses. Everything else
    would be counted twice."""
    notable: deque[NotableChain] = field(default_factory=lambda: deque(maxlen=NOTABLE_CHAINS))

    def take(self, record: str, batch: pa.RecordBatch) -> None:
        """Count the rows of one batch; raise BadRowError for a value that no engine writes."""
        if (count := _TAKES.get(record)) is not None and batch.num_rows:
            count(self, batch)


def _verify(feed: Feed, batch: pa.RecordBatch) -> None:
    tally, drafted = feed.tally, _bounded(batch, "drafted", MAX_K)
    is_round = drafted > 0
    accepted = numbers(batch, "accepted")[is_round]
    if len(accepted):
        tally.add(i.ROUNDS, len(accepted))
        tally.add(i.PROPOSED, float(drafted.sum()))
        tally.add(i.ACCEPTED, float(accepted.sum()))
        tally.add(i.REJECTED_ROUNDS, int((accepted == 0).sum()))
        tally.observe(i.LENGTH, 1.0 + accepted)
        for depth in range(1, int(drafted.max()) + 1):
            tally.add(i.REACHED, int((accepted >= depth).sum()), depth=depth)
            could = (drafted[is_round] >= depth) & (accepted >= depth - 1)
            tally.add(i.AT_RISK, int(could.sum()), depth=depth)
    if not is_round.all():
        reasons = strings(rows_where(batch, ~is_round), "reason")
        for reason in sorted({reason or UNKNOWN for reason in reasons}):
            count = sum((each or UNKNOWN) == reason for each in reasons)
            tally.add(i.UNDRAFTED_STEPS, count, reason=reason)


def _bounded(batch: pa.RecordBatch, name: str, most: int) -> Matrix:
    """Return an [n] column that bounds a loop; raise BadRowError for values outside 0 to `most`."""
    found = numbers(batch, name)
    if not ((found >= 0) & (found <= most)).all():  # NaN fails both comparisons
        raise BadRowError(f"a row whose {name} is not from 0 to {most}")
    return found


def _step(feed: Feed, batch: pa.RecordBatch) -> None:
    if not feed.first_rank:
        return
    tally, step_s = feed.tally, numbers(batch, "step_s")
    tally.add(i.STEP_TIME, float(step_s.sum()))
    drew = numbers_drawn(batch)
    draft_s, probe_s = numbers(batch, "draft_s")[drew], numbers(batch, "probe_s")[drew]
    tally.observe(i.DRAFT_TIME, draft_s)
    tally.observe(i.VERIFY_TIME, np.maximum(step_s[drew] - draft_s - probe_s, 0.0))


def numbers_drawn(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask, [n], of the steps in which the drafter ran."""
    return np.asarray(numbers(batch, "chains") > 0)


def _request(feed: Feed, batch: pa.RecordBatch) -> None:
    feed.tally.add(i.REQUESTS, batch.num_rows)
    for instrument, column in ((i.TTFT, "ttft_s"), (i.TPOT, "tpot_s")):
        seconds = numbers(batch, column)
        feed.tally.observe(instrument, seconds, operation=OPERATION, provider=PROVIDER)


def _draft(feed: Feed, batch: pa.RecordBatch) -> None:
    lengths = _bounded(batch, "k", MAX_K)
    for k in np.unique(lengths).astype(int).tolist():
        _chains(feed, rows_where(batch, lengths == k), k)


def _chains(feed: Feed, batch: pa.RecordBatch, k: int) -> None:
    """Count the chains of one length k."""
    masses = _masses(batch, k)
    for name, values in masses.items():
        feed.tally.observe_depths(i.MASS, values, **{"class": name})
    expected = _expected(batch, masses, feed.sink_slots(), k)
    if not feed.first_rank:
        return
    feed.tally.add(i.CHAINS, batch.num_rows)
    beyond = None
    if expected is not None:
        feed.tally.observe_depths(i.EXPECTED, expected)
        beyond = np.asarray(masses["self"][:, -1] - expected[:, -1])
    for place in PLACES:
        if (rms := matrix(batch, f"{place}_rms", k)) is not None:
            feed.tally.observe_depths(i.RMS, rms, place=place)
    for instrument, name in ((i.TOP1, "top1"), (i.ENTROPY, "entropy")):
        if (values_ := matrix(batch, name, k)) is not None:
            feed.tally.observe_depths(instrument, values_)
    growth = _growth(matrix(batch, "fed_rms", k))
    if growth is not None:
        feed.tally.observe(i.GROWTH, growth)
    _note(feed, batch, k, growth, beyond)


def _masses(batch: pa.RecordBatch, k: int) -> Mapping[str, Matrix]:
    """Return the attention mass by class, each [n, K], averaged over layers."""
    layers = int(_bounded(batch, "layers", MAX_LAYERS).max())
    out: dict[str, Matrix] = {}
    for name in MASS_CLASSES:
        flat = matrix(batch, f"{name}_mass", k * layers)
        if flat is not None:
            out[name] = np.asarray(over_layers(flat.reshape(len(flat), k, layers)), np.float64)
    return out


def _expected(
    batch: pa.RecordBatch, masses: Mapping[str, Matrix], sink_slots: Sequence[int], k: int
) -> Matrix | None:
    """Return the expected attention on the chain without drift, [n, K]; None if it is unknown."""
    if "self" not in masses:
        return None
    position = numbers(batch, "position").astype(np.int64)
    null = masses["null"][:, 0] if "null" in masses else None
    if "sink" in masses:
        sink = masses["sink"][:, 0]
    elif not sink_slots:  # the search found no sink
        sink = np.where(np.isfinite(masses["self"][:, 0]), 0.0, np.nan)
    else:
        return None
    visible = visible_sink(position, sink_slots)
    return np.asarray(expected_self(position, sink, null, visible, k), np.float64)


def _growth(fed: Matrix | None) -> Matrix | None:
    """Return the growth of each chain's fed state, [n], as `driftscope.metrics.hidden.growth`."""
    if fed is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(fed[:, 0] != 0, fed[:, -1] / fed[:, 0], np.nan)


def _note(
    feed: Feed, batch: pa.RecordBatch, k: int, growth: Matrix | None, beyond: Matrix | None
) -> None:
    none = np.full(batch.num_rows, np.nan)
    growth, beyond = none if growth is None else growth, none if beyond is None else beyond
    hard = np.flatnonzero((growth > HARD_GROWTH) | (beyond > HARD_EXCESS))
    if feed.notable.maxlen is not None:
        hard = hard[-feed.notable.maxlen :]
    if not len(hard):
        return
    times, positions = numbers(batch, "time_s"), numbers(batch, "position")
    requests = strings(batch, "request")
    feed.notable.extend(
        NotableChain(
            time_s=float(times[at]),
            request=requests[at] or "",
            position=int(positions[at]),
            k=k,
            growth=_finite(growth[at]),
            excess=_finite(beyond[at]),
        )
        for at in hard.tolist()
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


_TAKES: Mapping[str, Callable[[Feed, pa.RecordBatch], None]] = {
    "verify": _verify,
    "step": _step,
    "request": _request,
    "draft": _draft,
}
