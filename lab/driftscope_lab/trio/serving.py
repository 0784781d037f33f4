"""Options for serving the shipped trio on a machine without a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence

from driftscope_lab.trio import trio_path

OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--dtype", "float32"),
    ("--max-model-len", "2048"),
    ("--max-num-seqs", "16"),
    ("--served-model-name", "tiny"),
    ("--enforce-eager",),
    ("--override-generation-config", '{"temperature": 0}'),
)
"""Options of vLLM. CPUs compute float32; eager, because compiling costs more than such small models
gain; 2048 is the longest context that the models were trained on. A request that names no
temperature gets 0: vLLM's CPU build returns wrong tokens at others without Triton."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
"""A cache of 1 GiB: vLLM then asks for no share of the machine's memory."""
SPECULATION = {"method": "eagle3", "model": "eagle31", "num_speculative_tokens": 4}
"""Speculation with the EAGLE-3.1 drafter, if a user gives none."""
_SPECULATIVE = ("--speculative-config", "-sc")


def target_path() -> str:
    """Return the path of the target."""
    return str(trio_path() / "target")


def drafter_path(name: str) -> str:
    """Return the path of the shipped drafter called `name`; any other name is returned as it is."""
    shipped = trio_path() / name
    return str(shipped) if name and shipped.is_dir() else name


def completed(options: Sequence[str]) -> list[str]:
    """Return vLLM's `options` with those of OPTIONS that a user has not given."""
    spelt = [option.partition("=")[0].replace("_", "-") for option in options]
    missing = [pair for pair in OPTIONS if pair[0] not in spelt]
    return [*options, *(part for pair in missing for part in pair)]


def with_speculation(options: Sequence[str]) -> list[str]:
    """Return vLLM's `options` with the path in place of a shipped drafter's name, and with
    SPECULATION if they name no drafter at all."""
    out, given = list(options), False
    for at, option in enumerate(options):
        name, equals, value = option.partition("=")
        given |= name.replace("_", "-").startswith((*_SPECULATIVE, "--spec-", "--config"))
        if name.replace("_", "-") not in _SPECULATIVE:
            continue
        if equals:
            out[at] = f"{name}={_located(value)}"
        elif at + 1 < len(out):
            out[at + 1] = _located(options[at + 1])
    return out if given else [*out, _SPECULATIVE[0], _located(json.dumps(SPECULATION))]


def _located(config: str) -> str:
    """Return a speculation config with the drafter's path; one that is no JSON object unchanged."""
    try:
        content = json.loads(config)
    except (ValueError, RecursionError):
        return config
    if not isinstance(content, dict) or not isinstance(content.get("model"), str):
        return config
    return json.dumps({**content, "model": drafter_path(content["model"])})
