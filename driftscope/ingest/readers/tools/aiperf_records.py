"""AIPerf's `profile_export.jsonl` (0.13): one line per request.

Source: ai-dynamo/aiperf, src/aiperf/common/models/spec_decode_models.py. inter_token_latency is
(latency - time to first token) / (tokens - 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.ingest.fields import BadFigureError, count, inner, number
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import RequestCounts, histogram_of
from driftscope.ingest.reader import Reader
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile

_SPEC = "spec_decode_acceptance"
_TO_S = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0}
_MADE_UP = "llamacpp"
"""Engine for which AIPerf spreads accepted tokens over made-up rounds."""


def _recognises(file: ResultFile) -> bool:
    return any(inner(each, "metadata") and "metrics" in each for each in file.lines[:10])


def _read(file: ResultFile) -> Iterator[Figures]:
    specs = [each for each in file.lines if inner(each, _SPEC)]
    real = [each for each in specs if inner(each, _SPEC).get("engine") != _MADE_UP]
    left_out = (
        f"{len(specs) - len(real)} requests of llama.cpp are left out: AIPerf makes up rounds"
    )
    yield over_requests(
        [_counts(each) for each in real],
        k=max((count(inner(each, _SPEC), "num_spec_tokens") or 0 for each in real), default=0)
        or None,
        number=len(file.lines),
        ttft_s=[_time(each, "time_to_first_token") for each in file.lines],
        tpot_s=[_time(each, "inter_token_latency") for each in file.lines],
        assumptions=(left_out,) if len(real) < len(specs) else (),
    )


def _k(record: Mapping[str, Any]) -> int:
    return count(inner(record, _SPEC), "num_spec_tokens") or 0


def _counts(record: Mapping[str, Any]) -> RequestCounts:
    spec = inner(record, _SPEC)
    rounds, accepted = count(spec, "num_spec_steps"), count(spec, "num_accepted_draft_tokens")
    if rounds is None or accepted is None:
        raise BadFigureError(f"a {_SPEC} without num_spec_steps or num_accepted_draft_tokens")
    return RequestCounts(
        rounds=rounds,
        accepted=accepted,
        drafted=count(spec, "num_draft_tokens"),
        ttft_s=_time(record, "time_to_first_token"),
        tpot_s=_time(record, "inter_token_latency"),
        histogram=histogram_of(spec.get("acceptance_histogram"), "acceptance_histogram"),
    )


def _time(record: Mapping[str, Any], name: str) -> float | None:
    metric = inner(inner(record, "metrics"), name)
    value = number(metric, "value")
    if value is None:
        return None
    unit = str(metric.get("unit"))
    if unit not in _TO_S:
        raise BadFigureError(f"{name} has the unit {unit[:20]!r}")
    return value * _TO_S[unit]


READER = Reader(
    name="aiperf-records",
    title="AIPerf profile_export.jsonl (0.13)",
    gives="acceptance length with interval, rates by depth, times, per request",
    lacks="acceptance of llama.cpp, whose rounds AIPerf makes up",
    recognises=_recognises,
    read=_read,
)
