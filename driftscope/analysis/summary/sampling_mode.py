"""Sampling of a run's requests and of its drafter's tokens."""

from __future__ import annotations

from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.trace.manifest import GREEDY, Manifest


def warmest(run: RunSummary) -> float | None:
    """Return the highest known sampling temperature of the run's requests; None if none is
    known."""
    return max(run.side.temperatures, default=None) if run.side else None


def tokens_are_wrong(run: RunSummary) -> bool:
    """Whether the engine returned wrong tokens for some requests, because it verifies those of
    sampled requests at temperatures that nobody asked for."""
    return run.manifest.samples_wrongly and (warmest(run) or 0.0) > 0


def drafts_greedily(manifest: Manifest) -> bool:
    """Whether the model drafts its likeliest tokens whatever the request's temperature: as recorded
    or, for an older run, whether it ran on vLLM's V1 runner."""
    if manifest.draft_sampling is not None:
        return manifest.draft_sampling == GREEDY
    return (manifest.engine, manifest.runner) == ("vllm", "v1")
