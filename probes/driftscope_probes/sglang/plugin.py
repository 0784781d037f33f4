"""SGLang's `sglang.srt.plugins` entry point: called once in every process that SGLang starts.

A fault here ends the recording and not the engine: it is logged once, and handed down to the
processes that this one starts.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable
from typing import Any

from driftscope.errors import ProbeError
from driftscope_probes.settings import engine_cores, fix_run_directory, is_disabled, settings_from
from driftscope_probes.sglang.versions import check_version
from driftscope_probes.start_guard import (
    WARNED,
    StartGuard,
    hand_down,
    handed_down,
    unknown_settings,
    warn,
)

SEAMS = (
    ("sglang.srt.speculative.eagle_worker_v2", "worker_hooks", "install_worker"),
    ("sglang.srt.speculative.ngram_worker", "ngram_hooks", "install_ngram"),
    (
        "sglang.srt.managers.scheduler_components.batch_result_processor",
        "scheduler.processor_hooks",
        "install_processor",
    ),
    ("sglang.srt.managers.scheduler", "scheduler.processor_hooks", "install_scheduler"),
)
"""SGLang module, our module that hooks it, and that module's installer. The installer runs when
SGLang imports the module, so that a process which never drafts pays nothing."""


def register() -> None:
    """Turn the probe on if DRIFTSCOPE_TRACE or DRIFTSCOPE_CONFIG is set; otherwise do nothing.

    With DRIFTSCOPE_STRICT=1 a fault ends the process: SGLang catches exceptions of its plugins.
    """
    if is_disabled(os.environ) or handed_down() is not None:
        return
    guard = StartGuard()
    try:
        with guard:
            _hook_all()
    except Exception as error:
        raise SystemExit(f"driftscope: {error}") from error
    if guard.fault is not None:
        hand_down(guard.fault)


def _hook_all() -> None:
    if WARNED not in os.environ:  # once for all processes of a start
        for line in unknown_settings(os.environ):
            warn(line)
            os.environ[WARNED] = "1"
    settings = settings_from(os.environ)
    if settings is None:
        return
    check_version(importlib.metadata.version("sglang"))
    fix_run_directory(settings)
    import wrapt

    engine_cores()
    for module, ours, installer in SEAMS:
        wrapt.register_post_import_hook(_installer(ours, installer), module)


def _installer(ours: str, name: str) -> Callable[[Any], None]:
    """Return a hook that installs a seam; if it cannot, this process records nothing."""

    def install(module: Any) -> None:
        if handed_down() is not None:
            return
        guard = StartGuard()
        with guard:
            _install_seam(ours, name, module)
        if guard.fault is not None:
            hand_down(guard.fault)

    return install


def _install_seam(ours: str, name: str, module: Any) -> None:
    try:
        getattr(importlib.import_module(f"driftscope_probes.sglang.{ours}"), name)(module)
    except AttributeError as error:
        raise ProbeError(
            f"{module.__name__} of this SGLang is organised differently from the versions that "
            f"driftscope knows ({error}); run `driftscope doctor --engine sglang`, or set "
            "DRIFTSCOPE_DISABLE=1"
        ) from error
