"""Readers by name, and the choice of one for a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from driftscope.errors import UsageError
from driftscope.ingest.fields import BadFigureError
from driftscope.ingest.figures import Figures, completed
from driftscope.ingest.reader import Reader
from driftscope.ingest.readers.engines import (
    llamacpp_responses,
    prometheus_range,
    prometheus_text,
    server_log,
    sglang_requests,
    trtllm_iterations,
    trtllm_requests,
    vllm_requests,
)
from driftscope.ingest.readers.tools import (
    aiperf_records,
    aiperf_summary,
    eagle_answers,
    guidellm_report,
    sglang_bench,
    spec_bench,
    specforge_results,
    speculation_profile,
    speculators_csv,
    speed_bench,
    vllm_bench,
)
from driftscope.ingest.result_file import ResultFile, open_result

_MODULES = (
    vllm_bench,
    vllm_requests,
    sglang_bench,
    sglang_requests,
    trtllm_iterations,
    trtllm_requests,
    llamacpp_responses,
    prometheus_text,
    prometheus_range,
    server_log,
    aiperf_records,
    aiperf_summary,
    guidellm_report,
    spec_bench,
    eagle_answers,
    specforge_results,
    speculators_csv,
    speed_bench,
    speculation_profile,
)
READERS: Mapping[str, Reader] = {module.READER.name: module.READER for module in _MODULES}


def ingest(path: Path, name: str | None = None) -> tuple[Reader, tuple[Figures, ...]]:
    """Read a result file with the reader `name`, or with the one that recognises it.

    Raises UsageError for a file that cannot be read, that no reader or several recognise, or whose
    content no tool writes.
    """
    file = open_result(path)
    reader = _chosen(file) if name is None else READERS.get(name)
    if reader is None:
        raise UsageError(f"--format {name}: no such format; there are {', '.join(READERS)}")
    try:
        found = tuple(completed(each) for each in reader.read(file))
    except BadFigureError as error:
        raise UsageError(f"{path}: is no file of {reader.title}: {error}") from error
    if not _holds_anything(found):
        raise UsageError(f"{path}: {reader.title}: holds no figure of acceptance or time")
    return reader, found


def _chosen(file: ResultFile) -> Reader:
    mine: Sequence[Reader] = [each for each in READERS.values() if each.recognises(file)]
    if len(mine) == 1:
        return mine[0]
    if not mine:
        raise UsageError(
            f"{file.path}: no known format; `driftscope ingest --list` lists them, and --format "
            "names one"
        )
    names = ", ".join(each.name for each in mine)
    raise UsageError(f"{file.path}: fits {names}; name one with --format")


def _holds_anything(found: Iterable[Figures]) -> bool:
    return any(not each.is_empty or each.accepted is not None for each in found)
