"""Prometheus' text: driftscope's own figures, written and read, and engines' own metrics, read.

A page comes from another process. Lines of metrics that nobody asked for are skipped; a wanted
sample that cannot be right makes the whole page unusable, because the rest would be incomplete.
Counters of an engine become the counters of the same meaning, so that a window of time is their
difference; a gauge in place of counters has no window.

Sources of engines' names, as of November 2026: vllm/v1/spec_decode/metrics.py (vLLM 0.33), sglang's
srt/metrics/collector.py (0.5.23), tensorrt_llm/metrics/collector.py, llama.cpp's
tools/server/server-task.cpp and lmdeploy/metrics/loggers.py (0.18).
"""

from __future__ import annotations

import io
import math
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from driftscope.boundary.bounds import (
    MAX_COUNT,
    MAX_K,
    MAX_LABEL_CHARS,
    MAX_METRIC_LABELS,
    MAX_METRIC_LINE_CHARS,
    MAX_METRIC_SAMPLES,
)
from driftscope.errors import TelemetryError
from driftscope.telemetry import instruments as i
from driftscope.telemetry.instruments import (
    CONFIGURED_K,
    COUNTER,
    DEPTH,
    GAUGE,
    HISTOGRAM,
    INSTRUMENTS,
    Identity,
    Instrument,
    Key,
    Point,
    Snapshot,
    attributes,
)
from driftscope.vocabulary import EngineName

STOP_S = 5.0
"""Longest time to wait for the endpoint to stop answering, in seconds."""
_UNITS = {"s": "_seconds", "By": "_bytes"}
_RUN_LABEL = "service.instance.id"
_LABEL = r'[a-zA-Z_]\w*="(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rf"(?P<name>[a-zA-Z_:][\w:]*)(?:\{{(?P<labels>(?:{_LABEL},?)*)\}})?[ \t]+(?P<value>\S+)"
)
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_BUCKET, _SUM = "_bucket", "_sum"
_LAST = "+Inf"
"""Bucket that counts every observation; the other buckets are not used here."""
_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels of processes that publish the same figures, if they share requests."""
_REPLICAS = ("pod", "instance", "ReplicaId", "engine", "dp_rank")
"""Labels by which replicas are named where others tell them apart as well."""


class Source(Protocol):
    """Source of the figures for a scrape."""

    def snapshot(self) -> dict[Key, Point]:
        """Return every figure with its current value."""

    def identity(self) -> Identity | None:
        """Return the identity of the engine; None until it is known."""


class _Collector:
    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterator[Any]:
        """Yield the current figures; nothing until the engine is known."""
        if (identity := self._source.identity()) is None:
            return
        yield from families(self._source.snapshot(), identity.attributes)
        yield from _target_info(identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """Names of one engine's metrics; None for what it does not publish."""

    title: str
    """Name of the engine as it is written."""
    rounds: str | None = None
    """Counter of drafts that were verified."""
    verified: str | None = None
    """Counter of draft tokens that were verified."""
    accepted: str | None = None
    """Counter of accepted draft tokens, without the target's own token of each round."""
    accepted_at: str | None = None
    """Counter of rounds that accepted at least up to a position."""
    drafted_at: str | None = None
    """Counter of rounds that drafted a position."""
    position: str = "position"
    """Label of a position, which counts from 0."""
    length: str | None = None
    """Gauge of the acceptance length of the last log interval, the target's own token included."""
    k: str | None = None
    """Gauge of the draft tokens per round as configured."""
    running: str | None = None
    """Gauge of the requests that are being served."""
    requests: str | None = None
    """Counter of finished requests."""
    generated: str | None = None
    """Counter of output tokens, of steps without a draft as well."""
    ttft: str | None = None
    """Histogram of the time to the first token, in seconds."""
    tpot: str | None = None
    """Histogram of the time per output token of a request, in seconds."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the samples on a page."""
        plain = (self.rounds, self.verified, self.accepted, self.accepted_at, self.generated)
        histograms = (name for name in (self.ttft, self.tpot) if name)
        parts = (f"{name}{part}" for name in histograms for part in ("_sum", "_count"))
        gauges = (self.length, self.k, self.running)
        return frozenset(
            name for name in (*plain, *gauges, self.drafted_at, self.requests, *parts) if name
        )

    @property
    def gauges(self) -> frozenset[str]:
        """Names of values that do not add up over time."""
        return frozenset(name for name in (self.length, self.k, self.running) if name)

    @property
    def of_speculation(self) -> frozenset[str]:
        """Names of which a page has at least one if the engine speculates."""
        names = (self.rounds, self.accepted, self.accepted_at, self.length)
        return frozenset(name for name in names if name)


Labels = frozenset[tuple[str, str]]


class BadPageError(ValueError):
    """A page that cannot be used; the message says which sample and why."""


def _counters(title: str, prefix: str, **more: str) -> EngineMetrics:
    """Return the names of engines that took over vLLM's."""
    return EngineMetrics(
        title=title,
        rounds=f"{prefix}:spec_decode_num_drafts_total",
        verified=f"{prefix}:spec_decode_num_draft_tokens_total",
        accepted=f"{prefix}:spec_decode_num_accepted_tokens_total",
        accepted_at=f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total",
        drafted_at=f"{prefix}:spec_decode_num_draft_tokens_per_pos_total",
        **more,
    )


ENGINES: Mapping[EngineName, EngineMetrics] = {
    EngineName.VLLM: _counters(
        "vLLM",
        "vllm",
        running="vllm:num_requests_running",
        requests="vllm:request_success_total",
        generated="vllm:generation_tokens_total",
        ttft="vllm:time_to_first_token_seconds",
        tpot="vllm:request_time_per_output_token_seconds",
    ),
    EngineName.SGLANG: EngineMetrics(
        title="SGLang",
        rounds="sglang:spec_verify_calls_total",
        length="sglang:spec_accept_length",
        k="sglang:spec_num_steps",
        running="sglang:num_running_reqs",
        requests="sglang:num_requests_total",
        ttft="sglang:time_to_first_token_seconds",
    ),
    EngineName.TRTLLM: EngineMetrics(
        title="TensorRT-LLM",
        verified="trtllm_spec_decode_num_draft_tokens_total",
        accepted="trtllm_spec_decode_num_accepted_tokens_total",
        accepted_at="trtllm_spec_decode_accepted_tokens_total",
        drafted_at="trtllm_spec_decode_drafted_tokens_total",
        position="token_position",
        requests="trtllm_request_success_total",
        ttft="trtllm_time_to_first_token_seconds",
        tpot="trtllm_time_per_output_token_seconds",
    ),
    EngineName.LLAMACPP: _counters(
        "llama.cpp", "llamacpp", generated="llamacpp:tokens_predicted_total"
    ),
    EngineName.LMDEPLOY: _counters("LMDeploy", "lmdeploy"),
}
"""Metrics of each engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _SampleName:
    """Instrument and part to which a sample name on a page belongs."""

    instrument: Instrument
    part: str = ""
    """Part of a histogram, _BUCKET or _SUM."""

    def key(self, labels: Mapping[str, str]) -> Key:
        """Return the series key; raise BadPageError for a label that no driftscope series has."""
        own = {name: labels.get(label_name(name), "") for name in self.instrument.attributes}
        if any(len(value) > MAX_LABEL_CHARS for value in own.values()):
            raise BadPageError(f"a label of more than {MAX_LABEL_CHARS} characters")
        return self.instrument.name, attributes({k: v for k, v in own.items() if v})


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePage:
    """Figures of one page."""

    metrics: EngineMetrics
    points: dict[Key, Point]
    length: float | None
    """Acceptance length of the engine's last log interval, averaged over its replicas; None if the
    engine publishes counters, which say more."""
    running: int | None = None
    """Requests that are being served; None if the engine does not publish it."""
    drafted: float | None = None
    """Share of the output tokens that are of rounds with a draft; None if it is not published."""
    samples: Sequence[Sample] = ()
    """Samples that the figures are of."""
    replicas: Mapping[str, EnginePage] = field(default_factory=dict)
    """Figures of each replica by its name; empty if there is one."""


def metric_name(instrument: Instrument) -> str:
    """Return Prometheus's name of a metric, the same when figures arrive by OTLP. It has no suffix
    of a counter or histogram."""
    name = instrument.name.replace(".", "_") + _UNITS.get(instrument.unit, "")
    return f"{name}_ratio" if instrument.kind == GAUGE and instrument.unit == "1" else name


def label_name(attribute: str) -> str:
    """Return Prometheus's name of an attribute."""
    return attribute.replace(".", "_")


def serve(source: Source, host: str, port: int) -> Callable[[], None]:
    """Answer scrapes at `host`:`port` from a separate thread; return a function that stops it.

    Raises TelemetryError when the port is taken or prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise TelemetryError(
            "a Prometheus endpoint needs prometheus-client; "
            "pip install 'driftscope-probe[prometheus]'"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(source))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise TelemetryError(
            f"{host}:{port}: cannot serve Prometheus metrics there ({error.strerror}); give "
            "DRIFTSCOPE_PROMETHEUS another port (replica n takes the n-th after it)"
        ) from error

    def stop() -> None:
        # This runs on the trace writer's thread, which a hanging scrape must not block.
        last = threading.Thread(target=server.shutdown, daemon=True)
        last.start()
        last.join(STOP_S)
        server.server_close()
        thread.join(STOP_S)

    return stop


def families(snapshot: Snapshot, constants: Mapping[str, str]) -> Iterator[Any]:
    """Yield prometheus_client's metric families; `constants` are attributes of every series."""
    by_name: defaultdict[str, list[Point]] = defaultdict(list)
    for point in snapshot.values():
        by_name[point.name].append(point)
    for name, points in by_name.items():
        instrument = INSTRUMENTS[name]
        attributes = [*constants, *instrument.attributes]
        family = _family(instrument, list(map(label_name, attributes)))
        for point in points:
            have = {**constants, **dict(point.attributes)}
            values = [have.get(attribute, "") for attribute in attributes]
            if instrument.kind in (COUNTER, GAUGE):
                family.add_metric(values, point.value)
            else:
                family.add_metric(values, list(_buckets(instrument, point)), point.value)
        yield family


def _family(instrument: Instrument, labels: Sequence[str]) -> Any:
    from prometheus_client import core

    kinds = {COUNTER: core.CounterMetricFamily, GAUGE: core.GaugeMetricFamily}
    family = kinds.get(instrument.kind, core.HistogramMetricFamily)
    return family(metric_name(instrument), instrument.description, labels=labels)


def _buckets(instrument: Instrument, point: Point) -> Iterator[tuple[Any, ...]]:
    """Yield cumulative buckets, as Prometheus expects. The exemplar goes into the bucket of its
    value."""
    from prometheus_client.core import Exemplar

    total, exemplar = 0, point.exemplar
    for bound, count in zip((*instrument.bounds, float("inf")), point.buckets, strict=True):
        total += count
        le = _LAST if bound == float("inf") else repr(bound)
        if exemplar is not None and exemplar.value <= bound:
            ids = {
                "trace_id": f"{exemplar.trace_id:032x}",
                "span_id": f"{exemplar.span_id:016x}",
            }
            yield le, total, Exemplar(ids, exemplar.value, exemplar.time_s)
            exemplar = None
        else:
            yield le, total, None


def _target_info(identity: Identity) -> Iterator[Any]:
    """Yield the engine's identity, following OpenTelemetry's translation to Prometheus."""
    from prometheus_client.core import InfoMetricFamily

    resource = {
        label_name(name): str(value)
        for name, value in identity.resource().attributes.items()
        if name not in ("service.name", _RUN_LABEL)
    }
    family = InfoMetricFamily("target", "Target metadata")
    family.add_metric([], resource)
    yield family


def samples_on(text: str, names: Collection[str]) -> Iterator[Sample]:
    """Yield the samples of the metrics with these `names`; raises BadPageError.

    Every value is a finite number of at most MAX_COUNT. A counter may lack its suffix "_total", as
    on pages of some versions.
    """
    longest = max(map(len, names), default=0)
    number = 0
    for written in io.StringIO(text):
        line = unwrapped(written)
        first = line[: longest + 1].partition("{")[0].split(None, 1)
        name = first[0] if first else ""
        if f"{name}_total" in names:  # a collector may take a counter's suffix off
            name, line = f"{name}_total", line.replace(name, f"{name}_total", 1)
        if name not in names:
            continue
        if len(line) > MAX_METRIC_LINE_CHARS:
            raise BadPageError(f"{name}: a line of more than {MAX_METRIC_LINE_CHARS} characters")
        if number == MAX_METRIC_SAMPLES:
            raise BadPageError(f"more than {MAX_METRIC_SAMPLES:,} samples")
        number += 1
        yield _sample(line)


_WRAPPED = re.compile(r"(?:ray_)?(vllm|sglang|llamacpp)_")


def unwrapped(name: str) -> str:
    """Return a name as the engine writes it, where Ray has put its own before it, or a collector
    has replaced the colon: vllm/v1/metrics/ray_wrappers.py (0.33)."""
    match = _WRAPPED.match(name)
    return f"{match[1]}:{name[match.end() :]}" if match else name


def _sample(line: str) -> Sample:
    sample = _LINE.match(line)
    if sample is None:
        raise BadPageError(f"a line that is not a sample: {line.strip()[:80]}")
    labels = {k: _ESCAPE.sub(_unescaped, v) for k, v in _PAIR.findall(sample["labels"] or "")}
    return Sample(
        name=sample["name"], labels=labels, value=_number(sample["name"], sample["value"])
    )


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise BadPageError(f"{name}: {text[:40]}, not a number") from error
    if not math.isfinite(value) or abs(value) > MAX_COUNT:
        raise BadPageError(f"{name}: {text[:40]}, not a finite number up to {MAX_COUNT:.1e}")
    return value


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]


def points_on(text: str) -> dict[Key, Point]:
    """Return every driftscope series on a page; raises BadPageError."""
    values: dict[Key, float] = {}
    counts: dict[Key, float] = {}
    for sample in samples_on(text, _SERIES):
        series, labels = _SERIES[sample.name], sample.labels
        value = _checked(sample, series)
        if series.part == _BUCKET:
            if labels.get("le") == _LAST:
                counts[series.key(labels)] = value
        elif series.key(labels) in values:
            raise BadPageError(
                f"{sample.name}: more than one engine; give the page of one, not a collection"
            )
        else:
            values[series.key(labels)] = value
    return {
        key: Point(
            name=key[0],
            attributes=key[1],
            value=value,
            buckets=_one_bucket(key, counts),
        )
        for key, value in values.items()
    }


def _one_bucket(key: Key, counts: Mapping[Key, float]) -> tuple[int, ...]:
    """Return one bucket that holds every observation; () for a counter or gauge."""
    if INSTRUMENTS[key[0]].kind != HISTOGRAM:
        return ()
    if key not in counts:
        raise BadPageError(f'{key[0]}: a histogram without a bucket le="{_LAST}"')
    return (int(counts[key]),)


def _checked(sample: Sample, series: _SampleName) -> float:
    name, value = sample.name, sample.value
    if value < 0 and (series.part == _BUCKET or series.instrument.kind == COUNTER):
        raise BadPageError(f"{name}: {value:g}, and a count is 0 or more")
    if series.instrument is CONFIGURED_K and not (value <= MAX_K and value == int(value) >= 0):
        raise BadPageError(f"{name}: {value:g}, not a number of tokens from 0 to {MAX_K}")
    return value


def _sample_names() -> Iterator[tuple[str, _SampleName]]:
    for instrument in INSTRUMENTS.values():
        name = metric_name(instrument)
        if instrument.kind == HISTOGRAM:
            for part in (_BUCKET, _SUM):
                yield name + part, _SampleName(instrument=instrument, part=part)
        else:
            suffix = "_total" if instrument.kind == COUNTER else ""
            yield name + suffix, _SampleName(instrument=instrument)


def samples_of_engine(
    text: str, engines: Iterable[EngineMetrics] = ENGINES.values()
) -> tuple[EngineMetrics, list[Sample]] | None:
    """Return the first of these engines that has a sample of speculation on the page, with its
    samples; None if none has. Raises BadPageError."""
    return next(engines_on(lambda metrics: samples_on(text, metrics.names), engines), None)


def engines_on(
    samples: Callable[[EngineMetrics], Iterable[Sample]],
    engines: Iterable[EngineMetrics] = ENGINES.values(),
) -> Iterator[tuple[EngineMetrics, list[Sample]]]:
    """Yield each of these engines that has a sample of speculation, with its samples. Raises what
    `samples` raises."""
    for metrics in engines:
        found_samples = list(samples(metrics))
        if any(one.name in metrics.of_speculation for one in found_samples):
            yield metrics, found_samples


def page_of_samples(metrics: EngineMetrics, samples: Sequence[Sample]) -> EnginePage:
    """Return the figures of an engine's samples, and of each replica; raises BadPageError."""
    own_samples, labels = _without_repeated_ranks(metrics, samples)
    replicas: defaultdict[tuple[str, ...], list[Sample]] = defaultdict(list)
    for sample in own_samples:
        if labels and all(label in sample.labels for label in labels):
            replicas[tuple(sample.labels[label] for label in labels)].append(sample)
    named = {
        ", ".join(f"{label} {value}" for label, value in zip(labels, values, strict=True)): some
        for values, some in sorted(replicas.items())
        if any(sample.name in metrics.of_speculation for sample in some)
    }
    pages = {name: page_of_all(metrics, some) for name, some in named.items()}
    page = replace(page_of_all(metrics, own_samples), replicas=pages)
    values: dict[tuple[str, Labels], float] = {}
    for sample in samples:
        if values.setdefault((sample.name, frozenset(sample.labels.items())), sample.value) != (
            sample.value
        ):
            raise BadPageError(
                f"{sample.name} has two values for one series; give the pages of two servers, or "
                "of two times, one by one"
            )
    return page


def _without_repeated_ranks(
    metrics: EngineMetrics, samples: Sequence[Sample]
) -> tuple[Sequence[Sample], tuple[str, ...]]:
    """Return the samples without those that ranks of one replica repeat, and the labels that tell
    replicas apart.

    Ranks repeat each other if all of them publish the same figures. Under SGLang's DP attention
    tp_rank counts through all replicas.
    """
    own = {metrics.position, "le"}
    by_rank: dict[tuple[str, Labels], dict[Labels, Sample]] = defaultdict(dict)
    for sample in samples:
        items = {k: v for k, v in sample.labels.items() if k != "le"}
        rank = tuple((k, items.pop(k)) for k in _RANKS if k in items)
        by_rank[sample.name, frozenset(items.items())][frozenset(rank)] = sample
    groups = [(name, list(of.values())) for (name, _), of in by_rank.items()]
    repeated = all(
        len({sample.value for sample in some}) == 1
        for name, some in groups
        if name in metrics.of_speculation
    )
    if repeated:
        own.update(_RANKS)
        samples = [min(some, key=_rank) for _, some in groups]
    by_name: defaultdict[str, set[Labels]] = defaultdict(set)
    for sample in samples:
        if sample.name in metrics.of_speculation:
            by_name[sample.name].add(
                frozenset((k, v) for k, v in sample.labels.items() if k not in own)
            )
    # A counter of the whole server lacks the labels of its replicas.
    replicas = [dict(one) for one in max(by_name.values(), key=len, default=())]
    order = [*_REPLICAS, *sorted({k for one in replicas for k in one} - {*_REPLICAS})]
    if len(order) > MAX_METRIC_LABELS:
        raise BadPageError(f"more than {MAX_METRIC_LABELS} labels")
    chosen: tuple[str, ...] = ()
    apart: list[tuple[str | None, ...]] = [()] * len(replicas)
    for label in order:
        more = [(*values, one.get(label)) for values, one in zip(apart, replicas, strict=True)]
        if len(set(more)) > len(set(apart)):
            chosen, apart = (*chosen, label), more
    return samples, chosen


def _rank(sample: Sample) -> tuple[int, ...]:
    texts = (sample.labels.get(label, "") for label in _RANKS)
    return tuple(int(text[:9]) if text.isascii() and text.isdecimal() else 0 for text in texts)


def page_of_all(metrics: EngineMetrics, samples: Sequence[Sample]) -> EnginePage:
    """Return the figures of an engine's samples together; raises BadPageError."""
    totals: defaultdict[str, float] = defaultdict(float)
    by_position: defaultdict[tuple[str, int], float] = defaultdict(float)
    lengths, configured = [], 0.0
    for sample in samples:
        if sample.value < 0:
            raise BadPageError(f"{sample.name}: {sample.value:g}, less than 0")
        if sample.name == metrics.length:
            lengths.append(sample.value)
        elif sample.name == metrics.k:
            configured = max(configured, sample.value)
        elif sample.name in (metrics.accepted_at, metrics.drafted_at):
            by_position[sample.name, _position(sample, metrics.position)] += sample.value
        else:
            totals[sample.name] += sample.value
    if configured > MAX_K or configured != int(configured):
        raise BadPageError(f"{metrics.k}: {configured:g}, not a number up to {MAX_K}")
    points = {point.key: point for point in _points(metrics, totals, by_position, int(configured))}
    known = [length for length in lengths if length >= 1.0]
    counted = metrics.accepted in totals
    length = None if counted or not known else sum(known) / len(known)
    running = totals.get(metrics.running or "")
    rounds, accepted, generated = (
        totals.get(name or "", 0.0)
        for name in (metrics.rounds, metrics.accepted, metrics.generated)
    )
    return EnginePage(
        metrics=metrics,
        points=points,
        length=length,
        running=None if running is None else int(running),
        drafted=(rounds + accepted) / generated if rounds and generated else None,
        samples=tuple(samples),
    )


def _position(sample: Sample, label: str) -> int:
    """Return the position of a sample, from 0."""
    text = sample.labels.get(label, "")
    if not (text.isascii() and text.isdecimal() and int(text[:9]) < MAX_K and len(text) < 9):
        raise BadPageError(f"{sample.name}: {label} is {text[:40]!r}, not a number below {MAX_K}")
    return int(text)


def _points(
    metrics: EngineMetrics,
    totals: dict[str, float],
    by_position: dict[tuple[str, int], float],
    configured: int,
) -> Iterator[Point]:
    positions = [at for name, at in by_position if name == metrics.accepted_at]
    k = 1 + max(positions, default=-1)
    yield _point(i.CONFIGURED_K, max(k, configured))
    # An engine without a counter of rounds counts a round where it drafts the first position.
    first = by_position.get((metrics.drafted_at or "", 0))
    rounds = first if metrics.rounds is None else totals.get(metrics.rounds)
    for instrument, value in (
        (i.ROUNDS, rounds),
        (i.VERIFIED, totals.get(metrics.verified or "")),
        (i.ACCEPTED, totals.get(metrics.accepted or "")),
        (i.REQUESTS, totals.get(metrics.requests or "")),
    ):
        if value is not None:
            yield _point(instrument, value)
    if k and rounds is not None:
        kept = by_position[metrics.accepted_at or "", 0]
        yield _point(i.REJECTED_ROUNDS, max(rounds - kept, 0.0))
    for at in range(k):
        reached = by_position.get((metrics.accepted_at or "", at), 0.0)
        yield _point(i.REACHED, reached, depth=at + 1)
        if (drafted := by_position.get((metrics.drafted_at or "", at))) is not None:
            yield _point(i.VERIFIED_AT, drafted, depth=at + 1)
    for instrument, name in ((i.TTFT, metrics.ttft), (i.TPOT, metrics.tpot)):
        if name and {f"{name}_count", f"{name}_sum"} <= totals.keys():
            count = int(totals[f"{name}_count"])
            yield _point(instrument, totals[f"{name}_sum"], buckets=(count,))


def _point(
    instrument: Instrument, value: float, *, depth: int | None = None, buckets: tuple[int, ...] = ()
) -> Point:
    by = {} if depth is None else {DEPTH: depth}
    return Point(
        name=instrument.name, attributes=attributes(by), value=float(value), buckets=buckets
    )


_SERIES = dict(_sample_names())
