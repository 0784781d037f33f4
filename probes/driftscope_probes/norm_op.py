"""A tap that survives torch.compile: an op that writes each row's RMS into a static buffer.

Module hooks inside a compiled region silently never fire; an opaque op with a mutated argument is
kept by the compiler, and recorded by a CUDA graph. Registered through a plain Library because
torch.library.custom_op costs several times more per call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

_library: Any = torch.library.Library("driftscope", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("row_rms(Tensor x, Tensor(a!) out) -> ()")


_paused: set[int] = set()
"""Addresses of the buffers that need not be filled at present."""


def _row_rms(x: torch.Tensor, out: torch.Tensor) -> None:
    rows = x.shape[0]
    if out.data_ptr() not in _paused and rows <= out.shape[0]:
        out[:rows] = row_rms(x)


def pause(buffer: torch.Tensor) -> None:
    """Let forwards pass without filling `buffer`: most steps are not recorded."""
    _paused.add(buffer.data_ptr())


def resume(buffer: torch.Tensor) -> None:
    """Fill `buffer` again."""
    _paused.discard(buffer.data_ptr())


def row_rms(x: torch.Tensor) -> torch.Tensor:
    """||row||_2 / sqrt(dim) of each row of [rows, dim]; float32 [rows]."""
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)
    return norm / math.sqrt(x.shape[-1])


_library.impl("row_rms", _row_rms, "CompositeExplicitAutograd")
torch.library.register_fake("driftscope::row_rms", lambda x, out: None)


def tap_residual(norm: Any, rows: int) -> tuple[torch.Tensor, Callable[[], None]]:
    """Tap the residual stream that enters vLLM's fused RMSNorm `norm`.

    Returns the buffer, float32 [rows], that each forward fills with the pre-norm RMS, and a
    function that takes the tap off again.
    """
    buffer = torch.full((rows,), torch.nan, device=norm.weight.device)
    name = "_forward_method" if hasattr(norm, "_forward_method") else "forward"
    original = getattr(norm, name)

    @functools.wraps(original)
    def tapped(x: torch.Tensor, residual: torch.Tensor | None = None, *a: Any, **kw: Any) -> Any:
        out = original(x, residual, *a, **kw)
        if residual is not None:
            torch.ops.driftscope.row_rms(out[1], buffer)
        return out

    setattr(norm, name, tapped)
    return buffer, lambda: setattr(norm, name, original)
