"""The outputs of a loaded drafter, identified by watching one forward.

A drafter's class says little: heads of one method hand over the state before their final norm or
after it, have several norms or none. So one forward over made-up rows is watched, without compiled
code, attention metadata or cache, as engines run it to profile memory. An output that equals what a
norm made is post-norm; one that equals what entered a norm, or what a layer gave out, is the
residual stream. What is neither is a state of unknown place, which is fed all the same.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.vocabulary import FED_RMS, POSTNORM_RMS, PRENORM_RMS
from driftscope_probes.drafter import Remove, stand_in

ROWS = 2
"""Rows of the watched forward: an output must be equal in all of them."""
_EAGER = "do_not_compile"
"""Attribute by which a module of vLLM that may be compiled runs as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Outputs of a drafter's forward, and where its residual stream ends."""

    outputs: Mapping[str, int]
    """RMS column -> index in the forward's tuple; one tensor is a 1-tuple. An engine computes
    logits from the first and feeds the last one."""
    norms: tuple[str, ...]
    """Path of the norm whose input is the residual stream, if no output is that stream."""
    layers: tuple[str, ...]
    """Names of the attention layers that ran, in order: a model may hold others."""
    head_norms: bool = False
    """Whether there is a norm that did not run: one between the forward and the output head."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Normed:
    path: str
    entered: torch.Tensor
    """Sum of what entered the norm."""
    stream: torch.Tensor
    """Residual stream that it hands on."""
    normed: torch.Tensor

    @property
    def shows_stream(self) -> bool:
        """Whether it hands on what it normed: some hand on a residual that they have not added."""
        return torch.allclose(self.entered.float(), self.stream.float(), rtol=1e-2, atol=1e-5)


def anatomy_of(
    model: Any, attention: Mapping[str, Any], forward: Callable[[], Any], *, fed: bool
) -> Anatomy:
    """Return the anatomy of `model`, which `forward` runs once over ROWS rows.

    `attention` are its attention layers by name, and `fed` whether later depths are fed the last
    output. Raises what the forward raises.
    """
    with (
        torch.inference_mode(),
        _eager(model),
        _without_cache(attention) as layers,
        _watched(model) as (norms, streams),
    ):
        result = forward()
        results = [one.clone() for one in (result if isinstance(result, tuple) else (result,))]
    places = {len(results) - 1: -1, 0: 0}
    outputs: dict[str, int] = {}
    norm: _Normed | None = None
    for at, index in sorted(places.items()):
        column, made_by = _column_of_output(results[at], norms, streams)
        if column is not None:
            outputs.setdefault(column, index)
        norm = made_by or norm
    if fed:
        outputs[FED_RMS] = -1
    untapped = norm is None or PRENORM_RMS in outputs or not norm.shows_stream
    tapped = () if norm is None or untapped else (norm.path,)
    ran = {one.path for one in norms}
    return Anatomy(
        outputs=outputs,
        norms=tapped,
        layers=tuple(dict.fromkeys(layers)),
        head_norms=any(_is_norm(part) and path not in ran for path, part in model.named_modules()),
    )


def _column_of_output(
    state: torch.Tensor, norms: Sequence[_Normed], streams: Sequence[torch.Tensor]
) -> tuple[str | None, _Normed | None]:
    """Return the column of an output, and the norm that made it, if one did."""
    for one in reversed(norms):
        if torch.equal(one.normed, state):
            return POSTNORM_RMS, one
    entered = (one.stream for one in norms)
    if any(torch.equal(stream, state) for stream in (*entered, *streams)):
        return PRENORM_RMS, None
    return None, None


@contextlib.contextmanager
def _without_cache(attention: Mapping[str, Any]) -> Iterator[list[str]]:
    """Let attention layers give out made-up numbers, and keep the names of those that run: without
    a cache, what they give out is memory that nobody has written."""
    ran = list[str]()

    def replaced(name: str, _: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        ran.append(name)
        return output.copy_(made_up(output))

    with contextlib.ExitStack() as undo:
        for name, layer in attention.items():
            hook = functools.partial(replaced, name)
            undo.callback(layer.register_forward_hook(hook).remove)
        yield ran


def made_up(like: torch.Tensor) -> torch.Tensor:
    """Return standard normal numbers in the shape of a tensor, on its device."""
    numbers = torch.randn(like.shape, generator=torch.Generator().manual_seed(0))
    return numbers.to(like.device, like.dtype)


@contextlib.contextmanager
def _watched(model: Any) -> Iterator[tuple[list[_Normed], list[torch.Tensor]]]:
    """Keep what enters and leaves each norm, and the outputs of the other modules; a pair of equal
    shapes, as a layer hands it to the next norm, is added."""
    norms, streams = list[_Normed](), list[torch.Tensor]()

    def keep_norm(path: str, entered: torch.Tensor, made: torch.Tensor, on: torch.Tensor) -> None:
        norms.append(_Normed(path=path, entered=entered, stream=on.clone(), normed=made.clone()))

    with contextlib.ExitStack() as undo:
        for path, module in model.named_modules():
            if _is_norm(module):
                undo.callback(watch_norm(module, functools.partial(keep_norm, path)))
            elif path:
                hook = functools.partial(_keep_output, streams)
                undo.callback(module.register_forward_hook(hook).remove)
        yield norms, streams


def _is_norm(module: Any) -> bool:
    return "norm" in type(module).__name__.lower()


def watch_norm(
    norm: Any, keep: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
) -> Remove:
    """Pass what enters a norm, what the norm makes of it, and the residual stream that it hands on
    to `keep`, after each call; return the removal. A norm may change its arguments in place."""

    def around(original: Any) -> Callable[..., Any]:
        def watched(x: Any, residual: Any = None, *args: Any, **kwargs: Any) -> Any:
            entered = x.clone() if residual is None else x + residual
            result = original(x, residual, *args, **kwargs) if residual is not None else original(x)
            output, stream = result if isinstance(result, tuple) else (result, entered)
            keep(entered, output, stream)
            return result

        return watched

    name = "_forward_method" if getattr(norm, "_forward_method", None) else "forward"
    return stand_in(norm, name, around)


def _keep_output(streams: list[torch.Tensor], _: Any, __: Any, output: Any) -> None:
    parts = output if isinstance(output, tuple) else (output,)
    states = [part for part in parts if isinstance(part, torch.Tensor) and part.dim() == 2]
    if len(states) == 2 and states[0].shape == states[1].shape:
        streams.append(states[0] + states[1])
    elif len(parts) == 1 and states:
        streams.append(states[0].clone())


@contextlib.contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Run modules that may be compiled as they are."""
    compiled = [module for module in model.modules() if getattr(module, _EAGER, None) is False]
    for module in compiled:
        setattr(module, _EAGER, True)
    try:
        yield
    finally:
        for module in compiled:
            setattr(module, _EAGER, False)
