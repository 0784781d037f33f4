"""Time the checks of a run's checksums and bounds, as shares of its whole analysis.

Runs simulated runs with K = 7 in one process: the CRC-32 of every sealed file, then the query for
the minimum and maximum of every column, then the whole of `analyze`, checks included.

    PYTHONPATH=.:tests python benchmarks/checks.py [--rounds 1e6] [--repeat 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.scale import analyze, make
from driftscope.analysis.query.query_engine import DuckDB
from driftscope.analysis.query.record_views import QUERIED, check_view, open_run
from driftscope.trace.format.segment import digest_of
from driftscope.trace.format.status import read_statuses
from driftscope.trace.read.integrity import damaged_files


def note_digests(run: Path) -> None:
    """Write the digests into the statuses, as the writer does: simulated runs have none."""
    for path in run.glob("status-*.json"):
        status = json.loads(path.read_text())
        files = run.glob(f"*-{status['source']}-*.parquet")
        path.write_text(json.dumps({**status, "digests": {f.name: digest_of(f) for f in files}}))


def seconds(action: Callable[[], object], repeat: int) -> float:
    """Return the median time of an action, in seconds."""
    found = []
    for _ in range(repeat):
        begun = time.perf_counter()
        action()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=float, default=1e6)
    parser.add_argument("--repeat", type=int, default=3)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="driftscope-checks-") as folder:
        run = make(Path(folder), int(wanted.rounds))
        note_digests(run)
        size = sum(path.stat().st_size for path in run.iterdir())
        engine = DuckDB()
        open_run(run, engine)

        def bounds() -> None:
            for record in QUERIED:
                check_view(engine, f"{record}_all", record, run)

        whole = seconds(lambda: analyze(run), wanted.repeat)
        print(f"{wanted.rounds:.0f} rounds, {size / 1e6:.0f} MB; analyze {whole:.2f} s")
        for name, action in {
            "checksums": lambda: damaged_files(run, read_statuses(run)),
            "bounds": bounds,
        }.items():
            took = seconds(action, wanted.repeat)
            print(f"{name:10} {took:7.3f} s  {took / whole:6.1%} of analyze")
        engine.close()


if __name__ == "__main__":
    main()
