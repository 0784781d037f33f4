"""SGLang's meta_info (0.5.23): responses of `/generate`, or lines of --export-metrics-to-file.

Source: SGLang's observability/request_metrics_exporter.py. spec_accept_length divides by the
verifications all tokens of the answer, the prefill's included, so the histogram is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.ingest.fields import BadFigureError, count
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import RequestCounts, accepted_in, histogram_of
from driftscope.ingest.reader import Reader
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile

_HISTOGRAM = "spec_correct_drafts_histogram"


def _meta(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = fields.get("meta_info")
    return nested if isinstance(nested, dict) else fields


def _recognises(file: ResultFile) -> bool:
    return any("spec_verify_ct" in _meta(each) for each in file.objects[:100])


def _read(file: ResultFile) -> Iterator[Figures]:
    speculated = [_meta(each) for each in file.objects if _HISTOGRAM in _meta(each)]
    yield over_requests(
        [_counts(each) for each in speculated],
        number=len(file.objects),
        assumptions=(
            "lengths are those of the histogram; spec_accept_length counts the prefill's token",
        ),
    )


def _counts(meta: Mapping[str, Any]) -> RequestCounts:
    histogram = histogram_of(meta.get(_HISTOGRAM), _HISTOGRAM)
    if histogram is None:
        raise BadFigureError(f"a request without {_HISTOGRAM}")
    return RequestCounts(
        rounds=sum(histogram),
        accepted=accepted_in(histogram),
        drafted=count(meta, "spec_num_proposed_drafts"),
        histogram=histogram,
    )


READER = Reader(
    name="sglang-requests",
    title="SGLang meta_info: responses, or --export-metrics-to-file (0.5.23)",
    gives="acceptance length with interval, rates by depth, per request",
    lacks="times",
    recognises=_recognises,
    read=_read,
)
