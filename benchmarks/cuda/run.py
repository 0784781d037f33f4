"""Run every stage of the GPU benchmark, or the named ones, in order; print a table at the end.

python3 benchmarks/cuda/run.py --out DIR [STAGE ...] [--seconds N] [--device cpu] [--again]

truth       the live probe against the float64 reference, and its output with and without the probe
overhead    TPOT and throughput with and without the probe
long        minutes of mixed traffic: memory, dropped rows
situations  chunked prompts, preemption, K by batch size ... against the reference
kernel      the taps' own time against their memory floor, at an 8B model's shapes

Each stage writes DIR/STAGE.json and DIR/STAGE.log. The same command resumes after an interruption:
stages in DIR are not run again, except with --again. `--device cpu` is a smoke test of every stage
with the tiny trio. Exit code 1 if a stage failed, could not run, or found a violation.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_file import read

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
SOURCES = (".", "probes", "reports", "lab", "tests")
"""Folders for PYTHONPATH of every stage, ahead of existing entries, relative to the repository."""
GRACE_S = 90.0
"""Time before its limit at which a stage that keeps its own time ends, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One script. `arguments` gives its options by device, folder and seconds."""

    script: str
    seconds: int
    """Default time limit on a GPU, in seconds. It is not an estimate: the stage is stopped at the
    limit and resumes later."""
    needs: tuple[str, ...]
    """Packages that the stage needs."""
    arguments: dict[str, tuple[str, ...]]
    """Arguments by device; `{out}` is the folder, `{own}` the seconds that the script itself may
    use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table."""

    stage: str
    state: str
    seconds: float
    words: str

    @property
    def fine(self) -> bool:
        """Whether it counts as passed."""
        return self.state in ("ok", "had")


STAGES = {
    "truth": Stage(
        script="truth.py",
        seconds=1800,
        needs=("torch", "vllm", "safetensors"),
        arguments={
            "cuda": ("--logs", "{out}/truth-logs", "--seconds", "{own}"),
            "cpu": ("--device", "cpu", "--logs", "{out}/truth-logs", "--seconds", "{own}"),
        },
    ),
    "overhead": Stage(
        script="overhead.py",
        seconds=3600,
        needs=("torch", "vllm"),
        arguments={
            "cuda": ("--seconds", "{own}"),
            "cpu": ("--smoke", "--repeats", "2", "--tokens", "17", "--seconds", "{own}"),
        },
    ),
    "long": Stage(
        script="long.py",
        seconds=900,
        needs=("torch", "vllm"),
        arguments={"cuda": ("--seconds", "300"), "cpu": ("--device", "cpu", "--seconds", "20")},
    ),
    "situations": Stage(
        script="situations.py",
        seconds=900,
        needs=("torch", "vllm", "safetensors"),
        arguments={
            "cuda": ("--seconds", "{own}"),
            "cpu": ("--device", "cpu", "--seconds", "{own}"),
        },
    ),
    "kernel": Stage(
        script="kernel.py",
        seconds=600,
        needs=("torch", "triton"),
        arguments={"cuda": (), "cpu": ("--device", "cpu")},
    ),
}


def missing(stage: Stage, device: str) -> str | None:
    """Return the reason why this stage cannot run here; None if it can."""
    for name in stage.needs:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    if device == "cuda" and not _cuda_is_there():
        return "torch sees no CUDA GPU"
    return None


def _cuda_is_there() -> bool:
    """Return whether torch sees a CUDA GPU. Another process is asked, because this one would keep
    GPU memory."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def run_stage(name: str, options: argparse.Namespace) -> Result:
    """Run the stage unless its result is in DIR; never raise for a failure of the stage."""
    stage, path = STAGES[name], options.out / f"{name}.json"
    if options.again:
        path.unlink(missing_ok=True)
        shutil.rmtree(options.out / name, ignore_errors=True)
    had = read(path)
    if had.get("device", options.device) != options.device:
        words = f"{path} is of device {had['device']}: use another --out, or --again"
        return Result(stage=name, state="FAILED", seconds=0.0, words=words)
    if had.get("complete"):
        return Result(
            stage=name,
            state="had" if had["ok"] is not False else "MISSED",
            seconds=0.0,
            words=had["verdict"],
        )
    if why := missing(stage, options.device):
        return Result(stage=name, state="CANNOT RUN", seconds=0.0, words=why)
    return _result(name, path, *_run(name, options.seconds or stage.seconds, options))


def _run(name: str, seconds: float, options: argparse.Namespace) -> tuple[int | None, float]:
    """Return the exit code, None after a timeout, and the duration in seconds."""
    stage, began = STAGES[name], time.monotonic()
    filled = {"out": options.out, "own": max(seconds - GRACE_S, seconds / 2)}
    arguments = [part.format(**filled) for part in stage.arguments[options.device]]
    command = [sys.executable, str(HERE / stage.script), *arguments]
    command += ["--json", str(options.out / f"{name}.json")]
    with (options.out / f"{name}.log").open("ab") as log:
        # Use a separate session, so that its engines can be stopped with it.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=_environment(), start_new_session=True
        )
        with _ended_with_us(process):
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
    return code, time.monotonic() - began


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Stop all processes of a stage, however this one ends."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment() -> dict[str, str]:
    ours = [str(REPO / source) for source in SOURCES]
    path = [*ours, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _result(name: str, path: Path, code: int | None, seconds: float) -> Result:
    found = read(path)
    if found.get("complete") and code == 0:
        state, words = ("MISSED" if found["ok"] is False else "ok"), found["verdict"]
    elif code is None or code == 0:
        state, words = "OUT OF TIME", "the same command goes on from here"
    else:
        state, words = "FAILED", f"exit code {code}: {_last_line(path.with_suffix('.log'))}"
    return Result(stage=name, state=state, seconds=seconds, words=words)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def print_table(results: list[Result]) -> None:
    print(f"{'stage':9} {'state':11} {'seconds':>8}  result")
    for one in results:
        print(f"{one.stage:9} {one.state:11} {one.seconds:8.1f}  {one.words}")


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    # Turn SIGTERM into an exception, so that the running stage is stopped as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in options.stages or STAGES:
        print(f"{name}: {options.out / name}.log", file=sys.stderr, flush=True)
        results.append(run_stage(name, options))
    print_table(results)
    return int(not all(one.fine for one in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="default: all, in this order")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, help="limit of each stage (default: its own)")
    parser.add_argument("--again", action="store_true", help="run what DIR has once more")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
