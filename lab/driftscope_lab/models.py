"""The models that the lab knows by name, and how vLLM serves them on a machine without a GPU.

`trio` is tiny and shipped whole; `smollm2` is a real model that is fetched once, and only its
drafters are shipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from driftscope_lab import smollm2, trio

_SPECULATIVE = ("--speculative-config", "-sc")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
"""The V1 runner, which a CPU uses natively."""
_GREEDY = ("--override-generation-config", '{"temperature": 0}')
"""A request that names no temperature gets 0: vLLM's CPU build returns wrong tokens at others
without Triton."""


_SPECULATION = {"method": "eagle3", "model": "eagle31", "num_speculative_tokens": 4}
"""Speculation if a user names none."""


def _shipped_target() -> Path:
    return trio.trio_path() / "target"


def _fetched_target() -> Path:
    from driftscope_lab.smollm2.fetch import fetched

    return fetched()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabModel:
    """A target, its shipped drafters, and vLLM's `options` for it on a CPU, each with its value if
    it takes one: eager, because compiling costs more than models this small gain.
    """

    name: str
    folder: Path
    """The target's folder, once it is there."""
    prepared: Callable[[], Path]
    """Returns that folder, fetched first if need be; raises DriftscopeError."""
    drafters: Path
    """Folder of an EAGLE-3 and an EAGLE-3.1 drafter."""
    options: tuple[tuple[str, ...], ...]
    cache_gib: int
    """Size of the cache: vLLM then asks for no share of the machine's memory."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of vLLM."""
        return {**_ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": str(self.cache_gib)}

    def drafter(self, name: str) -> str:
        """Return the path of the drafter called `name`; any other name is returned as it is."""
        shipped = self.drafters / name
        return str(shipped) if name and shipped.is_dir() else name

    def completed(self, options: Sequence[str]) -> list[str]:
        """Return vLLM's `options` with this model's that a user has not given."""
        spelt = [option.partition("=")[0].replace("_", "-") for option in options]
        missing = [pair for pair in self.options if pair[0] not in spelt]
        return [*options, *(part for pair in missing for part in pair)]

    def with_speculation(self, options: Sequence[str]) -> list[str]:
        """Return vLLM's `options` with the path in place of a drafter's name, and with the
        EAGLE-3.1 drafter if they name none at all."""
        out, given = list(options), False
        for at, option in enumerate(options):
            name, equals, value = option.partition("=")
            given |= name.replace("_", "-").startswith((*_SPECULATIVE, "--spec-", "--config"))
            if name.replace("_", "-") not in _SPECULATIVE:
                continue
            if equals:
                out[at] = f"{name}={self._located(value)}"
            elif at + 1 < len(out):
                out[at + 1] = self._located(options[at + 1])
        if given:
            return out
        return [*out, _SPECULATIVE[0], self._located(json.dumps(_SPECULATION))]

    def _located(self, config: str) -> str:
        """Return a speculation config with the drafter's path; what is no JSON object unchanged."""
        try:
            content = json.loads(config)
        except (ValueError, RecursionError):
            return config
        if not isinstance(content, dict) or not isinstance(content.get("model"), str):
            return config
        return json.dumps({**content, "model": self.drafter(content["model"])})


TRIO = LabModel(
    name="trio",
    folder=trio.trio_path() / "target",
    prepared=_shipped_target,
    drafters=trio.trio_path(),
    options=(
        ("--dtype", "float32"),
        ("--max-model-len", "2048"),
        ("--max-num-seqs", "16"),
        ("--served-model-name", "tiny"),
        ("--enforce-eager",),
        _GREEDY,
    ),
    cache_gib=1,
)
SMOLLM2 = LabModel(
    name="smollm2",
    folder=smollm2.target_folder(),
    prepared=_fetched_target,
    drafters=smollm2.drafters_folder(),
    options=(
        ("--dtype", "bfloat16"),
        ("--max-model-len", "4096"),
        ("--max-num-seqs", "16"),
        ("--served-model-name", "smollm2"),
        ("--enforce-eager",),
        _GREEDY,
    ),
    cache_gib=2,
)
MODELS: Mapping[str, LabModel] = {one.name: one for one in (TRIO, SMOLLM2)}


def lab_model(model: str) -> LabModel | None:
    """Return the model of that name, or whose target has that path, as runs name it; or None."""
    by_path = (one for one in MODELS.values() if model == str(one.folder))
    return MODELS.get(model) or next(by_path, None)


def lab_folder(name: str) -> Path:
    """Return the folder of a target, or of a drafter: the trio's `eagle31`, or `MODEL-eagle31`. A
    target is fetched first if need be. Raises DriftscopeError where that is not possible."""
    if name in MODELS:
        return MODELS[name].prepared()
    model, _, drafter = name.rpartition("-")
    return Path(MODELS[model or TRIO.name].drafter(drafter))
