"""TensorRT-LLM's iteration statistics: the list of `GET /metrics`, or a line per iteration.

Source: tensorrt_llm executor/types.h. acceptanceLength is (accepted + requests) / requests of one
iteration, so the sums are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.ingest.fields import count, inner
from driftscope.ingest.figures import Figures
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile

_STATS = "specDecodingStats"


def _recognises(file: ResultFile) -> bool:
    return any("iterLatencyMS" in each and "iter" in each for each in file.objects[:100])


def _read(file: ResultFile) -> Iterator[Figures]:
    stats = [inner(each, _STATS) for each in file.objects if inner(each, _STATS)]
    yield Figures(
        rounds=_sum(stats, "numRequestsWithDraftTokens"),
        drafted=_sum(stats, "numDraftTokens"),
        accepted=_sum(stats, "numAcceptedTokens"),
        assumptions=("a round is a request with draft tokens in one iteration",),
    )


def _sum(stats: list[Mapping[str, Any]], name: str) -> int | None:
    found = [count(each, name) for each in stats]
    known = [each for each in found if each is not None]
    return sum(known) if known else None


READER = Reader(
    name="trtllm-iterations",
    title="TensorRT-LLM iteration statistics",
    gives="acceptance length, tokens",
    lacks="rates by position, intervals, times per token",
    recognises=_recognises,
    read=_read,
)
