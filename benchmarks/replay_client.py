"""What `driftscope replay` itself costs: processor time per request, against a stub server.

python benchmarks/replay_client.py [--requests 2000] [--concurrency 64] [--times 5] [--json FILE]

The server is tests/support/stub_server.py in a process of its own, so that its time is not counted.
A replay is everything that it does: planning, sending, reading eight pieces per answer, the checks
of the answers, and the writing of the run. SideThread it, in turn with it, others send the same
requests: aiohttp alone, which is below a replay, bytes that nobody looks at; openai's client over
it, such bytes too; and openai's client as its users use it, an object for each event. The last row
is an open loop of 100 requests per second whose pieces come one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import orjson

from driftscope.workloads.client.replay import Order, replay
from driftscope.workloads.client.request_body import body_of
from driftscope.workloads.suites.plan import Level
from driftscope.workloads.suites.prompt import Prompt, chat
from driftscope.workloads.suites.suite import parse_suite

TESTS = Path(__file__).parent.parent / "tests"
SERVER = """
import sys
sys.path.insert(0, sys.argv[1])
from support.stub_server import stub_server
with stub_server(piece_s=float(sys.argv[2])) as stub:
    print(stub.url, flush=True)
    sys.stdin.read()
"""
SUITE = parse_suite("{prompts: chat, baseline: as asked, conditions: {as asked: []}}", "plain")
GOAL = 0.05
"""Share of a core at 100 requests per second."""
RATE = 100.0
PIECE_S = 0.005
"""Between the pieces of an answer in the open loop."""
OPEN_REQUESTS = 1000

Client = openai.AsyncOpenAI | aiohttp.ClientSession
Ask = Callable[[Any, dict[str, Any]], Awaitable[None]]


def prompts(count: int) -> list[Prompt]:
    return [chat(f"p{n}", f"question {n} " + "word " * 100) for n in range(count)]


def whole(url: str, asked: list[Prompt], level: Level) -> float:
    """Processor seconds per request of this process, over a replay."""
    with tempfile.TemporaryDirectory() as folder:
        order = Order(
            url=url, suite=SUITE, run=Path(folder) / "run", prompts=asked, warmup=0, levels=[level]
        )
        begun = time.process_time()
        done = replay(order)
        took = time.process_time() - begun
    assert done.answered == len(asked), done.ended
    return took / len(asked)


def alone(make: Callable[[str], Client], ask: Ask) -> Callable[..., float]:
    """The same of another client and nothing else."""

    def measure(url: str, asked: list[Prompt], level: Level) -> float:
        begun = time.process_time()
        asyncio.run(_all(url, make, ask, [body_of(p, "stub", {}) for p in asked], level))
        return (time.process_time() - begun) / len(asked)

    return measure


async def _all(
    url: str, make: Callable[[str], Client], ask: Ask, bodies: list[dict[str, Any]], level: Level
) -> None:
    waiting = iter(bodies)

    async def user() -> None:
        for body in waiting:
            await ask(client, body)

    client: Any
    async with make(url) as client, asyncio.TaskGroup() as group:
        for _ in range(level.concurrency or 1):
            group.create_task(user())


async def _events(client: openai.AsyncOpenAI, body: dict[str, Any]) -> None:
    async for _ in await client.chat.completions.create(**body):
        pass


async def _bytes(client: openai.AsyncOpenAI, body: dict[str, Any]) -> None:
    async with client.chat.completions.with_streaming_response.create(**body) as response:
        async for _ in response.iter_bytes():
            pass


async def _below(session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    async with session.post("/v1/chat/completions", data=orjson.dumps(body)) as response:
        async for _ in response.content.iter_any():
            pass


def _session(url: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json"},
    )


def _usual(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultAioHttpClient(timeout=None),
    )


REPLAY, BELOW = "replay", "aiohttp alone, bytes"
MEASURED: dict[str, Callable[..., float]] = {
    REPLAY: whole,
    BELOW: alone(_session, _below),
    "openai, bytes": alone(_usual, _bytes),
    "openai, an object per event": alone(_usual, _events),
}


def server(piece_s: float) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(TESTS), str(piece_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def closed_loop(requests: int, concurrency: int, times: int) -> dict[str, list[float]]:
    """Seconds per request, by what was measured, in turn."""
    process, url = server(0.0)
    level, found = Level(concurrency=concurrency), defaultdict(list)
    try:
        for measure in MEASURED.values():
            measure(url, prompts(100), level)
        for _, (name, measure) in itertools.product(range(times), MEASURED.items()):
            found[name].append(measure(url, prompts(requests), level))
    finally:
        process.kill()
        process.wait()
    found["replay's own"] = [a - b for a, b in zip(found[REPLAY], found[BELOW], strict=True)]
    return dict(found)


def open_loop() -> float:
    """Seconds per request at RATE."""
    process, url = server(PIECE_S)
    try:
        return whole(url, prompts(OPEN_REQUESTS), Level(rate=RATE))
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = closed_loop(options.requests, options.concurrency, options.times)
    found["replay, open loop, pieces apart"] = [open_loop()]
    print(
        f"{options.requests} requests at concurrency {options.concurrency}, {options.times} "
        f"times; goal at {RATE:g} requests/s: {GOAL:.0%} of a core"
    )
    print(f"{'':32} {'ms per request':>22} {'of a core':>10}")
    for name, each in found.items():
        spread = f"{1000 * min(each):.2f}-{1000 * max(each):.2f}"
        middle = statistics.median(each)
        print(f"{name:32} {1000 * middle:8.2f} ({spread:>11}) {RATE * middle:10.1%}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
