"""A day of a generated fleet as rollups: time and memory of analyze, compare and check.

    PYTHONPATH=.:tests python -m verification.rollups

Two days of 200 replicas x 1,440 minutes are generated; on the second, pod-0 accepts a fifth less.
Exits with 1 if a command takes longer than MOST_S or more than MOST_MIB, or does not name pod-0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.calibration.fleets import A_FIFTH, KINDS, Fleet, K, draw
from driftscope.trace.rollups import SCHEMA, write_rollups

MOST_S, MOST_MIB, MINUTES, BEGIN_MS = 10.0, 1024.0, 1440, 1_795_737_600_000
SHOWN = 5
REGIONS = {"chat": "prose", "code": "code", "json": "json"}
"""Kind of text of each label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One command that has ended."""

    code: int
    seconds: float
    mib: float
    output: str


def table_of(fleet: Fleet, replica: int, day: int, minutes: int) -> pa.Table:
    """Return the rollup of one replica and day."""
    source = np.random.default_rng([day, replica])
    rounds, accepted = draw(fleet, replica, source, minutes)
    counts = np.broadcast_to(rounds[..., None], accepted.shape)
    minute, kind, depth = np.nonzero(counts)
    begin = BEGIN_MS + day * 86_400_000
    labels, contexts = zip(*KINDS, strict=True)
    columns = {
        "minute": pa.array(begin + 60_000 * minute).cast(pa.timestamp("ms", tz="UTC")),
        "replica": pa.repeat(f"pod-{replica}", len(minute)),
        "model": pa.repeat("target", len(minute)),
        "drafter": pa.repeat("drafter", len(minute)),
        "adapter": pa.repeat("", len(minute)),
        "label": pa.array(np.array(labels)[kind]),
        "region": pa.array([REGIONS[label] for label in labels]).take(pa.array(kind)),
        "context": pa.array(np.array(contexts)[kind]),
        "depth": pa.array(depth + 1),
        "rounds": pa.array(counts[minute, kind, depth]),
        "accepted": pa.array(accepted[minute, kind, depth]),
    }
    return pa.table(columns, schema=SCHEMA)


def driftscope(*words: str) -> Done:
    """Run one command as a process of its own."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "driftscope", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    code, seconds = os.waitstatus_to_exitcode(status), time.monotonic() - begun
    return Done(code=code, seconds=seconds, mib=usage.ru_maxrss / 1024, output=output)


def main() -> None:
    """Generate both days, run the commands, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m verification.rollups")
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--minutes", type=int, default=MINUTES)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="driftscope-rollups-") as name:
        folder, rows = Path(name), 0
        for day, sick in enumerate((0.0, A_FIFTH)):
            fleet = Fleet(replicas=asked.replicas, rounds=120.0, sick=sick)
            for replica in range(asked.replicas):
                table = table_of(fleet, replica, day, asked.minutes)
                write_rollups(folder, f"pod-{replica}", table)
                rows += table.num_rows
        days = sorted(map(str, folder.iterdir()))
        size = sum(path.stat().st_size for path in folder.rglob("*.parquet")) / 2**20
        print(f"2 days of {asked.replicas} replicas x {asked.minutes} minutes: {rows:,} rows")
        print(f"{size:.0f} MiB of Parquet, {K} draft tokens, {len(KINDS)} kinds of rounds\n")
        report = str(folder / "report.html")
        json_report = str(folder / "report.json")
        commands = {
            "analyze, healthy": ("analyze", days[0], "-o", report),
            "analyze, pod-0 sick": ("analyze", days[1], "--format", "json", "-o", json_report),
            "compare": ("compare", *days),
            "check, healthy": ("check", days[0], "--fail-on", "fleet_replica_differs"),
            "check, pod-0 sick": ("check", days[1], "--fail-on", "fleet_replica_differs"),
        }
        done = {what: driftscope(*words) for what, words in commands.items()}
        cells = json.loads(Path(json_report).read_text())["replays"][0]["cells"]
    print(f"{'command':22}{'seconds':>8}{'peak MiB':>10}{'exit':>6}")
    for what, one in done.items():
        print(f"{what:22}{one.seconds:8.1f}{one.mib:10.0f}{one.code:6}")
    print("\nreplica     tokens/round   to the others, 95% for all replicas together")
    replicas = [cell for cell in cells if cell["length_ratio"]]
    for cell in replicas[:SHOWN]:
        ratio, ends = cell["length_ratio"], cell["length_ratio"]["interval"]
        print(
            f"{cell['condition']:12}{cell['mean_length']:12.3f}   "
            f"{ratio['value']:.3f} ({ends['low']:.3f} to {ends['high']:.3f})"
        )
    print(f"\n{done['check, pod-0 sick'].output.strip()}\n{done['compare'].output.strip()[:600]}")
    named = "pod-0 accepts" in done["analyze, pod-0 sick"].output
    codes = [one.code for one in done.values()] == [0, 0, 0, 0, 3]
    bounded = all(one.seconds <= MOST_S and one.mib <= MOST_MIB for one in done.values())
    if not (named and codes and bounded):
        sys.exit(f"breach: named {named}, exit codes {codes}, time and memory {bounded}")


if __name__ == "__main__":
    main()
