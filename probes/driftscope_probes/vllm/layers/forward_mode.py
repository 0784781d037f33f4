"""How vLLM runs the forward under way: eager, compiled, or in CUDA graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from driftscope.trace.format.records import Execution


@functools.cache
def _forward_context() -> tuple[Callable[[], bool], Callable[[], Any]]:
    """Return vLLM's two functions: whether there is a context, and which; imported once."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    return is_forward_context_available, get_forward_context


def forward_mode(compiled: bool) -> str:
    """Return how vLLM says that it runs the forward under way, one of `Execution`."""
    plain = Execution.COMPILED if compiled else Execution.EAGER
    available, context = _forward_context()
    if not available():
        return plain
    name = getattr(context().cudagraph_runtime_mode, "name", "NONE")
    return {"PIECEWISE": Execution.PIECEWISE, "FULL": Execution.FULL}.get(str(name), plain)
