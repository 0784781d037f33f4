"""Options of vLLM that set K."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.boundary import strict_json

FIXED, BY_BATCH = "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
"""vLLM's option names (vllm/config/speculative.py, 0.27 to 0.32). BY_BATCH is a list of [first
batch size, last, K], both ends included. The first range starts at 1, and a batch size that no
range covers takes the K of the range before it."""
NO_SPECULATION = "no --speculative-config"
Range: TypeAlias = tuple[int, int, int]
"""First batch size, last, and K."""


def fixed_option(run: RunSummary, k: int) -> str | None:
    """Return the option for one K, to paste; None if the run was served with it."""
    if (k,) == run.ks:
        return None
    return _config(run, {FIXED: k}) if k else NO_SPECULATION


def served_option(run: RunSummary) -> str | None:
    """Return the option with which a run of one K was served; None for a run of several K."""
    return None if run.mixed else _config(run, {FIXED: run.k})


def schedule_option(run: RunSummary, schedule: Sequence[Range]) -> str:
    """Return the option for a K by batch size, to paste."""
    most = max(k for _, _, k in schedule)
    return _config(run, {FIXED: most, BY_BATCH: [list(each) for each in schedule]})


def search_command(run: RunSummary) -> str:
    """Return the command that measures the next K, and the ones after it, on the user's server."""
    config = _config(run, {FIXED: run.k})
    return f"driftscope bench {shlex.quote(run.manifest.target.name)} --best-k {config}"


def _config(run: RunSummary, options: Mapping[str, Any]) -> str:
    config = {"method": run.manifest.method, "model": run.manifest.drafter.name, **options}
    return f"--speculative-config {shlex.quote(strict_json.dumps(config))}"
