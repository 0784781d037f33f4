"""What `driftscope replay` itself costs: processor time per request, against a stub server.

python benchmarks/replay_client.py [--requests 2000] [--concurrency 64] [--json FILE]

The server is tests/support/stub_server.py in a process of its own, so that its time is not counted.
Everything that the replay does is: sending, reading eight pieces per answer, the checks of the
answers, and the writing of the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from driftscope.workloads.plan import Level
from driftscope.workloads.prompt import chat
from driftscope.workloads.replay import Order, replay
from driftscope.workloads.suite import parse_suite

TESTS = Path(__file__).parent.parent / "tests"
SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from support.stub_server import stub_server
with stub_server() as stub:
    print(stub.url, flush=True)
    sys.stdin.read()
"""
SUITE = parse_suite("{prompts: chat, baseline: as asked, conditions: {as asked: []}}", "plain")
GOAL = 0.05
"""Share of a core at 100 requests per second."""
RATE = 100.0


def measure(url: str, requests: int, concurrency: int) -> dict[str, float]:
    """Processor seconds of this process, over a closed loop."""
    prompts = [chat(f"p{n}", f"question {n} " + "word " * 100) for n in range(requests)]
    with tempfile.TemporaryDirectory() as folder:
        order = Order(
            url=url, suite=SUITE, run=Path(folder) / "run", prompts=prompts, warmup=0,
            levels=[Level(concurrency=concurrency)],
        )  # fmt: skip
        cpu, wall = time.process_time(), time.perf_counter()
        done = replay(order)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert done.answered == requests, done.ended
    return {
        "requests": requests,
        "concurrency": concurrency,
        "requests_per_s": requests / wall,
        "cpu_ms_per_request": 1000 * cpu / requests,
        "core_share_at_100_per_s": cpu / requests * RATE,
        "goal": GOAL,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(TESTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        measure(url, 100, options.concurrency)
        found = measure(url, options.requests, options.concurrency)
    finally:
        server.kill()
        server.wait()
    for name, value in found.items():
        print(f"{name:26} {value:.3g}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
