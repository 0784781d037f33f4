"""Measure the cost of exporting as TPOT with nothing exported, with metrics, with metrics and
spans, and with both to a collector that accepts requests and never answers.

    PYTHONPATH=.:tests python benchmarks/export.py [--repeats 8] [--json FILE]

Four servers of the tiny trio record with driftscope's default budget and differ in what they
export. They take turns in a rotating order, so that temporary load on the machine slows all of
them. The collector decodes every batch. Export happens every second, 60 times as often as by
default, and the collector shares the machine's cores with the engines. Ratios are of time per
output token to `off` of the same turn.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

from support.collector import HANG, Collector, http
from support.engine_process.serving import Server, serve

from benchmarks.engines import in_turn, spread
from benchmarks.results_file import ResultsFile
from driftscope_lab.trio import load_prompts

HANGS = "collector hangs"
MODES = ("off", "metrics", "metrics and spans", HANGS)
CLIENTS, TOKENS = 8, 128
INTERVAL_MS = "1000"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        collector, hanging = stack.enter_context(http()), stack.enter_context(http())
        hanging.behaviour = HANG
        servers = {
            mode: _server(stack, Path(folder), mode, hanging if mode == HANGS else collector)
            for mode in MODES
        }
        turns = [
            {mode: _turn(servers[mode]) for mode in order}
            for order in in_turn(MODES, options.repeats)
        ]
        batches, spans = len(collector.metrics), len(collector.all_spans())
    found = {mode: [turn[mode] / turn["off"] for turn in turns] for mode in MODES}
    print(
        f"{options.repeats} turns of {CLIENTS} clients x {TOKENS} tokens; the collector took "
        f"{batches} batches of metrics and {spans} spans"
    )
    for mode, ratios in found.items():
        tpot = statistics.median(turn[mode] for turn in turns) * 1000
        print(f"{mode:20} {tpot:7.2f} ms per token   {spread(ratios)}")
    words = (f"{mode} {spread(ratios)}" for mode, ratios in found.items())
    ResultsFile(options.json, "cpu", again=True).write(
        complete=True,
        verdict="time per token as a ratio to off: " + ", ".join(words),
        turns=turns,
        batches=batches,
        spans=spans,
    )


def _server(stack: contextlib.ExitStack, folder: Path, mode: str, collector: Collector) -> Server:
    home = folder / mode.replace(" ", "-")
    home.mkdir()
    set_ = {"OTEL_METRIC_EXPORT_INTERVAL": INTERVAL_MS, "OTEL_BSP_SCHEDULE_DELAY": INTERVAL_MS}
    if mode == "metrics":
        set_["OTEL_TRACES_EXPORTER"] = "none"
    export = () if mode == "off" else ("--otlp", collector.url)
    with patch.dict(os.environ, set_):
        server = stack.enter_context(serve(home, "--budget", "1%", *export))
    _turn(server)  # warm-up
    return server


def _turn(server: Server) -> float:
    """Return the seconds per output token and client."""
    prompts = load_prompts()[:CLIENTS]
    with ThreadPoolExecutor(CLIENTS) as pool:
        begun = time.perf_counter()
        asked = [
            pool.submit(
                server.complete,
                f"turn-{n}",
                prompt=prompt.in_distribution,
                add_special_tokens=False,
                max_tokens=TOKENS,
            )
            for n, prompt in enumerate(prompts)
        ]
        for answer in asked:
            answer.result()
        return (time.perf_counter() - begun) / TOKENS


if __name__ == "__main__":
    main()
