"""One span per finished request, with events for its rejected rounds and drifted chains."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.batch_counter import PROVIDER, NotableChain, operation_of
from driftscope.telemetry.collect.request_log import Finished
from driftscope.telemetry.collect.tally import Exemplar, Key, named
from driftscope.telemetry.export.otel_data import nano

REQUEST_SPAN = "driftscope.request"
REJECTED_EVENT = "driftscope.chain.rejected"
DRIFTED_EVENT = "driftscope.chain.drifted"
CHAINS_PER_REQUEST = 8
"""Most chains that drifted hard in one request's span."""
REMEMBERED_REQUESTS = 4096
"""Most requests whose drifted chains are kept until the request finishes."""


class Spans:
    """Create spans of finished requests; ended spans are queued until they are sent."""

    def __init__(
        self, *, queue: int, labels_of: Callable[[dict[str, Any]], dict[str, str]] | None = None
    ) -> None:
        """`labels_of`: returns the attribute of a request's label, given its row."""
        self._chains: OrderedDict[str, list[NotableChain]] = OrderedDict()
        self._seen: set[NotableChain] = set()
        self._ended = _Ended(queue)
        self._labels_of = labels_of or _unlabelled
        self._tracer: Any = None
        self.exemplars: dict[Key, Exemplar] = {}
        """The latest sampled request of each series."""

    def start(self, resource: Resource, constants: Mapping[str, str]) -> None:
        """Set the engine's identity; OTEL_TRACES_SAMPLER selects the sampler."""
        self._constants = dict(constants)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("driftscope")

    @property
    def dropped(self) -> int:
        """Number of spans dropped because the queue was full."""
        return self._ended.dropped

    def note(self, chains: Iterable[NotableChain]) -> None:
        """Keep chains that drifted hard, each only once."""
        latest = set()
        for chain in chains:
            latest.add(chain)
            if chain in self._seen:
                continue
            mine = self._chains.setdefault(chain.request, [])
            if len(mine) < CHAINS_PER_REQUEST:
                mine.append(chain)
            while len(self._chains) > REMEMBERED_REQUESTS:
                self._chains.popitem(last=False)
        self._seen = latest

    def add(self, done: Finished) -> None:
        """Create and queue the span of a finished request."""
        row = done.row
        span = self._tracer.start_span(
            REQUEST_SPAN,
            context=_parent(row.get("traceparent")),
            kind=SpanKind.INTERNAL,
            start_time=nano(row["arrival_s"]),
            attributes={**self._constants, **_attributes(done)},
        )
        chains = self._chains.pop(row["request"], [])
        for time_s, position in done.rounds.first_rejected:
            span.add_event(REJECTED_EVENT, {"driftscope.position": position}, nano(time_s))
        for chain in chains:
            span.add_event(DRIFTED_EVENT, _of_chain(chain), nano(chain.time_s))
        span.end(nano(row["time_s"]))
        if span.is_recording() or span.get_span_context().trace_flags.sampled:
            self._exemplify(done, span, chains)

    def take(self, limit: int) -> list[ReadableSpan]:
        """Return the oldest queued spans, at most `limit`; they stay queued until `sent`."""
        return self._ended.oldest(limit)

    def sent(self, number: int) -> None:
        """Remove the oldest `number` spans, which a collector accepted."""
        self._ended.forget(number)

    def _exemplify(self, done: Finished, span: Any, chains: list[NotableChain]) -> None:
        context, row = span.get_span_context(), done.row
        served = {"operation": operation_of(row["request"]), "provider": PROVIDER}
        growth = max((c.growth for c in chains), default=None)
        for instrument, value, by in (
            (i.TTFT, row["ttft_s"], served),
            (i.TPOT, row["tpot_s"], served),
            (i.REQUEST_LENGTH, done.rounds.mean_length, self._labels_of(row)),
            (i.GROWTH, growth, {}),
        ):
            if value is not None:
                self.exemplars[instrument.name, named(by)] = Exemplar(
                    value=value,
                    time_s=row["time_s"],
                    trace_id=context.trace_id,
                    span_id=context.span_id,
                )


class _Ended(SpanProcessor):
    """A bounded queue that keeps the oldest spans; spans that do not fit are counted."""

    def __init__(self, size: int) -> None:
        self._size, self._queue = size, deque[ReadableSpan]()
        self.dropped = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue an ended span."""
        if len(self._queue) >= self._size:
            self.dropped += 1
        else:
            self._queue.append(span)

    def oldest(self, limit: int) -> list[ReadableSpan]:
        return [self._queue[at] for at in range(min(limit, len(self._queue)))]

    def forget(self, number: int) -> None:
        for _ in range(number):
            self._queue.popleft()


def _unlabelled(_: dict[str, Any]) -> dict[str, str]:
    return {}


def _parent(traceparent: str | None) -> Context | None:
    """Return the caller's trace context; None starts a new trace."""
    if not traceparent:
        return Context()
    return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())


def _attributes(done: Finished) -> dict[str, Any]:
    row, rounds = done.row, done.rounds
    attributes = {
        "driftscope.request.id": row["request"],
        i.LABEL: row["label"],
        "gen_ai.usage.input_tokens": row["prompt_tokens"],
        "gen_ai.usage.output_tokens": row["output_tokens"],
        "gen_ai.response.finish_reasons": (row["finish_reason"],),
        "gen_ai.request.temperature": row["temperature"],
        "gen_ai.request.max_tokens": row["max_tokens"],
        i.TTFT.name: row["ttft_s"],
        i.TPOT.name: row["tpot_s"],
        "driftscope.rounds": rounds.rounds,
        "driftscope.rounds.rejected": rounds.rejected,
        "driftscope.steps.undrafted": rounds.undrafted,
        "driftscope.tokens.proposed": rounds.drafted,
        "driftscope.tokens.accepted": rounds.accepted,
        "driftscope.acceptance.length": rounds.mean_length,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _of_chain(chain: NotableChain) -> dict[str, Any]:
    attributes = {
        "driftscope.position": chain.position,
        "driftscope.k": chain.k,
        i.GROWTH.name: chain.growth,
    }
    return {name: value for name, value in attributes.items() if value is not None}
