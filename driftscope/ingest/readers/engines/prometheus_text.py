"""Metrics pages of vLLM, SGLang, TensorRT-LLM, llama.cpp and LMDeploy: one scrape.

Sources: see `driftscope.telemetry.collect.engine_metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.ingest.fields import BadFigureError
from driftscope.ingest.figures import SINCE_START, Figures
from driftscope.ingest.page_figures import figures_of
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile
from driftscope.telemetry.watch.engine_page import EnginePage, page_of
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
    said = f"the page is {page.metrics.title}'s; counts are since the server's start"
    yield figures_of(page, SINCE_START, said)


READER = Reader(
    name="prometheus",
    title="Prometheus page of vLLM, SGLang, TensorRT-LLM, llama.cpp or LMDeploy",
    gives="acceptance length, rates by position (not SGLang), mean times (vLLM, TensorRT-LLM)",
    lacks="intervals; one page covers the time since the server's start, two with --window the "
    "time between them",
    recognises=_recognises,
    read=_read,
)
