"""Hooks of SGLang's n-gram worker, which drafts without a model: acceptance and timing.

Written against sglang.srt.speculative.ngram_worker, 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftscope_probes.guard import hook_method
from driftscope_probes.sglang.attach import PROBE, attach

WORKER = "NGRAMWorker"
VIEW = "_driftscope_view"
"""Attribute of an NGRAMWorker that holds its NgramDrafts."""


class NgramDrafts:
    """An NGRAMWorker with the attributes of an EagleDraftWorker that a recording reads."""

    topk = 1
    draft_runner = None
    """No model drafts."""

    def __init__(self, worker: Any) -> None:
        self.server_args, self.device = worker.server_args, worker.device
        self.target_worker = worker.target_worker
        self.speculative_num_draft_tokens = int(worker.draft_token_num)
        self.speculative_num_steps = int(worker.draft_token_num) - 1
        """Nodes of the tree that is verified, without its root."""


def install_ngram(module: Any) -> None:
    """Hook sglang.srt.speculative.ngram_worker."""
    hook_method(module, f"{WORKER}.alloc_memory_pool", _alloc_memory_pool)
    hook_method(module, f"{WORKER}.forward_batch_generation", _step)
    hook_method(module, f"{WORKER}._prepare_for_speculative_decoding", _draft)


def _alloc_memory_pool(original: Any) -> Callable[..., Any]:
    def alloc_memory_pool(worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(worker, *args, **kwargs)
        view = NgramDrafts(worker)
        attach(view)
        setattr(worker, VIEW, view)
        return result

    return alloc_memory_pool


def _probe_of(worker: Any, batch: Any) -> Any:
    """Return what records a worker's steps; None if nothing does, or the batch has no requests."""
    probe = getattr(getattr(worker, VIEW, None), PROBE, None)
    return probe if getattr(batch, "reqs", None) else None


def _step(original: Any) -> Callable[..., Any]:
    def forward_batch_generation(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        probe = _probe_of(worker, batch)
        if probe is None:
            return original(worker, batch, *args, **kwargs)
        return probe.step(lambda: original(worker, batch, *args, **kwargs), batch)

    return forward_batch_generation


def _draft(original: Any) -> Callable[..., Any]:
    def prepare(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        probe = _probe_of(worker, batch)
        if probe is None or not batch.forward_mode.is_decode():  # a prefill drafts nothing
            return original(worker, batch, *args, **kwargs)
        view = getattr(worker, VIEW)
        return probe.draft(lambda: original(worker, batch, *args, **kwargs), view, batch)

    return prepare
