"""Measure the cost of `analyze` as runs grow: simulated runs of 1e5, 1e6 and 1e7 rounds with K = 7.

Each measurement runs in a separate process, whose peak memory the system reports. The whole
analysis of a run is compared with a bare DuckDB scan of the same columns that sums every element by
request.

    PYTHONPATH=tests python benchmarks/scale.py [--rounds 1e5 1e6 1e7] [--runs DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.results_file import ResultsFile

K = 7
PER_REQUEST = 100
LISTS = ("sink_mass", "prompt_mass", "self_mass", "prenorm_rms", "postnorm_rms", "top1", "entropy")
"""Columns by depth in a sealed file of these runs; all others follow from them."""
KINDS = ("analyze", "scan")


def make(folder: Path, rounds: int) -> Path:
    from support.simulate import Prompts, Truth, simulate

    kinds = (Prompts(label="chat", shift=0.5), Prompts(label="code", tokens=(1000, 4000)))
    truth = Truth(k=K, requests=rounds // PER_REQUEST, rounds=PER_REQUEST, prompts=kinds)
    return simulate(folder / f"{rounds}", truth, zstd_level=1)


def analyze(run: Path) -> int:
    from driftscope.analysis.query.record_views import open_run
    from driftscope.pipeline import conclude, summarise

    found = conclude([summarise(open_run(run), "run")])
    return found.runs[0].rounds


def scan(run: Path) -> int:
    import duckdb

    connection = duckdb.connect()
    lists = ", ".join(f"sum({name}[{d}])" for name in LISTS for d in range(1, K + 1))
    aux = ", ".join(f"sum(aux_rms[{at}])" for at in range(1, 4))
    scalars = "count(*), sum(rate), min(time_s), sum(position), sum(fc_rms), max(k), max(layers)"
    connection.sql(
        f"SELECT replica, request, {scalars}, {lists}, {aux} "
        f"FROM read_parquet('{run}/draft-*.parquet') GROUP BY ALL"
    ).fetchall()
    rows = connection.sql(
        "SELECT replica, request, count(*), sum(accepted), sum(drafted), min(time_s), max(time_s), "
        f"count(reason), sum(position) FROM read_parquet('{run}/verify-*.parquet') GROUP BY ALL"
    ).fetchall()
    connection.sql(
        "SELECT sum(step_s), sum(draft_s), sum(probe_s), count(*) "
        f"FROM read_parquet('{run}/step-*.parquet') GROUP BY k, requests"
    ).fetchall()
    return sum(row[2] for row in rows)


def measured(kinds: Sequence[str], run: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Return, by kind, wall and CPU seconds and peak bytes of the fastest of some processes. Kinds
    take turns, so that other load on the machine affects all of them."""
    best = {kind: {"seconds": math.inf} for kind in kinds}
    for _ in range(repeats):
        for kind in kinds:
            begin = time.perf_counter()
            child = subprocess.Popen([sys.executable, __file__, "--child", kind, str(run)])
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - begin
            if status:
                raise SystemExit(f"{kind} of {run} failed")
            if seconds < best[kind]["seconds"]:
                best[kind] = {
                    "seconds": seconds,
                    "cpu_seconds": usage.ru_utime + usage.ru_stime,
                    "peak_bytes": usage.ru_maxrss * 1024,
                }
    return best


def show(rows: list[dict[str, object]]) -> None:
    print(f"{'rounds':>12}{'kind':>10}{'seconds':>10}{'CPU s':>8}{'peak GiB':>10}{'to scan':>9}")
    for row in rows:
        ratio = f"{row['to_scan']:.2f}" if row["to_scan"] else ""
        gib = float(str(row["peak_bytes"])) / 2**30
        times = f"{row['seconds']:>10.1f}{row['cpu_seconds']:>8.1f}"
        print(f"{row['rounds']:>12,}{row['kind']:>10}{times}{gib:>10.2f}{ratio:>9}")


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        {"analyze": analyze, "scan": scan}[sys.argv[2]](Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", nargs="+", type=float, default=[1e5, 1e6, 1e7])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="folder to keep the simulated runs in")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for rounds in map(int, wanted.rounds):
            run = (wanted.runs or Path(folder)) / f"{rounds}"
            run = run if run.exists() else make(run.parent, rounds)
            found = measured(KINDS, run, wanted.repeats)
            base = found["scan"]["seconds"]
            for kind, cases in found.items():
                ratio = cases["seconds"] / base if kind != "scan" else None
                rows.append({"rounds": rounds, "kind": kind, **cases, "to_scan": ratio})
            show(rows[-len(found) :])
    ResultsFile(wanted.json, "cpu", again=True).write(complete=True, k=K, rows=rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
