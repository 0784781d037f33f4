"""Hooks of SGLang's EAGLE worker; the only module that knows its methods' arguments.

Written against sglang.srt.speculative.eagle_worker_v2, 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftscope_probes.guard import hook_method
from driftscope_probes.sglang.attach import PROBE, attach
from driftscope_probes.sglang.worker_probe import rows_after_prefill, rows_after_verification

WORKER, DRAFTER = "EAGLEWorkerV2", "EagleDraftWorker"


def install_worker(module: Any) -> None:
    """Hook sglang.srt.speculative.eagle_worker_v2."""
    hook_method(module, f"{WORKER}.forward_batch_generation", _step)
    hook_method(module, f"{DRAFTER}.init_attention_backends", _init_attention_backends)
    hook_method(module, f"{DRAFTER}.draft", _draft)
    hook_method(module, f"{DRAFTER}._draft_extend_for_prefill", _extend_for_prefill)
    hook_method(module, f"{DRAFTER}._draft_extend_for_decode", _extend_for_decode)


def _serves(batch: Any) -> bool:
    """Return whether a ScheduleBatch has requests: an idle rank's has none."""
    return bool(getattr(batch, "reqs", None))


def _init_attention_backends(original: Any) -> Callable[..., Any]:
    def init_attention_backends(worker: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(worker, *args, **kwargs)
        attach(worker)
        return result

    return init_attention_backends


def _step(original: Any) -> Callable[..., Any]:
    def forward_batch_generation(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        probe = getattr(getattr(worker, "_draft_worker", None), PROBE, None)
        if probe is None or not _serves(batch):
            return original(worker, batch, *args, **kwargs)
        return probe.step(lambda: original(worker, batch, *args, **kwargs), batch)

    return forward_batch_generation


def _draft(original: Any) -> Callable[..., Any]:
    def draft(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        probe = getattr(worker, PROBE, None)
        if probe is None or not _serves(batch) or kwargs.get("with_topology"):
            return original(worker, batch, *args, **kwargs)
        return probe.draft(lambda: original(worker, batch, *args, **kwargs), worker, batch)

    return draft


def _extend_for_prefill(original: Any) -> Callable[..., Any]:
    def extend(worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        probe = getattr(worker, PROBE, None)
        if probe is None or not _serves(batch):
            return original(worker, batch, *args, **kwargs)
        return probe.extend(
            lambda: original(worker, batch, *args, **kwargs),
            worker,
            batch,
            lambda: rows_after_prefill(batch),
        )

    return extend


def _extend_for_decode(original: Any) -> Callable[..., Any]:
    def extend(worker: Any, batch: Any, verified: Any, *args: Any, **kwargs: Any) -> Any:
        probe = getattr(worker, PROBE, None)
        if probe is None or not _serves(batch):
            return original(worker, batch, verified, *args, **kwargs)
        width = worker.speculative_num_draft_tokens
        return probe.extend(
            lambda: original(worker, batch, verified, *args, **kwargs),
            worker,
            batch,
            lambda: rows_after_verification(verified.accept_lens, width),
        )

    return extend
