"""Responses of TensorRT-LLM with `per_request_spec_decode_stats: true`: JSON, or lines.

Source: tensorrt_llm serve, choices[].speculative_decoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.ingest.fields import count, inner, objects
from driftscope.ingest.figures import Figures
from driftscope.ingest.reader import Reader
from driftscope.ingest.readers.engines.vllm_requests import counts_of
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile


def _specs(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = [inner(choice, "speculative_decoding") for choice in objects(fields, "choices")]
    return [each for each in found if "total_accepted_draft_tokens" in each]


def _recognises(file: ResultFile) -> bool:
    lists = (each for each in file.objects[:100] if isinstance(each.get("choices"), list))
    return any(_specs(each) for each in lists)


def _read(file: ResultFile) -> Iterator[Figures]:
    speculated = [spec for each in file.objects for spec in _specs(each)]
    yield over_requests(
        [counts_of(e, "total_accepted_draft_tokens", "total_draft_tokens") for e in speculated],
        k=max((count(each, "num_spec_tokens") or 0 for each in speculated), default=0) or None,
        number=len(file.objects),
    )


READER = Reader(
    name="trtllm-requests",
    title="TensorRT-LLM responses with per_request_spec_decode_stats",
    gives="acceptance length with interval, rates by depth, per request",
    lacks="times",
    recognises=_recognises,
    read=_read,
)
