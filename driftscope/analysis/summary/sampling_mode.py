"""How a run's requests were sampled, and its drafter's guesses."""

from __future__ import annotations

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.trace.format.manifest import GREEDY, Manifest


def warmest(run: RunSummary) -> float | None:
    """The highest known sampling temperature of the run's requests."""
    return max(run.side.temperatures, default=None) if run.side else None


def drafts_greedily(manifest: Manifest) -> bool:
    """Whether a model drafts its likeliest tokens whatever the request's temperature: as recorded,
    and of an older run vLLM's V1 runner."""
    if manifest.draft_sampling is not None:
        return manifest.draft_sampling == GREEDY
    return (manifest.engine, manifest.runner) == ("vllm", "v1")
