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
from typing import Any

from support.collector import HANG, Collector, http
from support.engine_process.serving import Server, serve

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
            mode: stack.enter_context(
                _server(Path(folder), mode, hanging if mode == HANGS else collector)
            )
            for mode in MODES
        }
        for server in servers.values():
            _turn(server)  # warm-up
        turns = [_round(servers, number) for number in range(options.repeats)]
        batches, spans = len(collector.metrics), len(collector.all_spans())
    found = {mode: _ratio(turns, mode) for mode in MODES}
    print(
        f"{options.repeats} turns of {CLIENTS} clients x {TOKENS} tokens; the collector took "
        f"{batches} batches of metrics and {spans} spans"
    )
    for mode, (middle, least, most) in found.items():
        tpot = statistics.median(turn[mode] for turn in turns) * 1000
        print(f"{mode:20} {tpot:7.2f} ms per token   {middle:.3f} ({least:.3f}-{most:.3f})")
    words = (f"{mode} {m:.3f} ({least:.3f}-{most:.3f})" for mode, (m, least, most) in found.items())
    ResultsFile(options.json, "cpu", again=True).write(
        complete=True,
        verdict="time per token as a ratio to off: " + ", ".join(words),
        turns=turns,
        ratios=found,
        batches=batches,
        spans=spans,
    )


@contextlib.contextmanager
def _server(folder: Path, mode: str, collector: Collector) -> Any:
    home = folder / mode.replace(" ", "-")
    home.mkdir()
    set_ = {"OTEL_METRIC_EXPORT_INTERVAL": INTERVAL_MS, "OTEL_BSP_SCHEDULE_DELAY": INTERVAL_MS}
    if mode == "metrics":
        set_["OTEL_TRACES_EXPORTER"] = "none"
    before = {name: os.environ.get(name) for name in set_}
    os.environ.update(set_)
    export = () if mode == "off" else ("--otlp", collector.url)
    with serve(home, "--budget", "1%", *export) as server:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        yield server


def _round(servers: dict[str, Server], number: int) -> dict[str, float]:
    first = number % len(MODES)
    return {mode: _turn(servers[mode]) for mode in (*MODES[first:], *MODES[:first])}


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


def _ratio(turns: list[dict[str, float]], mode: str) -> tuple[float, float, float]:
    ratios = [turn[mode] / turn["off"] for turn in turns]
    return statistics.median(ratios), min(ratios), max(ratios)


if __name__ == "__main__":
    main()
