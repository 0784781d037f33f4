"""vLLM engines in separate processes, measured in turn; shared by the cost benchmarks."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.turns import ABSENT
from driftscope_lab.trio import trio_path

CHILD = Path(__file__).with_name("engine_child.py")
FIGURES = ("tpot_s", "tokens_per_s")
"""Figures of one repeat, see `engine_child`."""
Settings = Mapping[str, tuple[str, dict[str, Any]]]
"""Setting -> engine and sampler settings."""
QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}
TRIO = {"dtype": "float32", "enforce_eager": True}
"""Options of an engine of the tiny trio on a CPU, which starts soon."""


class EngineChild:
    """A child process with one vLLM."""

    def __init__(self, name: str, options: dict[str, Any], env: dict[str, str], log: Path) -> None:
        self.name, self._log = name, log
        # -P keeps this script's folder from preceding the engine's own modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(CHILD), json.dumps(options)],
            env={**os.environ, **QUIET, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            text=True,
            start_new_session=True,
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send one line and return one line; an empty question only waits for the start."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if question:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"engine {self.name} ended:\n{self._log.read_text(errors='replace')[-6000:]}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Stop the process and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20.0)


def options(folder: Path, device: str, k: int, **own: Any) -> dict[str, Any]:
    """Return the options of an engine: on a GPU Llama-3.1-8B's shape with dummy weights, on a CPU
    the tiny trio."""
    if device == "cpu":
        target, drafter, base = trio_path() / "target", trio_path() / "eagle31", TRIO
    else:
        target, drafter = write_llama_shape(folder)
        base = {"load_format": "dummy", "attention_backend": "FLASH_ATTN"}
    return {
        "model": str(target),
        "skip_tokenizer_init": True,
        **base,
        **own,
        "speculative_config": {
            "method": "eagle3",
            "model": str(drafter),
            "num_speculative_tokens": k,
        },
    }


def in_turn(names: Sequence[str], repeats: int) -> Iterator[list[str]]:
    """Yield the names once for each repeat, each time beginning with the next one."""
    for repeat in range(repeats):
        first = repeat % len(names)
        yield [*names[first:], *names[:first]]


def measure(
    engines: dict[str, EngineChild],
    point: tuple[int, int],
    repeats: int,
    tokens: int,
    prompts: list[list[int]],
    settings: Settings,
    deadline: float,
) -> dict[str, Any]:
    """Return each of FIGURES by setting, one per repeat, and what the sampler reports at the
    end."""
    names = (ABSENT, *settings)
    found: dict[str, dict[str, list[float]]] = {f: {name: [] for name in names} for f in FIGURES}
    for engine in engines.values():
        engine.ask(prompts=prompts, tokens=8)  # fills the cache
    for turn in in_turn(names, repeats):
        for name in turn:
            key, setting = settings.get(name, (ABSENT, None))
            if setting is not None:
                engines[key].ask(set=setting)
            answer = engines[key].ask(prompts=prompts, tokens=tokens)
            for figure, values in found.items():
                values[name].append(answer[figure])
        if time.time() > deadline:
            break
    sampler = engines["probe"].ask(set={"budget": 0.01})
    return {"concurrency": point[0], "context": point[1], **found, "sampler": sampler}


def ratios(record: dict[str, Any], name: str, figure: str = "tpot_s") -> list[float]:
    """Return each repeat's figure as a ratio to that without driftscope in the same repeat."""
    pairs = zip(record[figure][name], record[figure][ABSENT], strict=False)
    return [a / b for a, b in pairs]


def spread(values: Sequence[float]) -> str:
    """Return the median of ratios, and the least and the largest, in words."""
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest interval between two of the values that contains the median of their
    distribution with a probability of at least 95 %, whatever that distribution is."""
    ordered, n = sorted(values), len(values)
    below = [math.comb(n, i) / 2**n for i in range(n + 1)]
    rank = max((r for r in range(n // 2) if 2 * sum(below[: r + 1]) <= 0.05), default=0)
    return ordered[rank], ordered[n - 1 - rank]


_CAPTURED_LAYERS = [2, 16, 29]
_LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def write_llama_shape(folder: Path) -> tuple[Path, Path]:
    """Write the config.json files of a target and an EAGLE-3.1 drafter of Llama-3.1-8B's shape, for
    dummy weights: acceptance is then meaningless, step times are not. Return their folders."""
    target = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32}
    drafter = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": 32_000,
        "fc_norm": True,
        "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": _CAPTURED_LAYERS,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": _CAPTURED_LAYERS,
            "use_aux_hidden_state": True,
        },
    }
    for name, config in (("target", target), ("drafter", drafter)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps({**_LLAMA_8B, **config}))
    return folder / "target", folder / "drafter"
