"""Metrics pages of vLLM, SGLang, TensorRT-LLM, llama.cpp and LMDeploy: one scrape.

Sources: see `driftscope.telemetry.collect.engine_metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.ingest.fields import BadFigureError
from driftscope.ingest.figures import LAST_INTERVAL, SINCE_START, Figures
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile
from driftscope.telemetry.watch.engine_page import EnginePage, page_of
from driftscope.telemetry.watch.engine_view import view
from driftscope.telemetry.watch.page_samples import BadPageError


def _page(file: ResultFile) -> EnginePage | None:
    try:
        return page_of(file.text)
    except BadPageError as error:
        raise BadFigureError(str(error)) from error


def _recognises(file: ResultFile) -> bool:
    if file.document is not None or file.lines:
        return False
    try:
        return page_of(file.text) is not None
    except BadPageError:
        return True


def _read(file: ResultFile) -> Iterator[Figures]:
    page = _page(file)
    if page is None:
        return
    seen = view(page.points)
    rates = [depth.accepted for depth in seen.depths]
    known = [rate for rate in rates if rate is not None]
    title = page.metrics.title
    yield Figures(
        period=SINCE_START if page.length is None else LAST_INTERVAL,
        k=seen.k or None,
        requests=seen.requests or None,
        rounds=seen.rounds or None,
        length=seen.length if page.length is None else page.length,
        marginal=tuple(known) if known and len(known) == len(rates) else None,
        ttft_s=seen.ttft_s,
        tpot_s=seen.tpot_s,
        assumptions=(f"the page is {title}'s; counts are since the server's start",),
    )


READER = Reader(
    name="prometheus",
    title="Prometheus page of vLLM, SGLang, TensorRT-LLM, llama.cpp or LMDeploy",
    gives="acceptance length, rates by position (not SGLang), mean times (vLLM, TensorRT-LLM)",
    lacks="intervals; a period other than since the server's start",
    recognises=_recognises,
    read=_read,
)
