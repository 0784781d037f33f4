"""Count batches of trace records into figures; a live engine and a recorded run share this code."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from driftscope.boundary.bounds import MAX_K, MAX_LAYERS
from driftscope.metrics.attention import layer_means
from driftscope.metrics.fallback import UNKNOWN
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.batch_columns import Matrix, matrix, numbers, rows_where, strings
from driftscope.telemetry.collect.tally import Tally
from driftscope.vocabulary import MASS_CLASSES

PLACES = ("in", "prenorm", "postnorm", "fed")
HARD_GROWTH = 2.0
"""Growth of the fed state above which a chain has drifted hard: between the paper's healthy drafter
(1.0) and its drifting one (3.6)."""
NOTABLE_CHAINS = 64
"""Most chains that drifted hard and are kept for spans until they are next collected."""
CHAT, COMPLETION = "chat", "text_completion"
"""Operations of OpenTelemetry's conventions for GenAI."""
_CHAT_IDS = "chatcmpl-"
"""Prefix that vLLM gives the ids of its chat endpoint's requests."""
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
    growth: float


@dataclass(slots=True, kw_only=True)
class BatchCounter:
    """Add the records of one process to a tally."""

    tally: Tally
    first_rank: bool = True
    """False on other tensor-parallel ranks, which count only attention masses. Everything else
    would be counted twice."""
    notable: deque[NotableChain] = field(default_factory=lambda: deque(maxlen=NOTABLE_CHAINS))

    def take(self, record: str, batch: pa.RecordBatch) -> None:
        """Count the rows of one batch; raise BadRowError for a value that no engine writes."""
        if (count := _TAKES.get(record)) is not None and batch.num_rows:
            count(self, batch)


def _verify(counter: BatchCounter, batch: pa.RecordBatch) -> None:
    tally, drafted = counter.tally, _bounded(batch, "drafted", MAX_K)
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
    values = numbers(batch, name)
    if not ((values >= 0) & (values <= most)).all():  # NaN fails both comparisons
        raise BadRowError(f"a row whose {name} is not from 0 to {most}")
    return values


def _step(counter: BatchCounter, batch: pa.RecordBatch) -> None:
    if not counter.first_rank:
        return
    tally, step_s = counter.tally, numbers(batch, "step_s")
    tally.add(i.STEP_TIME, float(step_s.sum()))
    drew = numbers_drawn(batch)
    draft_s, probe_s = numbers(batch, "draft_s")[drew], numbers(batch, "probe_s")[drew]
    tally.observe(i.DRAFT_TIME, draft_s)
    tally.observe(i.VERIFY_TIME, np.maximum(step_s[drew] - draft_s - probe_s, 0.0))


def numbers_drawn(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask, [n], of the steps in which the drafter ran."""
    return np.asarray(numbers(batch, "chains") > 0)


def _request(counter: BatchCounter, batch: pa.RecordBatch) -> None:
    counter.tally.add(i.REQUESTS, batch.num_rows)
    operations = np.array([operation_of(each or "") for each in strings(batch, "request")])
    for instrument, column in ((i.TTFT, "ttft_s"), (i.TPOT, "tpot_s")):
        seconds = numbers(batch, column)
        for operation in np.unique(operations).tolist():
            chosen = seconds[operations == operation]
            counter.tally.observe(instrument, chosen, operation=operation, provider=PROVIDER)


def operation_of(request: str) -> str:
    """Return the operation that a request id tells of; COMPLETION if it tells none, as without
    identifiers."""
    return CHAT if request.startswith(_CHAT_IDS) else COMPLETION


def _draft(counter: BatchCounter, batch: pa.RecordBatch) -> None:
    lengths = _bounded(batch, "k", MAX_K)
    for k in np.unique(lengths).astype(int).tolist():
        _chains(counter, rows_where(batch, lengths == k), k)


def _chains(counter: BatchCounter, batch: pa.RecordBatch, k: int) -> None:
    """Count the chains of one length k."""
    for name, values in _masses(batch, k).items():
        counter.tally.observe_depths(i.MASS, values, **{"class": name})
    if not counter.first_rank:
        return
    counter.tally.add(i.CHAINS, batch.num_rows)
    for place in PLACES:
        if (rms := matrix(batch, f"{place}_rms", k)) is not None:
            counter.tally.observe_depths(i.RMS, rms, place=place)
    for instrument, name in ((i.TOP1, "top1"), (i.ENTROPY, "entropy")):
        if (values_ := matrix(batch, name, k)) is not None:
            counter.tally.observe_depths(instrument, values_)
    growth = _growth(matrix(batch, "fed_rms", k))
    if growth is not None:
        counter.tally.observe(i.GROWTH, growth)
        _note(counter, batch, k, growth)


def _masses(batch: pa.RecordBatch, k: int) -> Mapping[str, Matrix]:
    """Return the attention mass by class, each [n, K], averaged over layers."""
    layers = int(_bounded(batch, "layers", MAX_LAYERS).max())
    out: dict[str, Matrix] = {}
    for name in MASS_CLASSES:
        flat = matrix(batch, f"{name}_mass", k * layers)
        if flat is not None:
            out[name] = np.asarray(layer_means(flat.reshape(len(flat), k, layers)), np.float64)
    return out


def _growth(fed: Matrix | None) -> Matrix | None:
    """Return the growth of each chain's fed state, [n], as `driftscope.metrics.hidden.growth`."""
    if fed is None:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(fed[:, 0] != 0, fed[:, -1] / fed[:, 0], np.nan)


def _note(counter: BatchCounter, batch: pa.RecordBatch, k: int, growth: Matrix) -> None:
    hard = np.flatnonzero(np.isfinite(growth) & (growth > HARD_GROWTH))
    if counter.notable.maxlen is not None:
        hard = hard[-counter.notable.maxlen :]
    if not len(hard):
        return
    times, positions = numbers(batch, "time_s"), numbers(batch, "position")
    requests = strings(batch, "request")
    counter.notable.extend(
        NotableChain(
            time_s=float(times[at]),
            request=requests[at] or "",
            position=int(positions[at]),
            k=k,
            growth=float(growth[at]),
        )
        for at in hard.tolist()
    )


_TAKES: Mapping[str, Callable[[BatchCounter, pa.RecordBatch], None]] = {
    "verify": _verify,
    "step": _step,
    "request": _request,
    "draft": _draft,
}
