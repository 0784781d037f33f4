"""Run every stage of the GPU benchmark, or the named ones, in order; print a table at the end.

python3 -m benchmarks.gpu --out DIR [STAGE ...] [--seconds N] [--device cpu] [--again]

truth     the live probe against the float64 reference; output without the probe, with every hook
          failing and at the default budget
overhead  TPOT and throughput with and without the probe, and timelines of the worker
real      `driftscope pays` of SmolLM2 and its drafters ($SMOLLM2, $DRAFTERS)
long      minutes of mixed traffic: memory, dropped rows

Each stage writes DIR/STAGE.json and DIR/STAGE.log, piece by piece. The same command resumes after
an interruption: what DIR holds is not run again, except with --again. `--device cpu` is a smoke
test of every stage with the tiny trio. Exit code 1 if a stage failed, could not run, or found a
violation.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_file import REPO, ResultsFile, read_result

SOURCES = (".", "probes", "reports", "lab", "tests")
"""Folders for PYTHONPATH of every stage, ahead of existing entries, relative to the repository."""
GRACE_S = {"truth": 45.0, "overhead": 15.0, "real": 10.0, "long": 30.0}
"""Stage -> time before its limit from which it begins nothing new, in seconds."""
SECONDS = {"truth": 1800, "overhead": 3600, "real": 600, "long": 900}
"""Stage -> default time limit. It is not an estimate: the stage is stopped at the limit and resumes
later."""


def run_of(stage: str) -> Callable[[ResultsFile, Path, float], None]:
    """Return the function that runs a stage into its file, given the folder and the time by which
    it begins nothing new."""
    from benchmarks.gpu import long, overhead, real, truth

    return {"truth": truth.run, "overhead": overhead.run, "real": real.run, "long": long.run}[stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table."""

    stage: str
    state: str
    seconds: float = 0.0
    words: str


def missing(stage: str, device: str) -> str | None:
    """Return the reason why this stage cannot run here; None if it can."""
    for name in ("torch", "vllm", "safetensors"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    if stage == "real" and device == "cuda" and not os.environ.get("SMOLLM2"):
        return "SMOLLM2 and DRAFTERS name no folders"
    # Another process is asked, because this one would keep GPU memory.
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if device == "cuda" and subprocess.run([sys.executable, "-c", code], check=False).returncode:
        return "torch sees no CUDA GPU"
    return None


def run_stage(name: str, options: argparse.Namespace) -> Result:
    """Run the stage unless its result is in DIR; never raise for a failure of the stage."""
    path = options.out / f"{name}.json"
    if options.again:
        path.unlink(missing_ok=True)
    had = read_result(path)
    if had.get("device", options.device) != options.device:
        words = f"{path} is of device {had['device']}: use another --out, or --again"
        return Result(stage=name, state="FAILED", words=words)
    if had.get("complete"):
        state = "MISSED" if had["ok"] is False else "had"
        return Result(stage=name, state=state, words=had["verdict"])
    if why := missing(name, options.device):
        return Result(stage=name, state="CANNOT RUN", words=why)
    began, seconds = time.monotonic(), options.seconds or SECONDS[name]
    code = _run(name, seconds, options)
    took_s, found = time.monotonic() - began, read_result(path)
    if found.get("complete") and code == 0:
        state, words = ("MISSED" if found["ok"] is False else "ok"), found["verdict"]
    elif code is None or code == 0:
        words = f"the same command goes on from here; {found.get('verdict', '')}"
        state = "OUT OF TIME"
    else:
        lines = path.with_suffix(".log").read_text(errors="replace").strip().splitlines()
        state, words = "FAILED", f"exit code {code}: {lines[-1][:300] if lines else 'no output'}"
    return Result(stage=name, state=state, seconds=took_s, words=words)


def _run(name: str, seconds: float, options: argparse.Namespace) -> int | None:
    """Run the stage in a process; return its exit code, None after a timeout."""
    paths = [*(str(REPO / source) for source in SOURCES), os.environ.get("PYTHONPATH", "")]
    own = ("--inside", "--seconds", str(seconds), "--device", options.device)
    with (options.out / f"{name}.log").open("ab") as log:
        # A separate session, so that its engines can be stopped with it.
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu", name, "--out", str(options.out), *own],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="default: all, in this order")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, help="limit of each stage (default: its own)")
    parser.add_argument("--again", action="store_true", help="run what DIR has once more")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := set(options.stages) - set(SECONDS):
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(SECONDS)}")
    if options.inside:
        (name,) = options.stages
        left = max(options.seconds - GRACE_S[name], options.seconds / 2)
        file = ResultsFile(options.out / f"{name}.json", options.device)
        run_of(name)(file, options.out, time.time() + left)
        print(file.facts["verdict"])
        return 0
    # Turn SIGTERM into an exception, so that the running stage is stopped as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in options.stages or SECONDS:
        print(f"{name}: {options.out / name}.log", file=sys.stderr, flush=True)
        results.append(run_stage(name, options))
    print(f"{'stage':10} {'state':11} {'seconds':>8}  result")
    for result in results:
        print(f"{result.stage:10} {result.state:11} {result.seconds:8.1f}  {result.words}")
    return int(any(result.state not in ("ok", "had") for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
