"""Run the engines of the zoo, two in parallel.

`python -m verification.zoo.engines [NAME...] [ARCTIC]` (`make kinds`) runs these kinds, or all, and
prints the table. ARCTIC: see kinds_main.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from support.engine_process.job import CORES, Job, environment, forks

from verification.zoo import ZOO

Engine = tuple[str, str]
COVERING: tuple[Engine, ...] = (
    *((name, "v2") for name in ("deepseek_mtp", "dflash_window_sinks", "draft_model_gemma2")),
    *(
        (name, "v1")
        for name in (
            "eagle1",
            "eagle3_window",
            "mimo_mtp",
            "mimo_v2_mtp",
            "ernie_mtp",
            "deepseek_mtp",
            "deepseek_mtp_modules",
            "eagle3_mla",
            "medusa",
            "p_eagle",
            "dflash_window_sinks",
            "draft_model_gemma2",
            "ngram",
            "suffix",
        )
    ),
)
"""Pairs (kind, runner) that the test suite runs, the slow ones first; `make kinds` runs all."""
TIMEOUT_S = 300


def run_engines(
    engines: Sequence[Engine],
    folder: Path,
    timeout_s: float = TIMEOUT_S,
    arctic: Sequence[str] = (),
) -> dict[Engine, dict[str, Any]]:
    """Return (kind, runner) -> the output of `kinds_main`, and under "off" the tokens without the
    probe.

    V1 and V2 draft the same tokens: a kind that is served with V1 here has no run of V2 without the
    probe.
    """
    for name in {name for name, _ in engines}:
        ZOO[name].build(folder / "models" / name)
    for runner in {runner for _, runner in engines}:
        forks(runner)
    runs = [(*engine, "on") for engine in engines]
    runs += [
        (name, runner, "off")
        for name, runner in engines
        if runner == "v1" or (name, "v1") not in engines
    ]
    free: Queue[str] = Queue()
    for core in CORES:
        free.put(core)
    with ThreadPoolExecutor(len(CORES)) as pool:
        list(pool.map(lambda run: _run(free, folder, *run, timeout_s, arctic), runs))
    found = {}
    for name, runner in engines:
        on = _read(folder / f"{name}-{runner}-on.json")
        off = _read(folder / f"{name}-{runner}-off.json") or _read(folder / f"{name}-v1-off.json")
        found[name, runner] = {**(on or {"error": "no result"}), "off": off and off.get("tokens")}
    return found


def _run(
    free: Queue[str],
    folder: Path,
    name: str,
    runner: str,
    probe: str,
    timeout_s: float,
    arctic: Sequence[str],
) -> None:
    """Run an engine on a core that no other engine has."""
    core, tag = free.get(), f"{name}-{runner}"
    try:
        forks(runner).run(
            Path(__file__).with_name("kinds_main.py"),
            [str(folder), runner, name, probe, *arctic],
            environment(Job(drafter="", runner=runner), folder, core),
            folder / f"{tag}-{probe}.txt",
            timeout_s,
        )
    finally:
        free.put(core)


def _read(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def main() -> int:
    """Return 1 when an engine failed, served other tokens, or has counts that differ from
    vLLM's."""
    names = [word for word in sys.argv[1:] if word in ZOO] or list(ZOO)
    engines = [(name, runner) for name in names for runner in ZOO[name].runners]
    arctic = [word for word in sys.argv[1:] if word not in ZOO]
    if "suffix" in names:
        engines.append(("suffix", "v1"))
    engines.sort(key=lambda engine: engine[1], reverse=True)
    with tempfile.TemporaryDirectory(prefix="driftscope-kinds-") as folder:
        results = run_engines(engines, Path(folder), 3600, arctic)
    for name, found in results.items():
        print(line(*name, found))
    return int(
        any(
            "error" in found or found["tokens"] != found["off"] or not counted_alike(found)
            for found in results.values()
        )
    )


def counted_alike(found: dict[str, Any]) -> bool:
    """Return whether rounds and accepted tokens equal vLLM's own counters."""
    counted = found["metrics"]
    return bool(
        found["drafts"] == counted["vllm:spec_decode_num_drafts"]
        and found["accepted"] == counted["vllm:spec_decode_num_accepted_tokens_per_pos"]
    )


def line(name: str, runner: str, found: dict[str, Any]) -> str:
    """Return a line with the largest errors of one engine."""
    if "error" in found:
        return f"{name:24} {runner}  {found['error']}"
    worst = found.get("worst", {})
    groups = {
        "mass": [e for c, e in worst.items() if c.endswith("_mass")],
        "RMS rel": [e for c, e in worst.items() if c.endswith("_rms")],
        "top-1": [e for c, e in worst.items() if c == "top1"],
        "entropy": [e for c, e in worst.items() if c == "entropy"],
    }
    errors = " ".join(f"{title} {max(e):.1e}" if e else f"{title} -" for title, e in groups.items())
    same = "same tokens" if found["tokens"] == found["off"] else "OTHER TOKENS"
    alike = f"{found['drafts']:3} rounds {'as' if counted_alike(found) else 'NOT AS'} vLLM counts"
    return f"{name:24} {runner} {found['chains']:4} chains  {same}  {alike}  {errors}"


if __name__ == "__main__":
    sys.exit(main())
