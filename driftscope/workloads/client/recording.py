"""The run directory of a replay: manifest, a row for each request, the sender's resources."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from driftscope.errors import TraceError
from driftscope.trace.manifest import CLIENT, MANIFEST, Manifest
from driftscope.trace.records import ClientRow, ResourceRow
from driftscope.trace.texts import TextFile
from driftscope.trace.writer import TraceWriter, WriterOptions
from driftscope.trace.writer_files import create_run, unwritable
from driftscope.vocabulary import Ended
from driftscope.workloads.client.answer import UNCHECKED, outcome_of
from driftscope.workloads.client.sending import Sent
from driftscope.workloads.suites.plan import Shot


class GpuSampler:
    """Makes one row per GPU, or a single row without a GPU.

    The GPUs are those of this machine, whoever uses them. They describe a server that runs here and
    say nothing about one elsewhere.
    """

    def __init__(self, source: str) -> None:
        self._source, self._process = source, psutil.Process()
        self._gpus = _gpus()

    def __call__(self) -> Iterable[ResourceRow]:
        """Return the rows of the current moment."""
        now = time.time()
        return [self._row(now, gpu) for gpu in self._gpus or (None,)]

    def _row(self, now: float, gpu: Any | None) -> ResourceRow:
        used, busy, power = (None, None, None) if gpu is None else _gpu_figures(gpu)
        return ResourceRow(
            time_s=now,
            source=self._source,
            process_bytes=self._process.memory_info().rss,
            host_available_bytes=psutil.virtual_memory().available,
            gpu_used_bytes=used,
            gpu_busy=busy,
            gpu_power_w=power,
        )


def _gpus() -> list[Any]:
    """Return NVML's handles; [] without its Python package, its library or a GPU."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _gpu_figures(gpu: Any) -> tuple[int | None, float | None, float | None]:
    """Return bytes in use, share of busy time and watts; None for what this GPU does not report."""
    import pynvml

    used = busy = power = None
    with contextlib.suppress(pynvml.NVMLError):
        used = int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used)
    with contextlib.suppress(pynvml.NVMLError):
        busy = pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    with contextlib.suppress(pynvml.NVMLError):
        power = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000
    return used, busy, power


QUEUE_ROWS = 1 << 20
"""Queue size of the writer, in rows: more than any plan has, because a sender may not lose a
row."""


def new_run_id() -> str:
    """Return a unique run id; its first digits are part of the requests' ids."""
    return uuid.uuid4().hex


def open_run(run: Path, manifest: Manifest) -> TraceWriter:
    """Create the run directory `run`; raises TraceError when it already holds a run."""
    if (run / MANIFEST).exists():
        raise TraceError(f"{run}: already holds a run; give -o a new directory")
    create_run(run, manifest)
    source = f"{CLIENT}-{os.getpid()}"
    return TraceWriter(
        run,
        source=source,
        options=WriterOptions(queue_items=QUEUE_ROWS, sampler=GpuSampler(source)),
    )


def row_of(
    shot: Shot, sent: Sent, body: Mapping[str, Any], *, due_unix_s: float | None = None
) -> ClientRow:
    """Return the row of `shot`."""
    answer, counts = sent.answer, sent.counts
    output = counts.output_tokens
    whole = sent.ended == Ended.ANSWERED
    checked = outcome_of(shot.prompt, answer, output) if whole else UNCHECKED
    return ClientRow(
        time_s=time.time(),
        request=sent.request,
        response=answer.response,
        order=shot.order,
        condition=shot.condition,
        pair=shot.prompt.key,
        repeat=shot.repeat,
        warmup=shot.warmup,
        concurrency=shot.level.concurrency,
        rate=shot.level.rate,
        due_s=due_unix_s,
        sent_s=sent.sent_unix_s,
        ended=sent.ended,
        status=sent.status,
        error=sent.error,
        attempts=sent.attempts,
        waited_s=sent.waited_s,
        ttft_s=sent.pieces[0] - sent.sent if sent.pieces else None,
        tpot_s=_tpot_s(sent, output),
        e2e_s=sent.ended_s - sent.begun_s if sent.attempts else None,
        gaps_s=[b - a for a, b in itertools.pairwise(sent.pieces)] if sent.pieces else None,
        prompt_tokens=counts.prompt_tokens,
        output_tokens=output,
        cached_tokens=counts.cached_tokens,
        finish_reason=answer.finish_reason,
        temperature=_number(body.get("temperature")),
        max_tokens=_count(body.get("max_completion_tokens", body.get("max_tokens"))),
        verified=counts.verified,
        accepted=counts.accepted,
        digest=answer.digest() if sent.pieces else None,
        json_ok=checked.json_ok,
        tool_ok=checked.tool_ok,
        early_stop=checked.early_stop,
        garbled=checked.garbled,
        looping=checked.looping,
    )


def text_file(run: Path) -> TextFile:
    """Create the file for the texts of a run. Raises TraceError."""
    try:
        return TextFile(run)
    except OSError as error:
        raise unwritable(run, error) from error


def text_of(shot: Shot, sent: Sent, recorded: Callable[[str], str]) -> Mapping[str, Any]:
    """Return a line for `TextFile`; `recorded` removes secrets that the server repeats."""
    prompt, answer = shot.prompt, sent.answer
    calls = [f"\n{call.name}({call.arguments})" for _, call in sorted(answer.calls.items())]
    pieces = [*answer.parts, *calls]
    if (clean := recorded("".join(pieces))) != "".join(pieces):
        pieces = [clean]
    return {
        "response": answer.response,
        "prompt": list(prompt.messages) if prompt.text is None else prompt.text,
        "answer": pieces,
        "by_round": not calls and len(pieces) == _pieces_by_round(sent),
    }


def _pieces_by_round(sent: Sent) -> int | None:
    """Return the number of pieces of an answer whose first token and rounds are streamed one by
    one; None if a step without a draft is among them, or counts are missing.

    The last round is cut at the end of the answer, whose token has no text.
    """
    rounds, tokens = sent.counts.accepted, sent.counts.output_tokens
    if not rounds or tokens is None:
        return None
    last = tokens - 1 - sum(rounds[:-1]) - len(rounds[:-1])
    if not 1 <= last <= rounds[-1] + 1:
        return None
    return 1 + len(rounds) - (last == 1 and sent.answer.finish_reason == "stop")


def _tpot_s(sent: Sent, output: int | None) -> float | None:
    if not output or output < 2 or len(sent.pieces) < 2:
        return None
    return (sent.pieces[-1] - sent.pieces[0]) / (output - 1)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
