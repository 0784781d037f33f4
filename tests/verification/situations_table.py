"""Compare the chains recorded in each situation with the float64 reference, and print the exit code
of `driftscope analyze`. `make situations`.

Captured layers that a drafter's config names or leaves to vLLM, K by batch size, and K changed
while requests run are shown for the installed vLLM and for older ones, given as folders.

If vLLM's V1 runner fills slots of the drafter's cache with a wrong token, the reference does so
too. Chains with slots that were never filled are not compared. Both are counted, with the number of
them that are flagged.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.command import analyze_json
from support.engine_process.job import Job, Outcome, try_jobs

from driftscope.trace.reader import read_trace
from verification.deep import deep_jobs, write_deep
from verification.situations import SITUATION_JOBS, k_jobs
from verification.situations_truth import answered_alike, figures_of
from verification.truth import Truth, compare

_HEAD = (
    f"{'engine':18} {'situation':13} {'K':>11} {'chains':>6} {'drafted =':>10} {'accepted =':>10} "
    f"{'mass err':>9} {'RMS rel':>9} {'wrong slots':>12} {'flagged':>8} {'analyze':>8}"
)


def main() -> int:
    """Return 1 when an engine failed, else 0."""
    older = [Path(name).resolve() for name in sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="driftscope-situations-") as folder:
        deep = deep_jobs(write_deep(Path(folder) / "weights"), older)
        stepped = {**SITUATION_JOBS, **k_jobs(older)}
        tried = try_jobs({**deep, **stepped}, Path(folder))
        ran = {name: outcome for name, outcome in tried.items() if isinstance(outcome, Outcome)}
        print(_HEAD)
        for name in (name for name in deep if name in ran):
            print_layers(name, ran[name])
        print_stepped({name: job for name, job in stepped.items() if name in ran}, ran)
    failed = {name: error for name, error in tried.items() if name not in ran}
    for name, error in failed.items():
        print(f"{name:18} DID NOT RUN: {error}")
    return 1 if failed else 0


def print_stepped(jobs: dict[str, Job], ran: dict[str, Outcome]) -> None:
    """Print lines for each engine that ran, and whether an engine without the probe gave the same
    output."""
    for name, job in jobs.items():
        probed = name.removesuffix(" off")
        if job.probe:
            print_situations(name, ran[name])
        elif name.endswith(" off") and probed in ran:
            alike = answered_alike(ran[probed], ran[name])
            told = f"{sum(alike)} of {len(alike)} requests"
            print(f"{probed:18} output as without the probe: {told}")


def print_layers(name: str, outcome: Outcome) -> None:
    """Print a line for an engine, with its captured layers and who chose them below."""
    truth: Truth = compare(outcome)
    manifest = read_trace(outcome.run).manifest
    k = _lengths([manifest.k])
    print(
        f"{name:18} {'layers':13} {k:>11} {truth.chains:6} "
        f"{truth.drafted_equal:5}/{truth.chains:<4} "
        f"{truth.accepted_equal:5}/{truth.verified:<4} {truth.mass_error:9.1e} "
        f"{truth.rms_error:9.1e} {0:12} {0:8} {analyze_json(outcome.run).returncode:8}"
    )
    layers = ", ".join(map(str, manifest.aux_layers))
    print(f"{'':18} captured {layers}: {manifest.aux_layers_source}")


def print_situations(name: str, outcome: Outcome) -> None:
    """Print a line for each situation of an engine."""
    code = analyze_json(outcome.run).returncode
    for one in figures_of(outcome):
        print(
            f"{name:18} {one.situation:13} {_lengths(one.lengths):>11} {one.chains:6} "
            f"{one.drafted_equal:5}/{one.right:<4} {one.accepted_equal:5}/{one.judged:<4} "
            f"{one.mass_error:9.1e} {one.rms_error:9.1e} {one.wrong:12} {one.flagged:8} {code:8}"
        )


def _lengths(lengths: Sequence[int]) -> str:
    return ",".join(map(str, lengths))


if __name__ == "__main__":
    sys.exit(main())
