"""Count batches of trace records into figures; a live engine and a recorded run share this code.

Acceptance is known in the engine core and drift in the workers. Each process counts for itself and
rewrites one JSON file of its counts in the run directory. The engine core reads its workers' files
and exports all figures, so that an engine is one Prometheus target and one OTLP client. The files
do not grow, they outlive a process that is killed, and they are still written when the trace has
reached its size limit on disk.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.boundary.bounds import MAX_K, MAX_LAYERS
from driftscope.boundary.files import PRIVATE_FILE, read_json, write_file
from driftscope.boundary.text import dumps
from driftscope.metrics.attention import layer_means
from driftscope.metrics.fallback import UNKNOWN
from driftscope.telemetry import instruments as i
from driftscope.telemetry.instruments import (
    OTHER_LABEL,
    REQUEST_LENGTH,
    Snapshot,
    Tally,
    from_rows,
    to_rows,
)
from driftscope.trace.ranks import place_of
from driftscope.trace.schema import lengths_of, numbers_of, validity_of
from driftscope.trace.status import DROP_CAUSES, Status
from driftscope.vocabulary import MASS_CLASSES

Matrix = NDArray[np.float64]
PLACES = ("in", "prenorm", "postnorm", "fed")
HARD_GROWTH = 2.0
"""Growth of the fed state above which a chain has drifted hard: between the paper's healthy drafter
(1.0) and its drifting one (3.6)."""
NOTABLE_CHAINS = 64
"""Most chains that drifted hard and are kept for spans until they are next collected."""
CHAT, COMPLETION, GENERATE = "chat", "text_completion", "generate"
"""Operations of OpenTelemetry's conventions for GenAI, and one of our own for a request of which
the engine core does not know the endpoint."""
_OPERATIONS = {"chatcmpl-": CHAT, "cmpl-": COMPLETION}
"""Prefixes that vLLM gives the ids of its endpoints' requests. SGLang's ids do not tell."""
ERRORS = ("abort", "error")
"""Finish reasons that are an `error.type`: the client went away or the engine stopped, and an error
inside the engine."""
_PREFIX = "telemetry-"
REMEMBERED_REQUESTS = 65_536
"""Most running requests that are tracked. The oldest is discarded, so that a request whose end is
never recorded does not leak memory."""
EVENTS = 8
"""Most rejected rounds that a request's span lists as events; its count covers all of them."""


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


@dataclass(slots=True, kw_only=True)
class OpenRounds:
    """Rounds of one request so far."""

    rounds: int = 0
    verified: int = 0
    accepted: int = 0
    rejected: int = 0
    undrafted: int = 0
    first_rejected: list[tuple[float, int]] = field(default_factory=list)
    """Time, in Unix seconds, and position of the first EVENTS rejected rounds."""

    @property
    def mean_length(self) -> float | None:
        """Mean acceptance length, as `driftscope.metrics.acceptance.mean_length`; None without a
        round."""
        return 1.0 + self.accepted / self.rounds if self.rounds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished request: its RequestRow by column, and its rounds."""

    row: dict[str, Any]
    rounds: OpenRounds


class RequestLog:
    """Follows requests through batches of `verify` and `request`."""

    def __init__(self, tally: Tally, labels: tuple[str, ...] = ()) -> None:
        """`labels`: the labels that become an attribute value; all others count as OTHER_LABEL."""
        self._tally, self._labels = tally, labels
        self._open: OrderedDict[str, OpenRounds] = OrderedDict()

    def verified(self, batch: pa.RecordBatch) -> None:
        """Count a batch of `verify`."""
        names = ("request", "verified", "accepted", "time_s", "position")
        columns = (batch.column(name).to_pylist() for name in names)
        for request, verified, accepted, time_s, position in zip(*columns, strict=True):
            counted = self._rounds_of(request)
            if not verified:
                counted.undrafted += 1
                continue
            counted.rounds += 1
            counted.verified += verified
            counted.accepted += accepted
            if not accepted:
                counted.rejected += 1
                if len(counted.first_rejected) < EVENTS:
                    counted.first_rejected.append((time_s, position))

    def finished(self, batch: pa.RecordBatch) -> Iterator[Finished]:
        """Yield the requests of a batch of `request`, each with its rounds."""
        for row in batch.to_pylist():
            rounds = self._open.pop(row["request"], None) or OpenRounds()
            if (length := rounds.mean_length) is not None:
                self._tally.observe(REQUEST_LENGTH, [length], **self.label_of(row))
            yield Finished(row=row, rounds=rounds)

    def label_of(self, row: dict[str, Any]) -> dict[str, str]:
        """Return the label attribute of a request; {} without an allow-list."""
        if not self._labels:
            return {}
        return {"label": row["label"] if row["label"] in self._labels else OTHER_LABEL}

    def _rounds_of(self, request: str) -> OpenRounds:
        counted = self._open.get(request)
        if counted is None:
            counted = self._open[request] = OpenRounds()
            while len(self._open) > REMEMBERED_REQUESTS:
                self._open.popitem(last=False)
        return counted


def numbers(batch: pa.RecordBatch, name: str) -> Matrix:
    """Return a number column as [n] float64, NaN for null."""
    column = batch.column(name)
    return np.where(validity_of(column), numbers_of(column), np.nan).astype(np.float64)


def strings(batch: pa.RecordBatch, name: str) -> list[str | None]:
    """Return a string column as a list of length n, None for null."""
    values: list[str | None] = batch.column(name).to_pylist()
    return values


def matrix(batch: pa.RecordBatch, name: str, width: int) -> Matrix | None:
    """Return a list column as [n, width]; None if no row has that width. A row that is null or of
    another width becomes NaN."""
    column = batch.column(name)
    lengths = lengths_of(column)
    fits = validity_of(column) & (lengths == width)
    if not width or not fits.any():
        return None
    values = np.asarray(numbers_of(column.flatten()), dtype=np.float64)
    out = np.full((len(column), width), np.nan)
    out[fits] = values[np.repeat(fits, lengths)].reshape(-1, width)
    return out


def rows_where(batch: pa.RecordBatch, wanted: NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the rows of `batch` for which `wanted`, [n], is true."""
    if wanted.all():
        return batch
    return batch.take(_indices(np.flatnonzero(wanted)))


def _indices(at: NDArray[Any]) -> pa.Array:
    index = np.ascontiguousarray(at, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(index), [None, pa.py_buffer(index)])


def _verify(counter: BatchCounter, batch: pa.RecordBatch) -> None:
    tally, verified = counter.tally, _bounded(batch, "verified", MAX_K)
    is_round = verified > 0
    if drafted := float(numbers(batch, "drafted").sum()):
        tally.add(i.DRAFTED, drafted)
    accepted = numbers(batch, "accepted")[is_round]
    if len(accepted):
        tally.add(i.ROUNDS, len(accepted))
        tally.add(i.VERIFIED, float(verified.sum()))
        tally.add(i.ACCEPTED, float(accepted.sum()))
        tally.add(i.REJECTED_ROUNDS, int((accepted == 0).sum()))
        tally.observe(i.LENGTH, 1.0 + accepted)
        for depth in range(1, int(verified.max()) + 1):
            tally.add(i.REACHED, int((accepted >= depth).sum()), depth=depth)
            tally.add(i.VERIFIED_AT, int((verified >= depth).sum()), depth=depth)
            could = (verified[is_round] >= depth) & (accepted >= depth - 1)
            tally.add(i.AT_RISK, int(could.sum()), depth=depth)
    if not is_round.all():
        reasons = strings(rows_where(batch, ~is_round), "reason")
        for reason in sorted({reason or UNKNOWN for reason in reasons}):
            count = sum((given or UNKNOWN) == reason for given in reasons)
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
    drew = np.asarray(numbers(batch, "chains") > 0)
    draft_s, probe_s = numbers(batch, "draft_s")[drew], numbers(batch, "probe_s")[drew]
    tally.observe(i.DRAFT_TIME, draft_s)
    tally.observe(i.VERIFY_TIME, np.maximum(step_s[drew] - draft_s - probe_s, 0.0))


def _request(counter: BatchCounter, batch: pa.RecordBatch) -> None:
    counter.tally.add(i.REQUESTS, batch.num_rows)
    kinds = [
        (operation_of(request or ""), error_of(reason or ""))
        for request, reason in zip(
            strings(batch, "request"), strings(batch, "finish_reason"), strict=True
        )
    ]
    whole_s = numbers(batch, "time_s") - numbers(batch, "arrival_s")
    for operation, error in sorted(set(kinds)):
        of_kind = np.array([kind == (operation, error) for kind in kinds])
        by = {"operation": operation}
        failed = {"error": error} if error else {}
        counter.tally.observe(i.REQUEST_TIME, whole_s[of_kind], **by, **failed)
        if not error:
            for instrument, column in ((i.TTFT, "ttft_s"), (i.TPOT, "tpot_s")):
                counter.tally.observe(instrument, numbers(batch, column)[of_kind], **by)


def operation_of(request: str) -> str:
    """Return the operation that a request id tells of; GENERATE if it tells none, as without
    identifiers."""
    found = (name for prefix, name in _OPERATIONS.items() if request.startswith(prefix))
    return next(found, GENERATE)


def error_of(finish_reason: str) -> str:
    """Return the `error.type` of a request; "" if it ended without one."""
    return finish_reason if finish_reason in ERRORS else ""


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
    hard = np.flatnonzero(np.isfinite(growth) & (growth > HARD_GROWTH))[-NOTABLE_CHAINS:]
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


def record_status(tally: Tally, status: Status) -> None:
    """Record the counts of `status` in `tally`; fields that are absent or None are not set.

    Every known cause is recorded, also at 0: Prometheus sees no rise in a series that begins above
    0. A hook is recorded from its first error on, and the alert on it takes that into account.
    """
    source = role_of(status.source)
    tally.set(i.UP, 1, source=source)
    for cause, count in {**dict.fromkeys(DROP_CAUSES, 0), **(status.dropped or {})}.items():
        tally.set(i.DROPPED, count, source=source, cause=cause)
    for hook, count in (status.errors or {}).items():
        tally.set(i.ERRORS, count, source=source, hook=hook)
    tally.set(i.PROBE_TIME, (status.probe_s or 0.0) + (status.writer_s or 0.0), source=source)
    if status.rate is not None:
        tally.set(i.RATE, status.rate, source=source)
    if status.overhead is not None:
        tally.set(i.PROBE_OVERHEAD, status.overhead, source=source)


def role_of(source: str) -> str:
    """Return the name of a source without its pid."""
    return source.rpartition("-")[0] or source


def publish(run: Path, source: str, points: Snapshot, chains: Iterable[NotableChain]) -> None:
    """Replace the file of the figures of one process, and of the latest chains that drifted hard,
    atomically by rename; raises OSError."""
    content = {"points": to_rows(points), "chains": [asdict(chain) for chain in chains]}
    path = run / f"{_PREFIX}{source}.json"
    write_file(path, dumps(content).encode(), mode=PRIVATE_FILE, durable=False)


def workers_of(run: Path, replica: int) -> Iterator[tuple[Snapshot, tuple[NotableChain, ...]]]:
    """Yield what a replica's workers published. Unreadable files are skipped."""
    for path in sorted(run.glob(f"{_PREFIX}worker*.json")):
        if (place_of(path.stem.removeprefix(_PREFIX)).replica or 0) != replica:
            continue
        try:
            raw = read_json(path, follow=False)
            chains = tuple(NotableChain(**chain) for chain in raw["chains"])
            yield from_rows(raw["points"]), chains
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


_TAKES: Mapping[str, Callable[[BatchCounter, pa.RecordBatch], None]] = {
    "verify": _verify,
    "step": _step,
    "request": _request,
    "draft": _draft,
}
