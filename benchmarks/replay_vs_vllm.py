"""Compare `driftscope replay` with `vllm bench serve`: same server, same prompts, same loads.

PYTHONPATH=. python benchmarks/replay_vs_vllm.py [--stub] [--concurrency 1,4] [--times 5]
    [--requests 24] [--json FILE]

Serves the shipped EAGLE-3.1 trio and lets both tools send the same chat requests in turn, warm-up
first and the others in the same order. It prints the medians of time per output token and of
throughput side by side, and the median of the turns' ratios with minimum and maximum. The tools
take turns because other load on the machine affects both by more than they differ. With --stub both
use the stub server of tests/support, which sends a piece every 20 ms, so that its times do not
depend on that load.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.replay_client import server as stub
from driftscope.analysis.replays.replay_reading import summarise_replay
from driftscope.cli.bench import contenders_of
from driftscope.trace.read.reader import read_trace
from driftscope.workloads.bench.managed_server import running
from driftscope.workloads.client.replay import Order, replay
from driftscope.workloads.suites.plan import Level, plan
from driftscope.workloads.suites.prompt import Prompt, chat
from driftscope.workloads.suites.prompt_sources import prompts_of
from driftscope.workloads.suites.suite import parse_suite
from driftscope_lab.trio import trio_path

WITHIN = 0.05
MAX_TOKENS = 128
WARMUP = 4
PIECE_S = 0.02
"""Time between the pieces of the stub server, in seconds."""
MODEL = "tiny"
SUITE = parse_suite(
    f"{{prompts: trio, settings: {{max_tokens: {MAX_TOKENS}, temperature: 0, ignore_eos: true}}, "
    "baseline: as asked, conditions: {as asked: []}}",
    "plain",
)
DONE = "<done>"
BENCH = f"""
import argparse, json, sys
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
for line in sys.stdin:
    main(parser.parse_args(json.loads(line)))
    print()
    print("{DONE}", flush=True)
"""
"""Program that runs `vllm bench serve` each time it receives arguments, because its start-up takes
longer than most runs. vLLM's own entry point needs a distribution that a CPU build lacks."""

Figures = dict[str, float]
Row = dict[str, Any]
"""A load, and the figures of each tool by turn."""


def asked_of(count: int) -> list[Prompt]:
    """Return the user turns of the held-out prompts."""
    texts = [str(prompt.messages[-1]["content"]) for prompt in prompts_of("trio")[:count]]
    return [chat(f"p{n}", text) for n, text in enumerate(texts)]


def in_order(asked: list[Prompt], level: Level) -> list[str]:
    """Return the texts in the order in which a replay sends them."""
    shots = plan({"as asked": asked}, [level], warmup=WARMUP, seed=SUITE.seed)
    return [str(shot.prompt.messages[-1]["content"]) for shot in shots if not shot.warmup]


def by_replay(url: str, asked: list[Prompt], level: Level, folder: Path) -> Figures:
    """Return driftscope's figures."""
    done = replay(
        Order(url=url, suite=SUITE, run=folder, warmup=WARMUP, levels=[level], prompts=asked)
    )
    assert done.answered == done.planned, done.ended
    (cell,) = summarise_replay(read_trace(folder), "replay").cells
    assert cell.tpot_s is not None and cell.throughput is not None and cell.ttft_s is not None
    return {
        "tpot_ms": 1000 * cell.tpot_s,
        "tokens_per_s": cell.throughput,
        "ttft_ms": 1000 * cell.ttft_s,
    }


class VllmBench:
    """vLLM's own benchmark, started once."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, "-c", BENCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
        )

    def run(self, arguments: list[str]) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        said = iter(self._process.stdout.readline, "")
        if DONE not in (line.strip() for line in said):
            raise SystemExit(f"vllm bench serve failed:\n{self._log.read_text()[-3000:]}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def by_vllm(bench: VllmBench, url: str, asked: list[Prompt], level: Level, folder: Path) -> Figures:
    """Return vLLM's own figures."""
    folder.mkdir()
    rows = "".join(json.dumps({"prompt": text}) + "\n" for text in in_order(asked, level))
    (folder / "prompts.jsonl").write_text(rows)
    options = {
        "backend": "openai-chat",
        "base-url": url,
        "endpoint": "/v1/chat/completions",
        "model": MODEL,
        "tokenizer": str(trio_path() / "target"),
        "dataset-name": "custom",
        "dataset-path": str(folder / "prompts.jsonl"),
        "custom-output-len": str(MAX_TOKENS),
        "num-prompts": str(len(asked)),
        "max-concurrency": str(level.concurrency),
        "num-warmups": str(WARMUP),
        "temperature": "0",
        "result-dir": str(folder),
        "result-filename": "result.json",
    }
    flags = ["skip-chat-template", "disable-shuffle", "ignore-eos", "save-result", "disable-tqdm"]
    values = [part for name, value in options.items() for part in (f"--{name}", value)]
    bench.run([*(f"--{flag}" for flag in flags), *values])
    path = folder / "result.json"
    found = json.loads(path.read_text())
    assert found["completed"] == len(asked), found["completed"]
    return {
        "tpot_ms": found["mean_tpot_ms"],
        "tokens_per_s": found["output_throughput"],
        "ttft_ms": found["mean_ttft_ms"],
    }


def compare(url: str, levels: list[int], times: int, count: int, folder: Path) -> Iterator[Row]:
    """Yield the figures of both tools by load, turn by turn."""
    asked, bench = asked_of(count), VllmBench(folder / "vllm.log")
    tools: dict[str, Callable[..., Figures]] = {
        "driftscope": by_replay,
        "vllm": partial(by_vllm, bench),
    }
    try:
        for level in levels:
            found: Row = {"concurrency": level, **{name: [] for name in tools}}
            for turn in range(times):
                for name in sorted(tools, reverse=turn % 2 == 0):
                    place = folder / f"{name}-{level}-{turn}"
                    found[name].append(tools[name](url, asked, Level(concurrency=level), place))
            yield found
    finally:
        bench.close()


def show(row: Row) -> bool:
    """Print the figures side by side; return whether time per token and throughput agree."""
    fine = True
    for name in ("tpot_ms", "tokens_per_s", "ttft_ms"):
        ours, theirs = ([run[name] for run in row[tool]] for tool in ("driftscope", "vllm"))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        ratio = statistics.median(ratios)
        fine &= name == "ttft_ms" or abs(ratio - 1) <= WITHIN
        print(
            f"{row['concurrency']:>4} {name:14} {statistics.median(ours):11.2f} "
            f"{statistics.median(theirs):11.2f}   {ratio:.3f} "
            f"({min(ratios):.3f}-{max(ratios):.3f})",
            flush=True,
        )
    return fine


@contextlib.contextmanager
def _trio(folder: Path) -> Iterator[str]:
    (contender,) = contenders_of(
        "trio", ["eagle31"], [4], [], method="eagle3", every=None, no_spec=False
    )
    with running(contender, folder, ready_s=600) as server:
        yield server.url


@contextlib.contextmanager
def _stub() -> Iterator[str]:
    process, url = stub(PIECE_S)
    try:
        yield url
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", default="1,4")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--stub", action="store_true", help="A server whose times are fixed.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    levels = [int(part) for part in options.concurrency.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _stub() if options.stub else _trio(folder / "server") as url:
            print(f"{'load':>4} {'figure':14} {'driftscope':>11} {'vllm bench':>11}   ratio")
            rows, fine = [], True
            for row in compare(url, levels, options.times, options.requests, folder):
                rows.append(row)
                fine &= show(row)
    print(f"time per token and throughput within {WITHIN:.0%}: {'yes' if fine else 'NO'}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
