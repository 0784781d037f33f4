"""A kind of drafter: how to build a tiny one, and the options with which vLLM serves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "disable_log_stats": False,
    "skip_tokenizer_init": True,
}
"""Options that all kinds share."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of drafter with random weights."""

    name: str
    build: Callable[[Path], None]
    """Writes the models' folders below the given one; the same bytes on every call."""
    options: Callable[[Path], dict[str, Any]]
    """Returns the options of `LLM` beyond `ENGINE`, given the folder that `build` filled."""
    runners: tuple[str, ...]
    """Runners among "v1" and "v2" that serve it on a CPU (vLLM 0.32.0)."""
    why_not: str | None = None
    """Reason why the others fail, with the line of vLLM's source."""

    def llm(self, folder: Path) -> dict[str, Any]:
        """Return all options for `LLM`."""
        return {**ENGINE, **self.options(folder)}
