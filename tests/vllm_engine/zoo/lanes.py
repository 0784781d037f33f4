"""Engines of the zoo, two processes side by side, each forking one engine after the other.

`python -m vllm_engine.zoo.lanes` (`make kinds`) runs all kinds and prints the table.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vllm_engine.job import CORES, Job, environment
from vllm_engine.zoo import ZOO

Lane = tuple[tuple[str, str], ...]
COVERING: tuple[Lane, Lane] = (
    tuple(
        (name, "v1")
        for name in (
            "eagle1", "eagle3_window", "mimo_mtp", "mimo_v2_mtp", "ernie_mtp", "deepseek_mtp",
            "deepseek_mtp_modules", "eagle3_mla", "medusa",
        )
    ),
    (
        ("p_eagle", "v1"),
        ("dflash_window_sinks", "v1"),
        ("draft_model_gemma2", "v1"),
        ("ngram", "v1"),
        ("suffix", "v1"),
        ("deepseek_mtp", "v2"),
        ("dflash_window_sinks", "v2"),
        ("draft_model_gemma2", "v2"),
    ),
)  # fmt: skip
"""What the test suite runs, in about equal halves; `make kinds` runs all."""
TIMEOUT_S = 800


def run_lanes(
    lanes: tuple[Lane, ...], folder: Path, timeout_s: float = TIMEOUT_S
) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, runner) -> what `kinds_main` wrote, and under "off" the tokens without the probe.

    V1 and V2 draft the same tokens: a kind that is served with V1 here has no run of V2 without.
    """
    engines = list(itertools.chain.from_iterable(lanes))
    for name in {name for name, _ in engines}:
        ZOO[name].build(folder / "models" / name)

    def run(item: tuple[str, Lane]) -> None:
        core, lane = item
        for runner, group in itertools.groupby(lane, key=lambda engine: engine[1]):
            names = [n if runner == "v1" or (n, "v1") not in engines else f"{n}:on"
                     for n, _ in group]  # fmt: skip
            _run(folder, runner, names, core, timeout_s)

    with ThreadPoolExecutor(len(lanes)) as pool:
        list(pool.map(run, zip(itertools.cycle(CORES), lanes, strict=False)))
    found = {}
    for name, runner in engines:
        on = _read(folder / f"{name}-{runner}-on.json")
        off = _read(folder / f"{name}-{runner}-off.json") or _read(folder / f"{name}-v1-off.json")
        found[name, runner] = {**(on or {"error": "no result"}), "off": off and off.get("tokens")}
    return found


def _run(folder: Path, runner: str, names: list[str], core: str, timeout_s: float) -> None:
    env = environment(Job(drafter="", runner=runner), folder, core)
    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vllm_engine.zoo.kinds_main", str(folder), runner, *names]
    with (folder / f"{runner}-{core}.txt").open("ab") as log:
        subprocess.run(
            command, env=env, stdout=log, stderr=log, timeout=timeout_s, check=False
        )  # fmt: skip


def _read(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def main() -> None:
    engines = [(name, runner) for name, kind in ZOO.items() for runner in kind.runners]
    engines.append(("suffix", "v1"))  # with a stand-in for the package that it needs
    slow = [e for e in engines if e[1] == "v2"]
    quick = [e for e in engines if e[1] == "v1"]
    with tempfile.TemporaryDirectory(prefix="driftscope-kinds-") as folder:
        for name, found in run_lanes((tuple(quick), tuple(slow)), Path(folder), 3600).items():
            print(line(*name, found))


def line(name: str, runner: str, found: dict[str, Any]) -> str:
    """Worst errors of one engine."""
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
    return f"{name:24} {runner} {found['chains']:4} chains  {same}  {errors}"


if __name__ == "__main__":
    main()
