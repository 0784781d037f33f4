"""Print the list of metrics as a page of the documentation.

python -m driftscope.telemetry.metrics_docs > docs/metrics.md
"""

from __future__ import annotations

import sys

from driftscope.telemetry.instruments import COUNTER, HISTOGRAM, INSTRUMENTS, Instrument
from driftscope.telemetry.prometheus import metric_name

_HEAD = """# Metrics and spans

Written by `python -m driftscope.telemetry.metrics_docs` from
`driftscope/telemetry/instruments.py`. OTLP and Prometheus carry the same descriptions.
[Monitoring](monitoring.md) explains how to switch export on. Every series also has
`gen_ai.request.model` (the served name), `driftscope.drafter` and `driftscope.engine`. A model
whose name is a file path is named by the last part of the path and the first 8 digits of the digest
of its weights (or, if they are unknown, its config): `chat-8b@1f2e3d4c`. In Prometheus dots are
underscores.

| metric | in Prometheus | unit | kind | attributes | bounds of buckets |
|---|---|---|---|---|---|
"""
_TAIL = """
## Spans

`driftscope.request`, one per finished request, from its arrival to its end: tokens, TTFT, TPOT,
acceptance length, rounds, rejected rounds and undrafted steps as attributes. Events:
`driftscope.chain.rejected` for the first 8 rounds of which nothing was accepted, and
`driftscope.chain.drifted` for up to 8 recorded chains whose hidden state more than doubled. The
histograms of TTFT, TPOT, acceptance length by request and hidden growth carry exemplars that point
at such spans.

## OpenTelemetry's variables

Read by OpenTelemetry's own exporters and SDK: endpoints, headers, certificates, compression and
timeouts (`OTEL_EXPORTER_OTLP_*`), `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`,
`OTEL_TRACES_SAMPLER` and its argument, `OTEL_SPAN_*` and `OTEL_ATTRIBUTE_*` limits. Read by
driftscope: `OTEL_SDK_DISABLED`, `OTEL_METRICS_EXPORTER`, `OTEL_TRACES_EXPORTER`,
`OTEL_EXPORTER_OTLP_PROTOCOL` (also by signal), `OTEL_METRIC_EXPORT_INTERVAL`,
`OTEL_METRIC_EXPORT_TIMEOUT`, `OTEL_BSP_SCHEDULE_DELAY`, `OTEL_BSP_MAX_QUEUE_SIZE`,
`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`, `OTEL_METRICS_EXEMPLAR_FILTER`,
`OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`, `OTEL_EXPORTER_PROMETHEUS_HOST` and `_PORT`.
Without effect: `OTEL_PROPAGATORS` (vLLM passes on W3C's `traceparent`),
`OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION` (buckets are explicit),
`OTEL_BSP_EXPORT_TIMEOUT` (the exporter's own timeout applies), and the variables of logs.
"""


def page() -> str:
    """Return the page as Markdown."""
    rows = "".join(map(_row, INSTRUMENTS.values()))
    words = "".join(f"- `{one.name}`: {one.description}\n" for one in INSTRUMENTS.values())
    return f"{_HEAD}{rows}\n## In words\n\n{words}{_TAIL}"


def _row(one: Instrument) -> str:
    name = metric_name(one) + ("_total" if one.kind == COUNTER else "")
    bounds = ", ".join(f"{bound:g}" for bound in one.bounds)
    if one.kind == HISTOGRAM and not bounds:
        bounds = "none: sum and count"
    cells = (
        f"`{one.name}`",
        f"`{name}`",
        one.unit,
        one.kind,
        ", ".join(f"`{name}`" for name in one.attributes),
        bounds,
    )
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
