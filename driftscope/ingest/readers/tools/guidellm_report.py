"""guidellm's `benchmarks.json` (0.4 to 0.8): one part per benchmark.

inter_token_latency_ms leaves out the first token. Acceptance is there from 0.8.0 on, as vLLM's
per-request metrics in response_metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from driftscope.ingest.fields import inner, milliseconds, objects
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import RequestCounts
from driftscope.ingest.reader import Reader
from driftscope.ingest.readers.engines.vllm_requests import counts_of
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile


def _recognises(file: ResultFile) -> bool:
    return isinstance(file.fields.get("benchmarks"), list)


def _read(file: ResultFile) -> Iterator[Figures]:
    benchmarks = objects(file.fields, "benchmarks")
    for at, benchmark in enumerate(benchmarks):
        done = objects(inner(benchmark, "requests"), "successful")
        speculated = [each for each in done if "num_spec_steps" in _spec(each)]
        yield over_requests(
            [_counts(each) for each in speculated],
            part=f"benchmark {at + 1}" if len(benchmarks) > 1 else "",
            number=len(done),
            ttft_s=[milliseconds(each, "time_to_first_token_ms") for each in done],
            tpot_s=[milliseconds(each, "inter_token_latency_ms") for each in done],
        )


def _counts(request: Mapping[str, Any]) -> RequestCounts:
    counts = counts_of(_spec(request), "num_accepted_draft_tokens", "num_draft_tokens")
    return replace(
        counts,
        ttft_s=milliseconds(request, "time_to_first_token_ms"),
        tpot_s=milliseconds(request, "inter_token_latency_ms"),
    )


def _spec(request: Mapping[str, Any]) -> Mapping[str, Any]:
    return inner(inner(request, "response_metrics"), "speculative_decoding")


READER = Reader(
    name="guidellm",
    title="guidellm benchmarks.json (0.4 to 0.8)",
    gives="times per request; from 0.8 on acceptance length with interval and rates by depth",
    lacks="acceptance before 0.8",
    recognises=_recognises,
    read=_read,
)
