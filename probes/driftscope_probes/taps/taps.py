"""The hooks on a drafter: each passes what it sees to the kernels that write the chain buffers.

Between two forwards on a CPU, a Python function costs more than most of its work, because none of
it is in the processor's caches. From the third forward of a chain on, hooks therefore only note
their arguments there, and the kernels run on the notes once the chain is drafted. `Taps.attach`
installs the hooks, and `Taps.detach` removes them for good; if no graph or compiled code has
captured them, they are also removed during unrecorded steps. On a GPU they run while vLLM captures
its CUDA graphs, which then replay them; a gate on the device decides whether they write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import wrapt

from driftscope.vocabulary import Execution
from driftscope_probes.base.guard import Guard
from driftscope_probes.drafter.drafter import Drafter
from driftscope_probes.taps.kernels import Kernels
from driftscope_probes.taps.residual_op import tap_residual


class TappedModel(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """Replaces a runner's drafter and lets the taps see every forward.

    It is a proxy because vLLM's compiled classes replace `__call__`, so that module hooks never
    fire.
    """

    def __init__(self, model: Any, around: Callable[..., Any]) -> None:
        super().__init__(model)
        self._self_around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a forward of the drafter."""
        return self._self_around(self.__wrapped__, *args, **kwargs)


class Taps:
    """All hooks of one drafter; they are `active` while a step is recorded."""

    def __init__(self, drafter: Drafter, kernels: Kernels, guard: Guard, *, in_graph: bool) -> None:
        """`in_graph`: whether CUDA graphs record the taps."""
        self._drafter, self._kernels, self._guard = drafter, kernels, guard
        self.observe: Callable[..., Any] = guard.run
        """Function that runs a hook, see `observer.Switch`: at once, or deferred by `_note`."""
        self._notes: list[tuple[Any, ...]] = []
        """Arguments of `guard.run`, in order."""
        self._hooks: list[Callable[[], Callable[[], None]]] = []
        """Functions that install a hook and return a function that removes it."""
        self._undo: list[Callable[[], None]] = []
        """Functions that remove the installed hooks."""
        self.active = False
        """Whether a step is being recorded."""
        self._unconditional = in_graph
        """Whether hooks run whatever is recorded: with graph recording, True until the first served
        step. vLLM warms up and captures before that step, and what it captures must contain the
        taps. The gate is closed then."""
        self._in_graph, self._compiled = in_graph, drafter.compiled
        self._chained, self._mode = drafter.kind.chained, drafter.forward_mode
        self._outputs = tuple(drafter.kind.outputs.items())
        self._may_rest = not in_graph and not drafter.compiled
        """Whether hooks can be removed between steps: no graph or compiled code has them."""
        # Compiled code reuses memory as soon as it can.
        self._logits_change = drafter.samples or drafter.compiled
        stays = self._may_rest and not self._logits_change and drafter.device.type == "cpu"
        self._notes_fit = stays and self._chained
        """Whether the tensors that hooks see stay unchanged until the chain is drafted."""
        self._noting = False
        """Whether hooks only take notes, from the third forward of the chain in progress on."""
        self._residual: torch.Tensor | None = None
        """Residual stream of the forward in progress, if it stays unchanged until its end."""
        self.aliased_columns: dict[str, str] = {}
        """Column that is not written -> column that holds the same tensor."""
        self.forwards: list[str] = []
        """Execution mode of each forward of the step in progress that Python saw."""

    @property
    def should_record(self) -> bool:
        """Whether a hook that fires now must run its kernels."""
        return self.active or self._unconditional or (self._in_graph and _capturing())

    def attach(self, holder: Any, attribute: str) -> None:
        """Install every hook; the drafter is `attribute` of `holder`, a proposer or speculator."""
        drafter, model = self._drafter, getattr(holder, attribute)
        hooks: list[Callable[[], Callable[[], None]]] = []
        for name, layer in drafter.layers.items():
            observer = functools.partial(self._on_attention, name)
            hooks.append(functools.partial(layer.tap, observer, self))
        for norm in drafter.final_norms:
            out = torch.zeros(1, device=drafter.device)
            show = self._on_residual if drafter.compiled else self._keep_residual
            hooks.append(
                functools.partial(tap_residual, norm, out, show, compiled=drafter.compiled)
            )
        for method, observe in (
            ("compute_logits", self._on_logits),
            ("combine_hidden_states", self._on_combined if drafter.aux_states else None),
        ):
            if observe is not None and hasattr(drafter.model, method):
                hooks.append(functools.partial(self._wrap, drafter.model, method, observe))
        hooks += [
            functools.partial(_after_forward, norm, self._after_aux_norm)
            for norm in drafter.aux_norms
        ]
        hooks.append(functools.partial(self._stand_in, holder, attribute, model))
        self._hooks = hooks
        self.install()

    def detach(self) -> None:
        """Remove every hook for good, in reverse order."""
        self._hooks = []
        self._take_off()

    def uninstall(self) -> None:
        """Remove the hooks for a step that is not recorded: even idle hooks cost time."""
        if self._may_rest:
            self._take_off()

    def install(self) -> None:
        """Install the hooks for a step that is recorded."""
        if not self._undo:
            for hook in self._hooks:
                self._undo.append(hook())  # removed if a later one fails

    def _take_off(self) -> None:
        while self._undo:
            self._undo.pop()()

    def serving(self) -> None:
        """Mark the warm-up as over, because a real step is in progress."""
        self._unconditional = False
        self.forwards.clear()
        self._notes.clear()  # notes of a chain that was never finished
        self.observe, self._noting = self._guard.run, False

    def flush_notes(self) -> None:
        """Run the kernels on the notes, after the chain is drafted."""
        self.observe = run = self._guard.run
        for note in self._notes:
            run(*note)
        self._notes.clear()

    def _note(self, *note: Any) -> None:
        self._notes.append(note)

    def execution(self, depths: int) -> str:
        """Return how the chain just drafted ran; forwards that Python missed were replayed."""
        modes = list(dict.fromkeys(self.forwards))
        if len(self.forwards) < depths:
            modes.append(Execution.FULL)
        return "+".join(dict.fromkeys(modes))

    def _wrap(
        self, owner: Any, name: str, observe: Callable[[Any, Any], None]
    ) -> Callable[[], None]:
        """Call `observe(argument, result)` after each call of the one-argument method `name`."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def observed(argument: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(argument, *args, **kwargs)
            if self.should_record:
                self.observe(name, observe, argument, result)
            return result

        setattr(owner, name, observed)
        return lambda: delattr(owner, name)

    def _stand_in(self, holder: Any, attribute: str, model: Any) -> Callable[[], None]:
        """Replace the drafter by a proxy that calls `_around_forward`."""
        setattr(holder, attribute, TappedModel(model, self._around_forward))
        return lambda: setattr(holder, attribute, model)

    def _around_forward(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.should_record:
            return model(*args, **kwargs)
        # A later depth's input is what the previous depth fed forward: runners copy it.
        if self._chained and self.active and len(self.forwards) > 1:
            if self._noting:
                self.observe = self._note
            self.observe("forward_in", self._on_later_forward)
        else:
            self.observe("forward_in", self._on_forward_in, args, kwargs)
        output = model(*args, **kwargs)
        residual, self._residual = self._residual, None
        self.observe("forward_out", self._on_forward_out, output, residual)
        return output

    def _on_forward_in(self, args: Any, kwargs: Any) -> None:
        hidden = self._hidden(args, kwargs)
        later = self.active and len(self.forwards) > 0
        self.forwards.append(self.forwards[-1] if len(self.forwards) > 1 else self._mode())
        self._kernels.advance()
        if hidden is not None and not (later and self._chained):
            self._kernels.rms(hidden, "in_rms", fleeting=True)  # the runner reuses this memory

    def _on_later_forward(self) -> None:
        self.forwards.append(self.forwards[-1])
        self._kernels.advance()

    def _hidden(self, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Return the hidden states that are input to a forward, a row for each query."""
        kind = self._drafter.kind
        if not kind.fed:
            return None
        if kind.heads:
            found: torch.Tensor = args[0].repeat_interleave(self._drafter.k, 0)
            return found
        hidden: torch.Tensor | None = kwargs.get("hidden_states")
        return hidden

    def _on_forward_out(self, output: Any, residual: torch.Tensor | None) -> None:
        if isinstance(output, list):
            output = _by_request(output)
        results = output if isinstance(output, tuple) else (output,)
        measured: dict[int, str] = {}
        if residual is not None:
            self._kernels.rms(residual, "prenorm_rms")
            if self.active:
                measured[residual.data_ptr()] = "prenorm_rms"
        for name, index in self._outputs:
            result = results[index]
            at = result.data_ptr()
            if at in measured:  # the same tensor under two names
                if name not in self.aliased_columns:
                    self.aliased_columns[name] = measured[at]
            else:
                self._kernels.rms(result, name, fleeting=self._compiled)
                measured[at] = name

    def _on_attention(self, name: str, query: torch.Tensor, lse: torch.Tensor | None) -> None:
        self._kernels.copy_query(name, query, fleeting=self._compiled)
        if lse is not None:
            self._kernels.copy_lse(name, lse)

    def _on_residual(self, residual: torch.Tensor) -> None:
        """Observe in compiled code, which may reuse the memory before the forward ends."""
        if self.should_record:
            self.observe("residual", self._on_fleeting_residual, residual)

    def _on_fleeting_residual(self, residual: torch.Tensor) -> None:
        self._kernels.rms(residual, "prenorm_rms", fleeting=True)

    def _keep_residual(self, residual: torch.Tensor) -> None:
        if self.should_record:
            self._residual = residual

    def _on_logits(self, hidden: Any, logits: Any) -> None:
        if logits is not None:
            if isinstance(logits, list):
                logits = _by_request(logits)
            if len(self.forwards) == 1:  # do not keep many of them in memory
                self._noting = self._notes_fit and self._kernels.keeps(logits)
            self._kernels.confidence(logits, fleeting=self._logits_change)

    def _on_combined(self, captured: torch.Tensor, combined: torch.Tensor) -> None:
        fleeting = self._compiled
        self._kernels.rms_of_chunks(
            captured, "aux_rms", self._drafter.aux_states, fleeting=fleeting
        )
        self._kernels.rms_of_chunks(combined, "fc_rms", 1, fleeting=fleeting)

    def _after_aux_norm(self, module: Any, args: Any, output: torch.Tensor) -> None:
        if self.should_record:
            self.observe("aux_norm", self._on_aux_norm, module, output)

    def _on_aux_norm(self, module: Any, normed: torch.Tensor) -> None:
        norms, states = self._drafter.aux_norms, self._drafter.aux_states
        # There is one norm over all captured layers, or one for each.
        chunks = states if len(norms) == 1 else 1
        at = 0 if len(norms) == 1 else norms.index(module)
        self._kernels.rms_of_chunks(normed, "aux_norm_rms", chunks, at, fleeting=self._compiled)


def _by_request(heads: list[torch.Tensor]) -> torch.Tensor:
    """Return [B * K, size] from K tensors [B, size], one for each head."""
    return torch.stack(heads, 1).flatten(0, 1)


def _after_forward(module: Any, observe: Callable[..., None]) -> Callable[[], None]:
    undo: Callable[[], None] = module.register_forward_hook(observe).remove
    return undo


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
