"""Compare the probe with the float64 reference beyond plain decoding: mixed batches, chunked
prompts, prefix caching, preemption, the context's limit, K by batch size, all ends of requests.

PYTHONPATH=tests:$PYTHONPATH python3 benchmarks/cuda/situations.py [--json FILE] [NAME ...]

NAME selects the engines whose name contains it. They serve the tiny trio in fp32, one without the
probe beside each of V1's. Options that this vLLM does not know are left out. With `--device cpu`
one engine of V1 serves, and its twin. Engines that are in the file are not run again, unless they
failed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from support.engine_process.job import Job, Outcome, run_job
from verification.situations import SITUATION_JOBS
from verification.situations_truth import answered_alike, figures_of

from benchmarks.cuda.truth import FP32, MASS_ERROR, MEMORY
from benchmarks.results_file import ResultsFile

CPU_ENGINES = ("tight v1 off", "tight v1")
Found = dict[str, Any]


def jobs_on(device: str) -> dict[str, Job]:
    """Return the engines by name, each after the one without the probe that it is compared with."""
    if device == "cpu":
        return {name: SITUATION_JOBS[name] for name in CPU_ENGINES}
    known = _known_options()
    return {
        name: replace(
            job,
            device="cuda",
            compiled=True,
            llm={k: v for k, v in {**MEMORY, **FP32, **job.llm}.items() if k in known},
        )
        for name, job in SITUATION_JOBS.items()
    }


def _known_options() -> set[str]:
    """Return the options that this vLLM's engine takes."""
    from vllm import EngineArgs

    return {each.name for each in fields(EngineArgs)}


def run(job: Job, folder: Path, without: Outcome | None) -> tuple[Found, Outcome | None]:
    """Run one engine and return its results, of which an error is one, and its outcome."""
    began, found, outcome = time.time(), {}, None
    try:
        outcome = run_job(job, folder)
        if job.probe:
            found["situations"] = [asdict(each) for each in figures_of(outcome)]
        if without is not None:
            alike = answered_alike(outcome, without)
            found |= {"requests": len(alike), "answered_alike": sum(alike)}
    except Exception:
        found["error"] = traceback.format_exc()[-4000:]
    return {**found, "seconds": round(time.time() - began, 1)}, outcome


def faults(found: Found) -> list[str]:
    """Return how an engine's recording deviates from the truth; [] if it does not."""
    if "error" in found:
        return ["did not run"]
    wrong = []
    if found.get("answered_alike") != found.get("requests"):
        wrong.append(
            f"{found['answered_alike']} of {found['requests']} answers as without the probe"
        )
    for one in found.get("situations", ()):
        name = one["situation"]
        # Written as `not <=`, so that a NaN fails too.
        if not one["mass_error"] <= MASS_ERROR["fp32"]:
            wrong.append(f"{name}: mass error {one['mass_error']:.1e}")
        if one["drafted_equal"] != one["right"]:
            wrong.append(f"{name}: {one['right'] - one['drafted_equal']} chains drafted otherwise")
        if one["accepted_equal"] != one["judged"]:
            wrong.append(f"{name}: {one['judged'] - one['accepted_equal']} counts differ")
        if one["flagged"] != one["wrong"]:
            wrong.append(f"{name}: {one['wrong'] - one['flagged']} doubtful chains are not flagged")
    return wrong


def judge(engines: dict[str, Found]) -> tuple[bool, str]:
    """Return whether every engine recorded the truth, and a line that says so."""
    told = {name: why for name, found in engines.items() if (why := faults(found))}
    every = [one for found in engines.values() for one in found.get("situations", ())]
    largest = max((one["mass_error"] for one in every), default=float("nan"))
    words = f"{len(engines)} engines, {len(every)} situations, largest mass error {largest:.1e}"
    why = "; ".join(f"{name}: {', '.join(each)}" for name, each in told.items())
    return not told, f"{words}; {why}" if why else words


def main() -> None:
    """Run the engines that are not in the file yet, and write the file after each."""
    options = _parser().parse_args()
    file = ResultsFile(options.json, options.device, again=options.again)
    engines = {n: f for n, f in file.facts.get("engines", {}).items() if "error" not in f}
    jobs = {
        name: job
        for name, job in jobs_on(options.device).items()
        if not options.names or any(part in name for part in options.names)
    }
    deadline, outcomes = time.time() + options.seconds, dict[str, Outcome | None]()
    with tempfile.TemporaryDirectory(prefix="driftscope-situations-") as folder:
        for name, job in jobs.items():
            # An engine's twin runs again with it, because its answers are not in the file.
            twin_of = name.removesuffix(" off")
            if (name in engines and twin_of in engines) or time.time() > deadline:
                continue
            without = outcomes.get(f"{name} off")
            engines[name], outcomes[name] = run(job, Path(folder) / name.replace(" ", "-"), without)
            print(f"{name}: {json.dumps(engines[name])[:300]}", flush=True)
            file.write(engines=engines)
    ok, verdict = judge(engines)
    file.write(
        complete=all(name in engines for name in jobs), ok=ok, verdict=verdict, engines=engines
    )
    print(verdict)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, help="written after each engine, and taken up again")
    parser.add_argument("--again", action="store_true", help="run what the file has again")
    parser.add_argument("--seconds", type=float, default=1200, help="start no engine after these")
    return parser


if __name__ == "__main__":
    main()
