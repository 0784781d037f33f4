"""A tap that survives torch.compile: an op that shows the residual stream to an observer.

Module hooks inside a compiled region silently never fire; an opaque op with a mutated argument is
kept by the compiler, and whatever it launches is recorded by a CUDA graph. Registered through a
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
"""By number, from 0: part of a compiled graph, so the same from run to run."""


def _residual(x: torch.Tensor, out: torch.Tensor, tap: int) -> None:
    if observer := _observers.get(tap):
        observer(x)


_library.impl("residual", _residual, "CompositeExplicitAutograd")
torch.library.register_fake("driftscope::residual", lambda x, out, tap: None)


def tap_residual(
    norm: Any, out: torch.Tensor, observer: Callable[[torch.Tensor], None], *, compiled: bool = True
) -> Callable[[], None]:
    """Show `observer` the residual stream, [rows, dim], that enters vLLM's fused RMSNorm `norm`.

    Where the norm is not `compiled`, without the op: it takes longer than some observers.

    By `out`, of one element, the compiler knows that the op has an effect. It must not be what the
    observer writes to: a compiler may hand the op a copy, and later write that back over it.
    A norm that is called without a residual is shown its plain input. Returns the undoing.
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
