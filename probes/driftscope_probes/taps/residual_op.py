"""A tap that survives torch.compile: an op that passes the residual stream to an observer.

Module hooks inside a compiled region silently never fire. The compiler keeps an opaque op with a
mutated argument, and a CUDA graph records whatever the op launches. The op is registered through a
plain Library because torch.library.custom_op costs several times more per call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_library: Any = torch.library.Library("driftscope", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("residual(Tensor x, Tensor(a!) out, int tap) -> ()")

_observers: dict[int, Callable[[torch.Tensor], None]] = {}
"""Observers by tap number, from 0; the numbers are part of a compiled graph and so do not change
from run to run."""


def _residual(x: torch.Tensor, out: torch.Tensor, tap: int) -> None:
    if observer := _observers.get(tap):
        observer(x)


_library.impl("residual", _residual, "CompositeExplicitAutograd")
torch.library.register_fake("driftscope::residual", lambda x, out, tap: None)


def tap_residual(
    norm: Any, out: torch.Tensor, observer: Callable[[torch.Tensor], None], *, compiled: bool = True
) -> Callable[[], None]:
    """Pass the residual stream, [rows, dim], that enters vLLM's fused RMSNorm `norm` to `observer`.

    If the norm is not `compiled`, the op is not used: it takes longer than some observers.

    `out`, of one element, tells the compiler that the op has an effect. The observer must not write
    to it: a compiler may pass the op a copy and later write that back over it. If the norm is
    called without a residual, the observer gets the norm's plain input. Returns a function that
    removes the tap.
    """
    number = next(i for i in range(len(_observers) + 1) if i not in _observers)
    show = observer
    if compiled:
        show = functools.partial(torch.ops.driftscope.residual, out=out, tap=number)
    name = "_forward_method" if hasattr(norm, "_forward_method") else "forward"
    original = getattr(norm, name)

    @functools.wraps(original)
    def tapped(x: torch.Tensor, residual: torch.Tensor | None = None, *a: Any, **kw: Any) -> Any:
        if residual is None:
            show(x)
            return original(x, residual, *a, **kw)
        result = original(x, residual, *a, **kw)
        show(result[1])
        return result

    def undo() -> None:
        setattr(norm, name, original)
        _observers.pop(number, None)

    _observers[number] = observer
    setattr(norm, name, tapped)
    return undo
