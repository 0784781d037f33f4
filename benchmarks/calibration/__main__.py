"""Check intervals, comparisons, gates, findings and advice on simulated runs of known truth.

Each table is measured in worlds where the conclusion must be drawn, where it must not, and where it
is tempting. Exits with 1, and names the rate, if one does not meet its bound.

    PYTHONPATH=.:tests python -m benchmarks.calibration [--trials 1000] [--only TABLE ...]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.calibration.attention_drift import ATTENTION_DRIFT, ATTENTION_SINKS
from benchmarks.calibration.causes import ABLATIONS, CIRCUMSTANCES, NEAR_MISSES, TEXT_KINDS
from benchmarks.calibration.changes import (
    CHANGES,
    OF_REPLICAS,
    OF_SAME_PROMPTS,
    OVER_TIME,
    UNFINISHED,
    WITH_UPDATES,
)
from benchmarks.calibration.comparisons import COMPARISONS
from benchmarks.calibration.confidence import CONFIDENCE
from benchmarks.calibration.depths import ALONG_CHAIN, MIX_CHANGES, RISK_SETS, SEVERAL_K
from benchmarks.calibration.estimates import CLUSTERS, COVERAGE, SHARED_STEPS
from benchmarks.calibration.fleets import COMPARED, RANKED
from benchmarks.calibration.high_findings import HIGH_FINDINGS, TRAINING_NAMED
from benchmarks.calibration.ingested import FILE_SUMS, SERVER_LOGS
from benchmarks.calibration.k_advice import CUT_ANEW, K_ADVICE
from benchmarks.calibration.pairs import FALSE_CALLS, GATE_FAILURES, LABEL_MIX, PARTING
from benchmarks.calibration.speed import SPEED
from benchmarks.calibration.validity import PROMPT_KINDS, SMALLEST_CHANGE
from benchmarks.calibration.verified import CUT_DRAFTS
from benchmarks.calibration.weights import WEIGHTS
from benchmarks.calibration.what_if import WHAT_IF
from benchmarks.calibration.within_request import WITHIN_REQUEST

TRIALS = 1000
TABLES = {
    table.name: table
    for table in (
        COVERAGE,
        FALSE_CALLS,
        GATE_FAILURES,
        COMPARISONS,
        CHANGES,
        CIRCUMSTANCES,
        PARTING,
        SEVERAL_K,
        MIX_CHANGES,
        WITHIN_REQUEST,
        ATTENTION_DRIFT,
        ATTENTION_SINKS,
        UNFINISHED,
        OVER_TIME,
        WITH_UPDATES,
        OF_REPLICAS,
        OF_SAME_PROMPTS,
        RISK_SETS,
        ALONG_CHAIN,
        CUT_DRAFTS,
        K_ADVICE,
        CUT_ANEW,
        CLUSTERS,
        LABEL_MIX,
        TEXT_KINDS,
        HIGH_FINDINGS,
        TRAINING_NAMED,
        ABLATIONS,
        NEAR_MISSES,
        SHARED_STEPS,
        SPEED,
        SERVER_LOGS,
        FILE_SUMS,
        RANKED,
        COMPARED,
        PROMPT_KINDS,
        SMALLEST_CHANGE,
        WEIGHTS,
        CONFIDENCE,
        WHAT_IF,
    )
}


def main(argv: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Measure the tables; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--json", type=Path, help="tables that are not asked for stay as they are")
    parser.add_argument("--only", choices=TABLES, nargs="+", default=list(TABLES))
    options = parser.parse_args(argv)
    missed: list[str] = []
    for name in options.only:
        rows, breaches = TABLES[name].measure(options.trials, say)
        missed += breaches
        if options.json:
            plain = [{"world": row.world, **row.figures} for row in rows]
            keep(options.json, name, plain, options.trials)
    for line in missed:
        say(f"breach: {line}")
    return 1 if missed else 0


def keep(path: Path, name: str, rows: list[dict[str, Any]], trials: int) -> None:
    """Add a table and its number of trials to the results as soon as it is complete: all tables
    together take an hour."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content[name] = rows
    content["trials"] = {**content.get("trials", {}), name: trials}
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
