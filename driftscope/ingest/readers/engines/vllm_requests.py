"""Responses of vLLM with `--per-request-spec-decode-metrics` (0.33): JSON, or a line per response.

Source: vLLM's docs/features/speculative_decoding/acceptance_metrics. The histogram counts rounds by
accepted tokens, K + 1 entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.ingest.fields import BadFigureError, count, inner
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import RequestCounts, histogram_of
from driftscope.ingest.reader import Reader
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile


def _spec(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return inner(inner(fields, "metrics"), "speculative_decoding")


def _recognises(file: ResultFile) -> bool:
    return any("num_spec_steps" in _spec(each) for each in file.objects[:100])


def counts_of(fields: Mapping[str, Any], accepted: str, drafted: str) -> RequestCounts:
    """Return the counts of a request; `accepted` and `drafted` name its fields."""
    rounds, tokens = count(fields, "num_spec_steps"), count(fields, accepted)
    if rounds is None or tokens is None:
        raise BadFigureError(f"a request without num_spec_steps or {accepted}")
    return RequestCounts(
        rounds=rounds,
        accepted=tokens,
        drafted=count(fields, drafted),
        histogram=histogram_of(fields.get("acceptance_histogram"), "acceptance_histogram"),
    )


def _read(file: ResultFile) -> Iterator[Figures]:
    speculated = [_spec(each) for each in file.objects if "num_spec_steps" in _spec(each)]
    yield over_requests(
        [counts_of(each, "num_accepted_draft_tokens", "num_draft_tokens") for each in speculated],
        k=max((count(each, "num_spec_tokens") or 0 for each in speculated), default=0) or None,
        number=len(file.objects),
    )


READER = Reader(
    name="vllm-requests",
    title="vLLM responses with --per-request-spec-decode-metrics (0.33)",
    gives="acceptance length with interval, rates by depth, per request",
    lacks="times",
    recognises=_recognises,
    read=_read,
)
