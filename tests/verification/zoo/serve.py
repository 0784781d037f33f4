"""Build and serve kinds of drafters with vLLM on the CPU: a line for each kind and runner.

`python -m verification.zoo.serve [NAME...] [--runner v1|v2] [--core N]`; all kinds by default.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from support.engine_process.job import HERE, Job, environment

from verification.zoo import ZOO
from verification.zoo.kind import VOCABULARY, Kind

RUNNERS = ("v1", "v2")
PROMPT_LENGTHS = (6, 10, 15, 21)
FIRST_PLAIN_ID = 6
"""First id after the shipped target's special tokens."""
MAX_TOKENS = 24
TIMEOUT_S = 300


def prompts() -> list[list[int]]:
    """Return prompts of random ids that every target of the zoo knows."""
    random = Random(0)
    return [
        [0, *(random.randrange(FIRST_PLAIN_ID, VOCABULARY) for _ in range(length - 1))]
        for length in PROMPT_LENGTHS
    ]


def serve(kind: Kind, runner: str, folder: Path, core: str = "0") -> dict[str, Any]:
    """Return the output of `engine_main`; RuntimeError with the log's end when the engine fails."""
    models = folder / "models"
    kind.build(models)
    sampling = {"temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True, "detokenize": False}
    batch = {"size": len(PROMPT_LENGTHS), "prompts": prompts(), "sampling": sampling}
    job, result = folder / "job.json", folder / "result.json"
    job.write_text(json.dumps({"llm": kind.llm(models), "batches": [batch]}))
    done = subprocess.run(
        [sys.executable, str(HERE / "engine_main.py"), str(job), str(result)],
        env=environment(Job(drafter=kind.name, runner=runner), folder, core),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0 or not result.exists():
        raise RuntimeError(f"{done.stdout}\n{done.stderr}")
    outcome: dict[str, Any] = json.loads(result.read_text())
    return outcome


def verdict(kind: Kind, runner: str, core: str) -> str:
    """Return one line: the acceptance at each depth, or the first error of the log."""
    with tempfile.TemporaryDirectory(prefix="driftscope-zoo-") as folder:
        try:
            counts = serve(kind, runner, Path(folder), core)["metrics"]
        except subprocess.TimeoutExpired:
            return f"error: no end within {TIMEOUT_S} s"
        except RuntimeError as error:
            return f"error: {first_error(str(error))}"
    drafts = counts.get("vllm:spec_decode_num_drafts", 0)
    accepted = counts.get("vllm:spec_decode_num_accepted_tokens_per_pos", [])
    return f"served: {drafts} drafts, accepted at each depth {accepted}"


def first_error(log: str) -> str:
    """Return the line of the first exception, which later ones only wrap."""
    lines = (line.split("]", 1)[-1].strip() for line in log.splitlines())
    named = [line for line in lines if line.split(":")[0].endswith(("Error", "Exception"))]
    return named[0] if named else log.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ZOO))
    parser.add_argument("--runner", choices=RUNNERS, help="both by default")
    parser.add_argument("--core", default="0", help="CPU core to bind the engine to")
    options = parser.parse_args()
    for name in options.names or ZOO:
        for runner in [options.runner] if options.runner else RUNNERS:
            expected = "" if runner in ZOO[name].runners else " (not expected to serve)"
            print(f"{name:20} {runner}{expected} {verdict(ZOO[name], runner, options.core)}")


if __name__ == "__main__":
    main()
