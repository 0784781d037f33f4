"""Hooks of SGLang's scheduler.

Written against sglang.srt.managers.scheduler and
sglang.srt.managers.scheduler_components.batch_result_processor, 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftscope_probes.guard import hook_method
from driftscope_probes.sglang.scheduler.scheduler_observer import observer

PROCESSOR = "SchedulerBatchResultProcessor"
SCHEDULER = "Scheduler"


def install_processor(module: Any) -> None:
    """Hook sglang.srt.managers.scheduler_components.batch_result_processor."""
    hook_method(module, f"{PROCESSOR}.process_batch_result_decode", _processed(decode=True))
    hook_method(module, f"{PROCESSOR}.process_batch_result_prefill", _processed(decode=False))


def install_scheduler(module: Any) -> None:
    """Hook sglang.srt.managers.scheduler."""
    hook_method(module, f"{SCHEDULER}.send_abort_output", _aborted)


def _aborted(original: Any) -> Callable[..., Any]:
    def send_abort_output(scheduler: Any, abort: Any, req: Any) -> Any:
        if (observed := observer()) is not None:
            observed.aborted(req)
        return original(scheduler, abort, req)

    return send_abort_output


def _processed(*, decode: bool) -> Callable[[Any], Callable[..., Any]]:
    def around(original: Any) -> Callable[..., Any]:
        def process(processor: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                return original(processor, batch, result, *args, **kwargs)

            observed = observer()
            if observed is None:
                return run()
            return observed.around(run, batch, result, decode=decode)

        return process

    return around
