"""Memory of a server under steady load, with the probe and without, side by side.

    PYTHONPATH=tests python -m verification.memory --minutes 20

Both servers get the same requests, one a core; the anonymous memory of all their processes is read
every few seconds. The slope is fitted to the second half, when caches are full.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from support.engine_process.serving import Server, serve_all

CONCURRENT, TOKENS, EVERY_S = 4, 48, 5.0
BLOCKS = "--num-gpu-blocks-override", "64"
"""Cache of few blocks: a CPU's becomes resident block by block, which looks like a leak."""
OPTIONS = {"probe": BLOCKS, "disabled": BLOCKS}
ENVIRON = {"disabled": {"DRIFTSCOPE_DISABLE": "1"}}


def anonymous_mb(server: Server) -> float:
    """Return the anonymous memory of a server's processes."""
    total = 0
    for pid in (server.process.pid, *server.children()):
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        total += int(found.group(1)) if found else 0
    return total / 1024


def load(server: Server, name: str, over: threading.Event, sent: list[int]) -> None:
    """Send requests until `over`, with prompts of changing length."""
    number = 0
    while not over.is_set():
        prompt = [100 + (number * 7 + at) % 800 for at in range(16 + number % 64)]
        server.complete(f"{name}-{number}", prompt=prompt, max_tokens=TOKENS)
        number += 1
        sent.append(1)


def slope(minutes: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Return the slope a minute and its standard error over blocks of samples, which are not
    independent one by one."""
    blocks = np.array_split(np.arange(len(values)), 8)
    x, y = (np.array([one[at].mean() for at in blocks]) for one in (minutes, values))
    (rate, _), covariance = np.polyfit(x, y, 1, cov=True)
    return float(rate), float(covariance[0, 0] ** 0.5)


def main() -> None:
    """Print memory over time and the two slopes."""
    parser = argparse.ArgumentParser(prog="python -m verification.memory")
    parser.add_argument("--minutes", type=float, default=20)
    minutes = parser.parse_args().minutes
    with (
        tempfile.TemporaryDirectory(prefix="driftscope-memory-") as folder,
        serve_all(Path(folder), OPTIONS, ENVIRON) as servers,
    ):
        over, rows = threading.Event(), list[tuple[float, ...]]()
        sent: dict[str, list[int]] = {name: [] for name in servers}
        threads = [
            threading.Thread(target=load, args=(server, f"{name}{at}", over, sent[name]))
            for name, server in servers.items()
            for at in range(CONCURRENT)
        ]
        for thread in threads:
            thread.start()
        start = time.monotonic()
        while (passed := (time.monotonic() - start) / 60) < minutes:
            time.sleep(EVERY_S)
            rows.append((passed, *(anonymous_mb(server) for server in servers.values())))
        over.set()
        for thread in threads:
            thread.join()
    table = np.array(rows)
    late = table[:, 0] > minutes / 2
    print(
        "| server | requests | MB at the start | at half | at the end | MB a minute, second half |"
    )
    print("|---|---|---|---|---|---|")
    for column, name in enumerate(servers, start=1):
        values = table[:, column]
        rate, error = slope(table[late, 0], values[late])
        cells = (name, len(sent[name]), *(f"{values[at]:.0f}" for at in (0, len(values) // 2, -1)))
        print(f"| {' | '.join(map(str, cells))} | {rate:+.2f} +- {1.96 * error:.2f} |")


if __name__ == "__main__":
    main()
