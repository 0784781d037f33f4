"""Whether SmolLM2-135M's drafters pay, by `driftscope pays`.

SMOLLM2 names the target's folder, DRAFTERS its drafters as NAME=FOLDER,NAME=FOLDER. Servers with
each drafter and one without answer the prompts of `smollm2.yaml` in turn, 1, 8 and 32 requests at a
time. On a CPU the tiny trio shows that the code runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.engines import QUIET
from benchmarks.results_file import ResultsFile

K = 4
ASKED = {
    "cuda": ("--prompts", "smollm2", "--concurrency", "1,8,32"),
    "cpu": ("--prompts", "trio", "--limit", "4", "--concurrency", "1", "--rounds", "1"),
}
ANSWERED = (0, 3, 4)
"""Exit codes of an answer: yes, no, and cannot tell."""


def command(device: str, out: Path) -> list[str]:
    """Return the command that asks."""
    target, named = "trio", ["eagle31"]
    if device == "cuda":
        target, named = os.environ["SMOLLM2"], os.environ["DRAFTERS"].split(",")
    drafters = [word for drafter in named for word in ("--drafter", drafter)]
    words = ["pays", target, *drafters, "-k", str(K), *ASKED[device], "--json", "-o", str(out)]
    return [sys.executable, "-m", "driftscope", *words]


def answers(report: dict[str, Any]) -> str:
    """Return what a report says of whether speculation pays, in one line."""
    about = [*report["findings"], *report["answers"]]
    statements = [one["statement"] for one in about if one["topic"] == "pays" and one.get("answer")]
    return " ".join(dict.fromkeys(statements))


def run(file: ResultsFile, out: Path, _deadline: float) -> None:
    """Ask, and write the answer; the report, the runs and the servers' logs stay in OUT/pays."""
    shutil.rmtree(out / "pays", ignore_errors=True)
    words = command(file.device, out / "pays")
    env = {**os.environ, **QUIET, "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in ANSWERED:
        raise SystemExit(f"driftscope pays ended with {done.returncode}")
    verdict = answers(json.loads(done.stdout))
    file.write(complete=True, verdict=verdict, asked=words[3:], exit_code=done.returncode)
