"""Every metric that driftscope exports: name, unit (UCUM), description, buckets, attributes.

Descriptions come from `driftscope.metrics` where it defines the quantity. Quantities by depth are
histograms without bounds, that is a count and a sum per depth: drift is a change of means over
depth, and each bucket would cost one time series for each of about 80 depths and kinds. Quantities
whose quantiles matter (lengths, growth, durations) have explicit buckets and no depth.

A tally holds cumulative figures since the start of a process: a failed export loses nothing.
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from driftscope.metrics import confidence, hidden, latency
from driftscope.metrics.acceptance import COUNTED, MEAN_LENGTH, TOKEN_RATE
from driftscope.metrics.fallback import REJECTED, UNDRAFTED
from driftscope.metrics.latency import BUDGETED
from driftscope.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
DEPTH = "driftscope.depth"
CLASS = "driftscope.class"
PLACE = "driftscope.place"
REASON = "driftscope.reason"
CAUSE = "driftscope.cause"
HOOK = "driftscope.hook"
SOURCE = "driftscope.source"
"""Role and rank of a recording process, without its pid, such as "worker0"."""
LABEL = "driftscope.label"
"""A workload label of the allow-list DRIFTSCOPE_METRIC_LABELS, or OTHER_LABEL."""
ADAPTER = "driftscope.adapter"
"""LoRA adapter of a request, on its span."""
SIGNAL = "driftscope.signal"
OUTCOME = "driftscope.outcome"
MODEL = "gen_ai.request.model"
DRAFTER = "driftscope.drafter"
PROVIDER = "gen_ai.provider.name"
"""The engine, such as "vllm" or "sglang"."""
OPERATION = "gen_ai.operation.name"
ERROR = "error.type"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
"""Schema of the conventions that the `gen_ai.*` names follow: the last release of OpenTelemetry's
semantic conventions with GenAI in it. The repository that they moved to, semantic-conventions-genai
0.1.0, has the same server metrics and names no schema of its own yet."""
OTHER_LABEL = "other"
TOKEN_BOUNDS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0)
"""Typical acceptance lengths: 1 means none accepted, published drafters reach 3 to 6."""
RATIO_BOUNDS = (0.5, 0.8, 0.95, 1.05, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Growth of a hidden state: about 1 is stable; the paper's drifting drafter grows 3.6-fold."""
STEP_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
TTFT_BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
TPOT_BOUNDS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
REQUEST_BOUNDS_S = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
"""Bucket bounds of TTFT, TPOT and the request's duration, in seconds, from OpenTelemetry's
conventions for GenAI metrics."""
_SUCCESSFUL = "Requests without an error.type only."
Attributes = tuple[tuple[str, str], ...]
"""Sorted pairs, usable as a dictionary key."""
Key = tuple[str, Attributes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of one engine."""

    model: str
    drafter: str
    """Label of the drafter; "" without one."""
    engine: str
    engine_version: str
    replica: int = 0
    start: str = ""
    """Identity of the engine's start."""
    run_id: str = ""
    """Identity of its run; "" if nothing is recorded."""

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes that every series of the engine has."""
        return {MODEL: self.model, DRAFTER: self.drafter, PROVIDER: self.engine}

    def resource(self) -> Resource:
        """Return the OpenTelemetry resource, over which OTEL_SERVICE_NAME and
        OTEL_RESOURCE_ATTRIBUTES take precedence. Its instance id is constant while the engine runs
        and unique among engines."""
        from opentelemetry.sdk.resources import Resource

        attributes: dict[str, str | int] = {
            "service.name": "driftscope",
            "service.instance.id": f"{socket.gethostname()}/{self.run_id or self.start}"
            f"/{self.replica}",
            "service.version": __version__,
            **({"driftscope.run.id": self.run_id} if self.run_id else {}),
            "driftscope.replica": self.replica,
            "driftscope.engine.version": self.engine_version,
        }
        given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        set_ = {pair.partition("=")[0].strip() for pair in given.split(",")}
        if os.environ.get("OTEL_SERVICE_NAME"):
            set_.add("service.name")
        return Resource.create({name: v for name, v in attributes.items() if name not in set_})


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One metric."""

    name: str
    kind: str
    unit: str
    """Unit in UCUM."""
    description: str
    attributes: tuple[str, ...] = ()
    """Attributes in addition to MODEL, DRAFTER and PROVIDER, which every series has."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets except the last; () for a count and a sum only."""


INSTRUMENTS: dict[str, Instrument] = {}
"""Every instrument by its name."""


def _entered(
    kind: str,
    name: str,
    unit: str,
    description: str,
    *attributes: str,
    bounds: tuple[float, ...] = (),
) -> Instrument:
    """Return an instrument, which is in INSTRUMENTS from then on."""
    INSTRUMENTS[name] = Instrument(
        name=name,
        kind=kind,
        unit=unit,
        description=description,
        attributes=attributes,
        bounds=bounds,
    )
    return INSTRUMENTS[name]


_counter, _gauge, _histogram = (partial(_entered, kind) for kind in (COUNTER, GAUGE, HISTOGRAM))

ROUNDS = _counter(
    "driftscope.rounds.completed", "{round}", "Rounds: drafts that the target verified."
)
DRAFTED = _counter(
    "driftscope.tokens.drafted",
    "{token}",
    "Tokens that the drafter proposed, whether or not they were verified.",
)
VERIFIED = _counter(
    "driftscope.tokens.verified",
    "{token}",
    "Draft tokens that the target verified: fewer than were drafted if a draft was cut.",
)
ACCEPTED = _counter(
    "driftscope.tokens.accepted",
    "{token}",
    "Draft tokens that the target accepted. One more token per round is the target's own. "
    f"Divided by driftscope.tokens.verified: {TOKEN_RATE.meaning}",
)
REACHED = _counter(
    "driftscope.rounds.reached",
    "{round}",
    "Rounds whose draft the target accepted at least up to this depth."
    f" Divided by driftscope.rounds.completed: {COUNTED.meaning}",
    DEPTH,
)
VERIFIED_AT = _counter(
    "driftscope.rounds.verified",
    "{round}",
    "Rounds that verified this depth. Divide driftscope.rounds.reached by it for the share of them "
    "that is accepted up to it.",
    DEPTH,
)
AT_RISK = _counter(
    "driftscope.rounds.at_risk",
    "{round}",
    "Rounds that verified this depth and had every earlier token accepted. Divide "
    "driftscope.rounds.reached by it for the conditional acceptance at this depth.",
    DEPTH,
)
REJECTED_ROUNDS = _counter(
    "driftscope.rounds.rejected",
    "{round}",
    "Rounds of which the target accepted no draft token."
    " Divided by the sum of driftscope.rounds.completed and driftscope.steps.undrafted: "
    f"{REJECTED.meaning}",
)
UNDRAFTED_STEPS = _counter(
    "driftscope.steps.undrafted",
    "{step}",
    "Decode steps of requests without a draft, by reason."
    " Divided by the sum of driftscope.rounds.completed and driftscope.steps.undrafted: "
    f"{UNDRAFTED.meaning}",
    REASON,
)
LENGTH = _histogram(
    "driftscope.acceptance.length",
    MEAN_LENGTH.unit,
    f"{MEAN_LENGTH.meaning} One observation per round.",
    bounds=TOKEN_BOUNDS,
)
REQUEST_LENGTH = _histogram(
    "driftscope.request.acceptance_length",
    MEAN_LENGTH.unit,
    "Acceptance length of each finished request, the mean of its rounds.",
    LABEL,
    bounds=TOKEN_BOUNDS,
)
MASS = _histogram(
    "driftscope.attention.mass",
    "1",
    "Share of the drafter's attention by class of slots and depth: mean over heads and layers, one "
    "observation per recorded chain. The class self is 0 at depth 1 by construction.",
    DEPTH,
    CLASS,
)
RMS = _histogram(
    "driftscope.hidden.rms",
    "1",
    "RMS of the drafter's hidden state by place and depth, one observation per "
    "recorded chain. Places: in, prenorm, postnorm, fed.",
    DEPTH,
    PLACE,
)
GROWTH = _histogram(
    "driftscope.hidden.growth",
    hidden.GROWTH.unit,
    f"{hidden.GROWTH.meaning} One observation per recorded chain.",
    bounds=RATIO_BOUNDS,
)
TOP1 = _histogram(
    "driftscope.confidence.top1", confidence.TOP1.unit, confidence.TOP1.meaning, DEPTH
)
ENTROPY = _histogram(
    "driftscope.confidence.entropy",
    f"{{{confidence.ENTROPY.unit}}}",  # UCUM has no nat
    confidence.ENTROPY.meaning,
    DEPTH,
)
DRAFT_TIME = _histogram(
    "driftscope.draft.duration",
    "s",
    "Wall time of the drafter in a step that drafted.",
    bounds=STEP_BOUNDS_S,
)
VERIFY_TIME = _histogram(
    "driftscope.verify.duration",
    "s",
    "Wall time of the rest of a step that drafted: verification by the target, and sampling.",
    bounds=STEP_BOUNDS_S,
)
TTFT = _histogram(
    "gen_ai.server.time_to_first_token",
    latency.TTFT.unit,
    f"{latency.TTFT.meaning} {_SUCCESSFUL}",
    OPERATION,
    bounds=TTFT_BOUNDS_S,
)
TPOT = _histogram(
    "gen_ai.server.time_per_output_token",
    latency.TPOT.unit,
    f"{latency.TPOT.meaning} {_SUCCESSFUL}",
    OPERATION,
    bounds=TPOT_BOUNDS_S,
)
REQUEST_TIME = _histogram(
    "gen_ai.server.request.duration",
    "s",
    "Time from a request's arrival to its end in the engine core.",
    OPERATION,
    ERROR,
    bounds=REQUEST_BOUNDS_S,
)
REQUESTS = _counter("driftscope.requests", "{request}", "Finished requests.")
CHAINS = _counter("driftscope.chains.recorded", "{chain}", "Chains that the probe recorded.")
DROPPED = _counter(
    "driftscope.rows.dropped",
    "{row}",
    "Rows that the probe lost, by cause. disk_limit: the trace is full, but metrics continue.",
    SOURCE,
    CAUSE,
)
ERRORS = _counter(
    "driftscope.probe.errors",
    "{error}",
    "Exceptions that were caught in the probe's hooks; a hook is exported from its first one on.",
    SOURCE,
    HOOK,
)
PROBE_TIME = _counter(
    "driftscope.probe.time",
    "s",
    "Seconds spent in the probe's hooks and its writer. Divided by driftscope.step.time it is the "
    "cost of the probe, all in.",
    SOURCE,
)
STEP_TIME = _counter("driftscope.step.time", "s", "Wall time of the worker's model steps.")
UP = _gauge(
    "driftscope.probe.up",
    "{process}",
    "1 for a process that records; 0 for an engine whose probe records nothing, with the kind of "
    "the reason, which the engine's log and `driftscope doctor` state in words.",
    SOURCE,
    REASON,
)
RATE = _gauge(
    "driftscope.probe.sampling_rate",
    "1",
    "Share of draft steps that are currently recorded.",
    SOURCE,
)
PROBE_OVERHEAD = _gauge("driftscope.probe.overhead", BUDGETED.unit, BUDGETED.meaning, SOURCE)
CONFIGURED_K = _gauge(
    "driftscope.draft.tokens_configured",
    "{token}",
    "K: number of tokens that the drafter is configured to draft per round.",
)
SIMULATED = _gauge(
    "driftscope.acceptance.simulated",
    "1",
    "1 if the engine draws accepted tokens at a given rate, for a load test: acceptance then says "
    "nothing about the drafter. 0 if it verifies drafts.",
)
EXPORTS = _counter(
    "driftscope.export.attempts",
    "{export}",
    "Batches that were sent to a collector, by signal and outcome; failed ones are sent again.",
    SIGNAL,
    OUTCOME,
)
BEHIND = _gauge(
    "driftscope.export.behind",
    "s",
    "Time since a collector last accepted a batch, or since the start.",
    SIGNAL,
)
SPANS_LOST = _counter(
    "driftscope.export.spans_dropped",
    "{span}",
    "Spans dropped because the queue was full before a collector accepted them.",
)
LISTENER_ERRORS = _counter(
    "driftscope.export.errors",
    "{error}",
    "Exceptions inside telemetry itself; they lose figures but do not affect serving.",
)

_LONG = {
    name.rpartition(".")[2]: name
    for instrument in INSTRUMENTS.values()
    for name in instrument.attributes
    if name.startswith("driftscope.")
} | {"operation": OPERATION, "error": ERROR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """One observation and the span that it came from."""

    value: float
    time_s: float
    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One series; `value` is the value of a counter or gauge, or the sum of a histogram."""

    name: str
    attributes: Attributes
    value: float
    buckets: tuple[int, ...] = ()
    """Observations per bucket, not cumulative; () for a counter or gauge."""
    exemplar: Exemplar | None = None

    @property
    def key(self) -> Key:
        """Key that identifies the series."""
        return self.name, self.attributes

    @property
    def instrument(self) -> Instrument:
        """Metric to which the series belongs."""
        return INSTRUMENTS[self.name]

    @property
    def count(self) -> int:
        """Number of observations of a histogram."""
        return sum(self.buckets)


Snapshot = Mapping[Key, Point]


class Tally:
    """Counts and sums by series; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Key, float] = {}
        self._buckets: dict[Key, NDArray[np.int64]] = {}
        self._depths: dict[Key, tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

    def add(self, instrument: Instrument, amount: float, **by: object) -> None:
        """Add to a counter. Attributes are given by their short names, see `full_attributes`. An
        amount that is not finite is ignored, as in `observe`."""
        if not math.isfinite(amount):
            return
        key = instrument.name, full_attributes(by)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, instrument: Instrument, value: float, **by: object) -> None:
        """Set a gauge, or a counter that is counted elsewhere. A value that is not finite is
        ignored."""
        if not math.isfinite(value):
            return
        with self._lock:
            self._values[instrument.name, full_attributes(by)] = value

    def observe(self, instrument: Instrument, values: Any, **by: object) -> None:
        """Add [n] observations to a histogram; values that are not finite are ignored."""
        numbers = np.asarray(values, dtype=np.float64)
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            return
        key = instrument.name, full_attributes(by)
        # A bucket includes its upper bound, in OpenTelemetry as in Prometheus.
        where = np.searchsorted(instrument.bounds, numbers, side="left")
        counts = np.bincount(where, minlength=len(instrument.bounds) + 1)
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + float(numbers.sum())
            self._buckets[key] = self._buckets.get(key, 0) + counts

    def observe_depths(self, instrument: Instrument, values: NDArray[Any], **by: object) -> None:
        """Add [n, K] observations to a histogram without bounds, one series per depth."""
        finite = np.isfinite(values)
        counts, sums = finite.sum(axis=0), np.where(finite, values, 0.0).sum(axis=0)
        key, k = (instrument.name, full_attributes(by)), values.shape[1]
        with self._lock:
            if key in self._depths:
                old_counts, old_sums = self._depths[key]
                counts, sums = _sum(old_counts, counts, k), _sum(old_sums, sums, k)
            self._depths[key] = counts.astype(np.int64), sums.astype(np.float64)

    def snapshot(self) -> dict[Key, Point]:
        """Return every series with its current value."""
        with self._lock:
            values, buckets = dict(self._values), dict(self._buckets)
            depths = dict(self._depths)
        points = [
            Point(
                name=key[0],
                attributes=key[1],
                value=value,
                buckets=tuple(buckets[key].tolist()) if key in buckets else (),
            )
            for key, value in values.items()
        ]
        for key, (counts, sums) in depths.items():
            points += _by_depth(key, counts, sums)
        return {point.key: point for point in points}


def attributes(values: Mapping[str, object]) -> Attributes:
    """Return `values` as the sorted attributes of a series."""
    return tuple(sorted((name, str(value)) for name, value in values.items()))


def _by_depth(key: Key, counts: NDArray[np.int64], sums: NDArray[np.float64]) -> Iterable[Point]:
    name, others = key
    for depth, (count, total) in enumerate(zip(counts.tolist(), sums.tolist(), strict=True), 1):
        if count:
            where = attributes({**dict(others), DEPTH: depth})
            yield Point(name=name, attributes=where, value=total, buckets=(count,))


def _sum(old: NDArray[Any], new: NDArray[Any], k: int) -> NDArray[Any]:
    """Add two arrays by depth, which may differ in length."""
    width = max(len(old), k)
    return np.asarray(np.pad(old, (0, width - len(old))) + np.pad(new, (0, width - k)))


def full_attributes(by: Mapping[str, object]) -> Attributes:
    """Translate short attribute names, such as depth=3, into full ones."""
    return attributes({_LONG[name]: value for name, value in by.items()})


def merged(snapshots: Iterable[Snapshot]) -> dict[Key, Point]:
    """Merge the processes of one engine. Counts and sums are added; a gauge is that of the last."""
    out: dict[Key, Point] = {}
    for snapshot in snapshots:
        for key, point in snapshot.items():
            adds = key in out and (point.buckets or point.instrument.kind == COUNTER)
            out[key] = _added(out[key], point) if adds else point
    return out


def _added(a: Point, b: Point, sign: int = 1) -> Point:
    buckets = tuple(x + sign * y for x, y in zip(a.buckets, b.buckets, strict=True))
    return replace(a, value=a.value + sign * b.value, buckets=buckets)


def difference(now: Snapshot, before: Snapshot) -> dict[Key, Point]:
    """Return the increase since `before`; gauges keep their current value."""
    out = {}
    for key, point in now.items():
        counts = point.buckets or point.instrument.kind == COUNTER
        out[key] = _added(point, before[key], -1) if counts and key in before else point
    return out


def to_rows(snapshot: Snapshot) -> list[list[Any]]:
    """Return the points as plain lists for JSON, without exemplars."""
    return [[p.name, dict(p.attributes), p.value, list(p.buckets)] for p in snapshot.values()]


def from_rows(rows: Sequence[Sequence[Any]]) -> dict[Key, Point]:
    """Return the points written by `to_rows`, without metrics that this version does not know.

    Raises TypeError or ValueError for malformed rows.
    """
    points = [
        Point(
            name=str(name),
            attributes=attributes(given),
            value=_number(value),
            buckets=tuple(int(count) for count in buckets),
        )
        for name, given, value, buckets in rows
        if name in INSTRUMENTS
    ]
    return {point.key: point for point in points}


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a finite number")
    return number
