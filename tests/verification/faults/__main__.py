"""Run the fault campaign: `make faults`, or `FAULTS_MINUTES=60 make faults` for longer."""

from __future__ import annotations

import argparse
import os
import sys

from verification.faults.campaign import campaign, table


def main() -> int:
    """Run the campaign; return 0 if nothing failed, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    minutes = float(os.environ.get("FAULTS_MINUTES", "5"))
    parser.add_argument("--seconds", type=float, default=60 * minutes)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--first", type=int, help="number of the first case; another each time")
    wanted = parser.parse_args()
    if wanted.first is None:
        wanted.first = int.from_bytes(os.urandom(4), "big") * 1000
    print(f"from case {wanted.first} on")
    found = campaign(wanted.seconds, wanted.processes, wanted.first)
    for line in table(found):
        print(line)
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
