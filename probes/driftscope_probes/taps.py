"""The hooks on a drafter: each measures one thing and adds it to the step's capture.

`Taps.attach` puts them on, `Taps.detach` takes them off again. A hook that finds no capture under
way does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from driftscope_probes.attention import CLASSES, ChainMasses
from driftscope_probes.capture import Capture
from driftscope_probes.drafter import Drafter
from driftscope_probes.guard import Guard
from driftscope_probes.keys import KeyReader, reader_for
from driftscope_probes.norm_op import pause, resume, row_rms, tap_residual


class Taps:
    """All hooks of one drafter: `start` and `stop` around each step that is recorded."""

    def __init__(self, drafter: Drafter, guard: Guard, sink_tokens: int) -> None:
        self._drafter, self._guard, self._sink_tokens = drafter, guard, sink_tokens
        self._masses: dict[str, ChainMasses] = {}
        self._undo: list[Callable[[], None]] = []
        self.capture: Capture | None = None
        """The step being recorded, None between."""

    def attach(self) -> None:
        """Put every hook on the drafter; raises ProbeError for an unsupported attention backend."""
        drafter = self._drafter
        model = drafter.model
        for name, layer in drafter.attention.items():
            self._wrap_attention(name, layer, reader_for(drafter.backend, layer))
        self._prenorm, undo = tap_residual(model.model.norm, drafter.max_rows)
        pause(self._prenorm)
        self._undo += [undo, lambda: resume(self._prenorm)]
        before = model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        after = model.register_forward_hook(self._after_forward)
        self._undo += [before.remove, after.remove]
        self._wrap(model, "compute_logits", self._on_logits)
        if drafter.aux_states:
            self._wrap(model, "combine_hidden_states", self._on_combined)
            for norm in _last_aux_norms(model.model):
                self._undo.append(norm.register_forward_hook(self._after_aux_norm).remove)

    def detach(self) -> None:
        """Take every hook off, in reverse order."""
        while self._undo:
            self._undo.pop()()

    def start(self, capture: Capture) -> None:
        """Record the coming drafter step into `capture`."""
        self.capture = capture
        resume(self._prenorm)

    def stop(self) -> None:
        """Record no more."""
        if self.capture is not None:
            self.capture = None
            pause(self._prenorm)

    def _wrap(self, owner: Any, name: str, observe: Callable[[Any, Any], None]) -> None:
        """Let `observe(argument, result)` see each call of the one-argument method `name`."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def observed(argument: Any) -> Any:
            result = original(argument)
            if self.capture is not None:
                self._guard.run(name, lambda: observe(argument, result))
            return result

        setattr(owner, name, observed)
        self._undo.append(lambda: delattr(owner, name))

    def _wrap_attention(self, name: str, layer: Any, reader: KeyReader) -> None:
        original = layer.impl.forward

        @functools.wraps(original)
        def observed(layer_: Any, query: Any, key: Any, value: Any, cache: Any, meta: Any,
                     *args: Any, **kwargs: Any) -> Any:  # fmt: skip
            result = original(layer_, query, key, value, cache, meta, *args, **kwargs)
            if self.capture is not None and meta is not None:
                self._guard.run(
                    "attention",
                    lambda: self._on_attention(name, layer, reader, query, key, cache, meta),
                )
            return result

        layer.impl.forward = observed
        self._undo.append(lambda: delattr(layer.impl, "forward"))

    def _on_attention(self, name: str, layer: Any, reader: KeyReader, query: torch.Tensor,
                      key: torch.Tensor, cache: torch.Tensor, meta: Any) -> None:  # fmt: skip
        capture = self._capturing
        rows, size = capture.rows, layer.head_size
        if capture.depth == 1:
            batch = len(capture.step.requests)
            context, room = int(meta.max_seq_len), capture.step.k - 1
            keys = reader.gather(cache, meta.block_table[:batch], context, room)
            self._masses[name] = ChainMasses(
                capture.step, keys, self._sink_tokens, layer.impl.scale
            )
        masses = self._masses[name].measure(
            query.view(query.shape[0], -1, size)[rows],
            key.view(key.shape[0], -1, size)[rows],
            capture.depth,
        )
        for mass, values in zip(CLASSES, masses.unbind(1), strict=True):
            capture.add(f"{mass}_mass", values)

    def _before_forward(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if self.capture is not None:
            self._guard.run("forward_in", lambda: self._on_forward_in(kwargs["hidden_states"]))

    def _on_forward_in(self, hidden: torch.Tensor) -> None:
        capture = self._capturing
        capture.depth += 1
        self._prenorm.fill_(torch.nan)
        capture.add("in_rms", row_rms(hidden[capture.rows]))

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        if self.capture is not None:
            self._guard.run("forward_out", lambda: self._on_forward_out(*output))

    def _on_forward_out(self, postnorm: torch.Tensor, fed: torch.Tensor) -> None:
        capture = self._capturing
        capture.add("postnorm_rms", row_rms(postnorm[capture.rows]))
        capture.add("fed_rms", row_rms(fed[capture.rows]))
        capture.add("prenorm_rms", self._prenorm[capture.rows].clone())

    def _on_logits(self, hidden: torch.Tensor, logits: torch.Tensor | None) -> None:
        capture = self._capturing
        if logits is None:
            return
        log_p = torch.log_softmax(logits[: len(capture.step.requests)].float(), dim=-1)
        p = log_p.exp()
        capture.add("top1", p.amax(-1))
        capture.add("entropy", -torch.special.xlogy(p, p).sum(-1))

    def _on_combined(self, captured: torch.Tensor, combined: torch.Tensor) -> None:
        capture = self._capturing
        for state in captured[capture.step.rows].chunk(self._drafter.aux_states, dim=-1):
            capture.add("aux_rms", row_rms(state))
        capture.add("fc_rms", row_rms(combined[capture.step.rows]))

    def _after_aux_norm(self, module: Any, args: Any, output: torch.Tensor) -> None:
        if self.capture is not None:
            self._guard.run("aux_norm", lambda: self._on_aux_norm(module, output))

    def _on_aux_norm(self, module: Any, normed: torch.Tensor) -> None:
        capture, inner = self._capturing, self._drafter.model.model
        # One norm over all captured layers, or one for each.
        chunks = self._drafter.aux_states if module is getattr(inner, "input_norm", None) else 1
        for state in normed[capture.step.rows].chunk(chunks, dim=-1):
            capture.add("aux_norm_rms", row_rms(state))

    @property
    def _capturing(self) -> Capture:
        assert self.capture is not None
        return self.capture


def _last_aux_norms(inner: Any) -> tuple[Any, ...]:
    """The norms whose output vLLM's drafter gives to fc: `fc_norm`, else that of norm_before_fc."""
    if per_layer := getattr(inner, "fc_norm", None):
        return tuple(per_layer)
    over_all = getattr(inner, "input_norm", None)
    return () if over_all is None else (over_all,)
