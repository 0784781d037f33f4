"""AIPerf's `profile_export_aiperf.json` (0.13): one JSON object per run.

Source: ai-dynamo/aiperf, docs/tutorials/spec-decode-metrics.md. Rates are in percent, and
spec_decode_acceptance_length is the mean of the requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.ingest.fields import MOST_LENGTH, count, inner, number
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import histogram_of, marginal_of
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile

_HISTOGRAM = "pooled_spec_decode_acceptance_histogram"


def _recognises(file: ResultFile) -> bool:
    return "input_config" in file.fields and "time_to_first_token" in file.fields


def _read(file: ResultFile) -> Iterator[Figures]:
    fields = file.fields
    histogram = histogram_of(fields.get(_HISTOGRAM), _HISTOGRAM)
    steps, accepted = _total(fields, "total_spec_decode_steps"), None
    if steps is not None:
        accepted = _total(fields, "total_accepted_draft_tokens")
    yield Figures(
        requests=_total(fields, "request_count"),
        rounds=steps,
        accepted=accepted,
        drafted=_total(fields, "total_draft_tokens"),
        length_by_request=_mean(fields, "spec_decode_acceptance_length", MOST_LENGTH),
        marginal=marginal_of(histogram) or None if histogram is not None else None,
        ttft_s=_seconds(fields, "time_to_first_token"),
        tpot_s=_seconds(fields, "inter_token_latency"),
        output_per_s=_mean(fields, "output_token_throughput"),
    )


def _mean(fields: Mapping[str, Any], name: str, most: float = 1e15) -> float | None:
    return number(inner(fields, name), "avg", most)


def _total(fields: Mapping[str, Any], name: str) -> int | None:
    return count(inner(fields, name), "avg")


def _seconds(fields: Mapping[str, Any], name: str) -> float | None:
    value = _mean(fields, name)
    return None if value is None else value / 1000.0


READER = Reader(
    name="aiperf-summary",
    title="AIPerf profile_export_aiperf.json (0.13)",
    gives="acceptance length over rounds and over requests, rates by depth, times",
    lacks="intervals: give the records",
    recognises=_recognises,
    read=_read,
)
