"""Run the engines of the zoo, two in parallel.

DRIFTSCOPE_TEST_ARCTIC names a folder with the package arctic-inference, for suffix decoding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from support.engine_process.job import CORES, Job, environment, forks

from verification.zoo import ZOO

Engine = tuple[str, str]
ALIKE = ("eagle3_window_mixed", "eagle3_window_one_group", "draft_model")
"""Kinds whose options others have too."""
COVERING: tuple[Engine, ...] = (
    *((name, "v2") for name in ("deepseek_mtp", "dflash_window_sinks", "draft_model_gemma2")),
    *((name, "v1") for name in ZOO if name not in ALIKE),
)
"""Pairs (kind, runner) that cover every option, the slow ones first."""
ALL: tuple[Engine, ...] = (
    *((name, runner) for name, kind in ZOO.items() for runner in kind.runners),
    ("suffix", "v1"),
)
TIMEOUT_S = 300


def run_engines(
    engines: Sequence[Engine], folder: Path, timeout_s: float = TIMEOUT_S
) -> dict[Engine, dict[str, Any]]:
    """Return (name, runner) -> what `kinds_main` wrote of it, and under "off" the tokens without
    the probe.

    V1 and V2 mostly draft the same tokens: only where they do not, what V1 serves has a run of V2
    without the probe, too.
    """
    for name in {name for name, _ in engines if name in ZOO}:
        ZOO[name].build(folder / "models" / name)
    for runner in {runner for _, runner in engines}:
        forks(runner)
    _run_all([(*engine, "on") for engine in engines], folder, timeout_s)
    found = {engine: _read(folder, *engine, "on") for engine in engines}
    served = [engine for engine in sorted(engines) if "error" not in found[engine]]
    first = dict(reversed(served))  # V1 where it serves
    _run_all([(*engine, "off") for engine in first.items()], folder, timeout_s)
    plain = {
        name: _read(folder, name, runner, "off").get("tokens") for name, runner in first.items()
    }
    others = [(n, r) for n, r in served if first[n] != r and found[n, r]["tokens"] != plain[n]]
    _run_all([(*engine, "off") for engine in others], folder, timeout_s)
    for name, runner in served:
        own = _read(folder, name, runner, "off") if (name, runner) in others else {}
        found[name, runner]["off"] = own.get("tokens", plain[name])
    return found


def run_constructed(names: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Return class -> what the probe finds in it without an engine; kernels are interpreted."""
    _run_all([(name, "v2", "constructed") for name in names], folder, TIMEOUT_S)
    return {name: _read(folder, name, "v2", "constructed") for name in names}


def _run_all(jobs: Sequence[tuple[str, str, str]], folder: Path, timeout_s: float) -> None:
    """Run an engine for each (name, runner, how), on a core that no other engine has."""
    free: Queue[str] = Queue()
    for core in CORES:
        free.put(core)
    more = [*filter(None, [os.environ.get("DRIFTSCOPE_TEST_ARCTIC")])]

    def run(job: tuple[str, str, str]) -> None:
        (name, runner, probe), core = job, free.get()
        try:
            forks(runner).run(
                Path(__file__).with_name("kinds_main.py"),
                [str(folder), runner, name, probe, *more],
                environment(Job(drafter="", runner=runner), folder, core),
                folder / f"{name}-{runner}-{probe}.txt",
                timeout_s,
            )
        finally:
            free.put(core)

    with ThreadPoolExecutor(len(CORES)) as pool:
        list(pool.map(run, jobs))


def _read(folder: Path, name: str, runner: str, probe: str) -> dict[str, Any]:
    path = folder / f"{name}-{runner}-{probe}.json"
    found: dict[str, Any] = {"error": "no result"}
    return json.loads(path.read_text()) if path.exists() else found


def counted_alike(found: dict[str, Any]) -> bool:
    """Return whether rounds and accepted tokens equal vLLM's own counters."""
    counted = found["metrics"]
    return bool(
        found["drafts"] == counted["vllm:spec_decode_num_drafts"]
        and found["accepted"] == counted["vllm:spec_decode_num_accepted_tokens_per_pos"]
    )
