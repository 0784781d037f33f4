"""Sum up what the probe's kernels take in a worker's timeline, and show one recorded round.

PYTHONPATH=. python benchmarks/cuda/timeline.py TIMELINE.json.gz [--json FILE]

TIMELINE is what `overhead.py --profile` leaves, of an engine whose every round is recorded. Kernels
that fall into the time between two recorded rounds' masses are one round; the middle one is shown.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

OURS = (
    "clear_chain",
    "enter_forward",
    "measure_state",
    "leave_forward",
    "_partial",
    "_combine",
)
"""Names of the probe's kernels."""
ONCE = "_partial"
"""Kernel that runs once a recorded round, for a drafter with one layer."""
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
NAME = 60


def device_events(path: Path) -> list[dict[str, Any]]:
    """Return what the device did, in order: name, start and duration in microseconds."""
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kept = [
        {"name": each["name"][:NAME], "start_us": each["ts"], "us": each["dur"]}
        for each in events
        if each.get("ph") == "X" and each.get("cat") in ON_DEVICE
    ]
    return sorted(kept, key=lambda each: float(each["start_us"]))


def summary(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the probe's time per recorded round, by kernel, and the middle round's events."""
    at = [number for number, each in enumerate(events) if each["name"] == ONCE]
    total: dict[str, list[float]] = defaultdict(list)
    for each in events[at[0] + 1 : at[-1] + 1]:
        if each["name"] in OURS:
            total[each["name"]].append(each["us"])
    rounds = len(at) - 1
    middle = len(at) // 2
    first, last = at[middle - 1] + 1, at[middle]
    begun = events[first]["start_us"]
    return {
        "rounds": rounds,
        "us_per_round": {
            name: {"launches": len(spent) / rounds, "us": round(sum(spent) / rounds, 2)}
            for name, spent in sorted(total.items())
        },
        "one_round": [
            [each["name"], round(each["start_us"] - begun, 1), round(each["us"], 1)]
            for each in events[first : last + 3]
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("timeline", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = summary(device_events(options.timeline))
    for name, row in found["us_per_round"].items():
        print(f"{name:10} {row['launches']:5.1f} launches a round {row['us']:7.2f} us")
    print(f"{sum(row['us'] for row in found['us_per_round'].values()):.1f} us a round")
    if options.json:
        options.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
