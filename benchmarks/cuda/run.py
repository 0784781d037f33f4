"""Every stage of the GPU benchmark, or those named, one after another; a table at the end.

python3 benchmarks/cuda/run.py --out DIR [STAGE ...] [--seconds N] [--device cpu] [--again]

truth     the live probe against the float64 reference
overhead  TPOT and throughput with and without the probe
kernel    the taps' own time against their memory floor
trio      a better trio trained and measured, two seeds
long      minutes of mixed traffic: memory, dropped rows

Each writes DIR/STAGE.json and DIR/STAGE.log. The same command goes on after an interruption: what
DIR has is not run again, but with --again. `--device cpu` is a smoke of every stage with the tiny
trio. Exit code 1 if a stage failed, could not run, or found what should not be.
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
"""On PYTHONPATH of every stage, ahead of what is there, relative to the repository."""
GRACE_S = 90.0
"""A stage that minds its own time ends by itself this long before it is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One script. `arguments` makes its options from the device, folder and seconds."""

    script: str
    seconds: int
    """Limit where none is given; a GPU's. Not an estimate: each is cut off there, and resumes."""
    needs: tuple[str, ...]
    """Packages."""
    arguments: dict[str, tuple[str, ...]]
    """By device; `{out}` is the folder, `{own}` the seconds that the script itself may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A line of the table."""

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
    "kernel": Stage(
        script="kernel.py",
        seconds=600,
        needs=("torch", "triton"),
        arguments={"cuda": (), "cpu": ("--device", "cpu")},
    ),
    "trio": Stage(
        script="trio.py",
        seconds=14_400,
        needs=("torch", "tokenizers", "safetensors"),
        arguments={
            "cuda": ("--work", "{out}/trio"),
            "cpu": ("--device", "cpu", "--work", "{out}/trio"),
        },
    ),
    "long": Stage(
        script="long.py",
        seconds=900,
        needs=("torch", "vllm"),
        arguments={"cuda": ("--seconds", "300"), "cpu": ("--device", "cpu", "--seconds", "20")},
    ),
}


def missing(stage: Stage, device: str) -> str | None:
    """Why this stage cannot run here, None if it can."""
    for name in stage.needs:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    if device == "cuda" and not _cuda_is_there():
        return "torch sees no CUDA GPU"
    return None


def _cuda_is_there() -> bool:
    """Asked in another process: here it would hold on to memory of the GPU."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def run_stage(name: str, options: argparse.Namespace) -> Result:
    """Run it unless DIR has it; never raises for what the stage does."""
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
    """Exit code, None if its time was over; and the seconds that it took."""
    stage, began = STAGES[name], time.monotonic()
    filled = {"out": options.out, "own": max(seconds - GRACE_S, seconds / 2)}
    arguments = [part.format(**filled) for part in stage.arguments[options.device]]
    command = [sys.executable, str(HERE / stage.script), *arguments]
    command += ["--json", str(options.out / f"{name}.json")]
    with (options.out / f"{name}.log").open("ab") as log:
        # A session of its own, so that its engines can be ended with it.
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
    """Nothing of a stage is left behind, whatever ends it."""
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
    # So that being ended, too, ends the stage that runs.
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
