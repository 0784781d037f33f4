"""Measure the time that exporting takes from a serving thread, without an engine.

    PYTHONPATH=tests python benchmarks/export_threads.py [--repeats 8] [--json FILE]

One thread represents the engine: each step works for some milliseconds, half of the time holding
the interpreter lock, and passes 32 chains (K = 8) and their verification to real trace writers. The
modes differ in what is exported. Each runs in a separate process, and they take turns in a rotating
order. Every step is recorded and the export runs every second, both far more often than in
production. Ratios are to `off` of the same turn. The process's CPU time counts every thread's work
and is an upper bound of what exporting can take from serving; wall time also contains the machine's
noise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.collector import HANG, http
from support.runs import Spec, manifest, rows

from driftscope.telemetry.export.engine_telemetry import EngineTelemetry
from driftscope.telemetry.export.settings import OTLP, settings_from
from driftscope.telemetry.export.worker_telemetry import WorkerTelemetry
from driftscope.trace.format.records import DraftRow, RequestRow, StepRow, VerifyRow
from driftscope.trace.format.row_block import Block, Lists
from driftscope.trace.format.schema import schema_of
from driftscope.trace.write.run_directory import create_run
from driftscope.trace.write.writer import TraceWriter

HANGS = "collector hangs"
CPU, WALL = 0, 1
MODES = ("off", "metrics", "metrics and spans", HANGS)
CHAINS, STEPS = 32, 300
REQUEST_EVERY = 5
"""Number of steps between two finished requests."""
LOOPS, SIZE = 20_000, 192
"""Size of the step's own work: a Python loop, and a matrix product, which releases the interpreter
lock."""
EVERY_SECOND = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "OTEL_BSP_SCHEDULE_DELAY": "1000"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        good, bad = (stack.enter_context(_process(_collect, hangs)) for hangs in (False, True))
        good_url, bad_url = good.recv(), bad.recv()
        urls = {"off": None, HANGS: bad_url}
        engines = {
            mode: stack.enter_context(
                _process(_serve, str(Path(folder) / mode), mode, urls.get(mode, good_url))
            )
            for mode in MODES
        }
        turns = [_round(engines, number) for number in range(1 + options.repeats)][1:]
    print(f"{options.repeats} turns of {STEPS} steps, {CHAINS} chains each")
    print(f"{'':20} {'process CPU per step':>22}   {'ratio to off':24} wall time per step, ratio")
    found = {}
    for mode in MODES:
        found[mode] = [_ratio(turns, mode, kind) for kind in (CPU, WALL)]
        step = statistics.median(turn[mode][CPU] for turn in turns) * 1000
        cpu, wall = (f"{m:.3f} ({low:.3f}-{high:.3f})" for m, low, high in found[mode])
        print(f"{mode:20} {step:19.2f} ms   {cpu:24} {wall}")
    if options.json:
        options.json.write_text(json.dumps({"turns": turns, "ratios": found}, indent=1) + "\n")


def _round(engines: dict[str, Any], number: int) -> dict[str, tuple[float, float]]:
    first = number % len(MODES)
    out = {}
    for mode in (*MODES[first:], *MODES[:first]):
        engines[mode].send("turn")
        out[mode] = engines[mode].recv()
    return out


def _serve(pipe: Any, run: str, mode: str, url: str | None) -> None:
    """Run one engine in a separate process: one turn per request."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    engine = _engine(Path(run), mode, url)
    while pipe.recv() == "turn":
        pipe.send(engine.turn())


@dataclass(slots=True)
class Engine:
    """The two writers of an engine core and a worker."""

    core: TraceWriter
    worker: TraceWriter
    speaker: EngineTelemetry | None
    steps: int = 0

    def turn(self) -> tuple[float, float]:
        """Return the seconds per step: CPU time of the process with all threads, and wall time."""
        begun = time.process_time(), time.perf_counter()
        for _ in range(STEPS):
            self._step()
        ended = time.process_time(), time.perf_counter()
        return (ended[0] - begun[0]) / STEPS, (ended[1] - begun[1]) / STEPS

    def _step(self) -> None:
        _work()
        self.steps += 1
        self.worker.put(lambda: [_CHAINS, _STEP])
        self.core.put(lambda: _VERIFIED)
        if self.steps % REQUEST_EVERY == 0:
            self.core.put(_REQUEST)


def _engine(run: Path, mode: str, url: str | None) -> Engine:
    create_run(run, manifest(_SPEC))
    core, worker = (TraceWriter(run, source=name) for name in ("engine0-1", "worker0-2"))
    if url is None:
        return Engine(core, worker, None)
    traces = {"OTEL_TRACES_EXPORTER": "none"} if mode == "metrics" else {}
    settings = settings_from({OTLP: url, **EVERY_SECOND, **traces})
    assert settings is not None
    speaker = EngineTelemetry(run, core.source, settings, core.status)
    core.subscribe(speaker.on_batches, speaker.flush)
    publisher = WorkerTelemetry(run, worker.source, worker.status)
    worker.subscribe(publisher.on_batches, publisher.publish)
    return Engine(core, worker, speaker)


@contextlib.contextmanager
def _process(target: Any, *arguments: Any) -> Any:
    """Run `target` in a fresh interpreter; yield this side's end of its pipe."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _collect(pipe: Any, hangs: bool) -> None:
    with http() as collector:
        if hangs:
            collector.behaviour = HANG
        pipe.send(collector.url)
        pipe.recv()


def _work() -> None:
    total = 0
    for number in range(LOOPS):
        total += number
    for _ in range(2):
        _MATRIX @ _MATRIX


def _block(drafts: list[DraftRow]) -> Block:
    columns: dict[str, Any] = {}
    for field in schema_of("draft"):
        values = [getattr(row, field.name) for row in drafts]
        if isinstance(values[0], list | tuple):
            columns[field.name] = Lists(values=np.array(values, dtype=np.float32))
        else:
            columns[field.name] = values
    return Block(record="draft", rows=len(drafts), columns=columns)


def _ratio(turns: list[Any], mode: str, kind: int) -> tuple[float, float, float]:
    ratios = [turn[mode][kind] / turn["off"][kind] for turn in turns]
    return statistics.median(ratios), min(ratios), max(ratios)


_SPEC = Spec(k=8, conditional=(0.8, 0.7, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5), requests=8, rounds=8)
_ROWS = list(rows(_SPEC))
_CHAINS = _block([row for row in _ROWS if isinstance(row, DraftRow)][:CHAINS])
_VERIFIED = [row for row in _ROWS if isinstance(row, VerifyRow)][:CHAINS]
_STEP = next(row for row in _ROWS if isinstance(row, StepRow))
_REQUEST = next(row for row in _ROWS if isinstance(row, RequestRow))
_MATRIX = np.random.RandomState(1).rand(SIZE, SIZE)

if __name__ == "__main__":
    main()
