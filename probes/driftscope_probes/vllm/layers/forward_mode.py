"""The execution mode of vLLM's forward in progress: eager, compiled, or in CUDA graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from driftscope.vocabulary import Execution


@functools.cache
def _forward_context() -> tuple[Callable[[], bool], Callable[[], Any]]:
    """Return vLLM's functions that test for and get the context; imported once."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    return is_forward_context_available, get_forward_context


def forward_mode(compiled: bool) -> str:
    """Return the mode that vLLM reports for the forward in progress, one of `Execution`."""
    plain = Execution.COMPILED if compiled else Execution.EAGER
    available, context = _forward_context()
    if not available():
        return plain
    name = getattr(context().cudagraph_runtime_mode, "name", "NONE")
    return {"PIECEWISE": Execution.PIECEWISE, "FULL": Execution.FULL}.get(str(name), plain)
