"""The taps of a drafter: hooks on its modules that show each forward to the kernels.

`Taps.attach` installs the hooks, and `Taps.detach` removes them for good; if no graph or compiled
code has captured them, they are also removed during unrecorded steps. On a GPU they run while vLLM
captures its CUDA graphs, which then replay them; a gate on the device decides whether they write.

Between two forwards on a CPU, a Python function costs more than most of its work, because none of
it is in the processor's caches. Hooks therefore only note their arguments there, and the kernels
run on the notes once the chain is drafted.

Module hooks inside a compiled region silently never fire. The compiler keeps an opaque op with a
mutated argument, and a CUDA graph records whatever the op launches. The op is registered through a
plain Library because torch.library.custom_op costs several times more per call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
import wrapt

from driftscope.vocabulary import Execution
from driftscope_probes.drafter import Drafter, Remove, stand_in
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels
from driftscope_probes.near_misses import KeptLogits

Hook = Callable[[], Remove]
"""Function that installs one hook."""
Note = tuple[Any, ...]
"""Arguments of `Guard.run`: a hook's name, its action, and what it has seen."""


class HookSet:
    """The hooks of one drafter.

    ===================  =======================================================================
    `attach(hooks)`      install the hooks for the first time
    `uninstall()`        remove them during a step that is not recorded, if they may be removed
    `install()`          install them again
    `detach()`           remove them for good
    ===================  =======================================================================
    """

    def __init__(self, *, removable: bool) -> None:
        """`removable`: no graph or compiled code has captured the hooks."""
        self._removable = removable
        self._hooks: tuple[Hook, ...] = ()
        self._installed: list[Remove] = []

    def attach(self, hooks: Iterable[Hook]) -> None:
        """Install `hooks`, which are this set's from now on."""
        self._hooks = tuple(hooks)
        self.install()

    def install(self) -> None:
        """Install the hooks for a step that is recorded."""
        if not self._installed:
            for hook in self._hooks:
                self._installed.append(hook())  # removed if a later one fails

    def uninstall(self) -> None:
        """Remove the hooks for a step that is not recorded: even idle hooks cost time."""
        if self._removable:
            self._remove_all()

    def detach(self) -> None:
        """Remove every hook for good, in reverse order."""
        self._hooks = ()
        self._remove_all()

    def _remove_all(self) -> None:
        while self._installed:
            self._installed.pop()()


class HookSwitch:
    """The state of the chain in progress that all hooks of a drafter share.

    Values that callers read or set in every step are plain attributes.
    """

    def __init__(self, guard: Guard, *, in_graph: bool) -> None:
        """`in_graph`: whether CUDA graphs record the taps."""
        self.run, self._run_all, self._in_graph = guard.run, guard.run_all, in_graph
        self.active = False
        """Whether a step is being recorded."""
        self.observe: Callable[[Note], Any] = self._run_note
        """Function that runs a hook, see `drafter.Switch`: at once, or in `flush_notes`."""
        self.can_note: Callable[[], bool] = bool
        """Function that returns whether hooks of the chain that begins may only take notes."""
        self.notes: list[Note] = []
        self.forwards: list[str] = []
        """Execution mode of each forward of the step in progress that Python saw."""
        self._unconditional = in_graph
        """Whether hooks run whatever is recorded: with graph recording, True until the first served
        step. vLLM warms up and captures before that step, and what it captures must contain the
        taps. The gate is closed then."""

    @property
    def should_record(self) -> bool:
        """Whether a hook that fires now must run its kernels."""
        return self.active or self._unconditional or (self._in_graph and _capturing())

    def serving(self) -> None:
        """Mark the warm-up as over, because a real step is in progress."""
        self._unconditional = False
        self.forwards.clear()
        self.notes.clear()  # notes of a chain that was never finished
        self.observe = self._run_note

    def begin(self) -> None:
        """Record the chain that is about to be drafted, after `serving`."""
        if self.can_note():
            self.observe = self.notes.append
        self.active = True

    def _run_note(self, note: Note) -> None:
        self.run(*note)

    def flush_notes(self) -> None:
        """Run the hooks that were noted, after the chain is drafted."""
        self.observe = self._run_note
        if self.notes:
            self._run_all(self.notes)
            self.notes.clear()


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class ChainObserver(Protocol):
    """Knows how the chain just drafted was observed."""

    @property
    def aliased_columns(self) -> Mapping[str, str]:
        """Column that is not written -> column that holds the same tensor; may grow."""

    def execution(self, depths: int) -> str:
        """Return how the chain just drafted ran, one of `Execution`."""


class ChainTaps(Protocol):
    """The hooks of one drafter, which pass what they see to its kernels."""

    @property
    def hooks(self) -> HookSet:
        """The hooks, which a recorder removes during steps that are not recorded."""

    @property
    def switch(self) -> HookSwitch:
        """Decides for each hook that fires whether it runs."""

    @property
    def observer(self) -> ChainObserver:
        """See ChainObserver."""

    def attach(self, holder: Any, attribute: str) -> None:
        """Install every hook; the drafter is `attribute` of `holder`."""

    def detach(self) -> None:
        """Remove every hook for good."""


class MakeTaps(Protocol):
    """Builds the taps of a drafter."""

    def __call__(
        self, drafter: Drafter, kernels: Kernels, guard: Guard, *, in_graph: bool
    ) -> ChainTaps:
        """Return the taps, not attached yet; `in_graph`: whether CUDA graphs record them."""


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


class ForwardObserver:
    """Observes the forwards of one drafter; its public methods are what the hooks call."""

    def __init__(
        self, drafter: Drafter, kernels: Kernels, switch: HookSwitch, *, in_graph: bool
    ) -> None:
        """`in_graph`: whether CUDA graphs record the taps."""
        self._drafter, self._kernels, self._switch = drafter, kernels, switch
        self._compiled, self._mode = drafter.compiled, drafter.forward_mode
        self._chained, self._outputs = drafter.kind.chained, tuple(drafter.kind.outputs.items())
        self._one_aux_norm, self._aux_states = len(drafter.aux_norms) == 1, drafter.aux_states
        # Compiled code reuses memory as soon as it can.
        self._logits_change = drafter.samples or drafter.compiled
        stays = not in_graph and not self._logits_change and drafter.device.type == "cpu"
        self._notes_fit = stays and self._chained
        """Whether the tensors that hooks see stay unchanged until the chain is drafted."""
        self._vocabulary: int | None = None
        """Number of logits of a row, known after the first chain."""
        self._later_forward: Note = ("forward_in", self._on_later_forward)
        switch.can_note = self._can_note
        self.near_misses: KeptLogits | None = None
        """Keeps the logits of recorded chains, where Python sees them."""
        self._residual: torch.Tensor | None = None
        """Residual stream of the forward in progress, if it stays unchanged until its end."""
        self.aliased_columns: dict[str, str] = {}
        """Column that is not written -> column that holds the same tensor."""

    def execution(self, depths: int) -> str:
        """Return how the chain just drafted ran; forwards that Python missed were replayed."""
        forwards = self._switch.forwards
        modes = list(dict.fromkeys(forwards))
        if len(forwards) < depths:
            modes.append(Execution.FULL)
        return "+".join(dict.fromkeys(modes))

    def around_forward(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a forward of the drafter, observed if a hook must run now."""
        switch = self._switch
        if not (switch.active or switch.should_record):
            return model(*args, **kwargs)
        forwards = switch.forwards
        # A later depth's input is what the previous depth fed forward: runners copy it.
        if self._chained and switch.active and forwards:
            if len(forwards) > 1:
                forwards.append(forwards[-1])
            else:
                switch.run("forward_in", self._see_mode)
            switch.observe(self._later_forward)
        else:  # the buffer that holds the input is written again before the chain is drafted
            switch.run("forward_in", self._on_forward_in, args, kwargs)
        output = model(*args, **kwargs)
        residual, self._residual = self._residual, None
        switch.observe(("forward_out", self._on_forward_out, output, residual))
        return output

    def on_residual(self, residual: torch.Tensor) -> None:
        """Observe in compiled code, which may reuse the memory before the forward ends."""
        if self._switch.should_record:
            self._switch.observe(("residual", self._on_fleeting_residual, residual))

    def keep_residual(self, residual: torch.Tensor) -> None:
        """Keep the residual stream until the forward ends, which compares it with the outputs."""
        switch = self._switch
        if switch.active or switch.should_record:
            self._residual = residual

    def on_logits(self, hidden: Any, logits: Any) -> None:
        """Measure the confidence of a depth."""
        if logits is not None:
            if isinstance(logits, list):
                logits = _by_request(logits)
            self._vocabulary = logits.shape[-1]
            self._kernels.confidence(logits, fleeting=self._logits_change)
            near_misses = self.near_misses
            if near_misses is not None and near_misses.wanted and self._switch.active:
                near_misses.keep(logits)

    def on_combined(self, captured: torch.Tensor, combined: torch.Tensor) -> None:
        """Measure the target's captured states, and the state that they are combined into."""
        fleeting = self._compiled
        self._kernels.rms_of_chunks(captured, "aux_rms", self._aux_states, fleeting=fleeting)
        self._kernels.rms_of_chunks(combined, "fc_rms", 1, fleeting=fleeting)

    def on_aux_norm(self, number: int, _: Any, normed: torch.Tensor) -> None:
        """Measure captured states after their norm: there is one over all captured layers, or one
        for each."""
        chunks = self._aux_states if self._one_aux_norm else 1
        self._kernels.rms_of_chunks(normed, "aux_norm_rms", chunks, number, fleeting=self._compiled)

    def _can_note(self) -> bool:
        """Return whether a chain's tensors stay unchanged, and are few enough to be kept."""
        few = self._vocabulary is not None and self._kernels.keeps(self._vocabulary)
        return self._notes_fit and few

    def _see_mode(self) -> None:
        self._switch.forwards.append(self._mode())

    def _on_forward_in(self, args: Any, kwargs: Any) -> None:
        forwards = self._switch.forwards
        forwards.append(forwards[-1] if len(forwards) > 1 else self._mode())
        hidden = self._hidden(args, kwargs)
        self._kernels.advance(hidden, attention_follows=forwards[-1] != Execution.FULL)

    def _on_later_forward(self) -> None:
        self._kernels.advance(attention_follows=self._switch.forwards[-1] != Execution.FULL)

    def _hidden(self, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Return the hidden states that are input to a forward, a row for each query."""
        kind = self._drafter.kind
        if not kind.fed:
            return None
        if kind.heads:
            repeated: torch.Tensor = args[0].repeat_interleave(self._drafter.k, 0)
            return repeated
        hidden: torch.Tensor | None = kwargs.get("hidden_states")
        return hidden

    def _on_forward_out(self, output: Any, residual: torch.Tensor | None) -> None:
        if isinstance(output, list):
            output = _by_request(output)
        results = output if isinstance(output, tuple) else (output,)
        measured: dict[int, str] = {}
        outputs: list[tuple[str, torch.Tensor]] = []
        if residual is not None:
            outputs.append(("prenorm_rms", residual))
            if self._switch.active:
                measured[residual.data_ptr()] = "prenorm_rms"
        for name, index in self._outputs:
            result = results[index]
            address = result.data_ptr()
            if address in measured:  # the same tensor under two names
                if name not in self.aliased_columns:
                    self.aliased_columns[name] = measured[address]
            else:
                outputs.append((name, result))
                measured[address] = name
        self._kernels.rms_of_outputs(outputs, fleeting=self._compiled)

    def _on_fleeting_residual(self, residual: torch.Tensor) -> None:
        self._kernels.rms(residual, "prenorm_rms", fleeting=True)


def _by_request(heads: list[torch.Tensor]) -> torch.Tensor:
    """Return [B * K, size] from K tensors [B, size], one for each head."""
    return torch.stack(heads, 1).flatten(0, 1)


class Taps:
    """The hooks of one drafter, with what they share.

    =============  ===========================================================================
    `hooks`        the set of hooks; a recorder removes it during steps that are not recorded
    `switch`       decides for each hook that fires whether it runs; active in recorded steps
    `observer`     passes what the hooks see to the kernels
    =============  ===========================================================================

    A recorder calls these three directly: nothing lies between it and a hook.
    """

    def __init__(self, drafter: Drafter, kernels: Kernels, guard: Guard, *, in_graph: bool) -> None:
        """`in_graph`: whether CUDA graphs record the taps."""
        self._drafter = drafter
        self.hooks = HookSet(removable=not in_graph and not drafter.compiled)
        self.switch = HookSwitch(guard, in_graph=in_graph)
        self.observer = ForwardObserver(drafter, kernels, self.switch, in_graph=in_graph)
        self._copy_query = functools.partial(kernels.copy_query, fleeting=drafter.compiled)

    def attach(self, holder: Any, attribute: str) -> None:
        """Install every hook; the drafter is `attribute` of `holder`, a proposer or speculator."""
        stand_in = functools.partial(self._stand_in, holder, attribute, getattr(holder, attribute))
        self.hooks.attach([*self._module_hooks(), stand_in])

    def detach(self) -> None:
        """Remove every hook for good."""
        self.hooks.detach()

    def _module_hooks(self) -> Iterator[Hook]:
        """Yield the hooks on the drafter's modules."""
        drafter, observer = self._drafter, self.observer
        for name, layer in drafter.layers.items():
            yield functools.partial(
                layer.tap, functools.partial(self._copy_query, name), self.switch
            )
        show = observer.on_residual if drafter.compiled else observer.keep_residual
        for norm in drafter.final_norms:
            out = torch.zeros(1, device=drafter.device)
            yield functools.partial(tap_residual, norm, out, show, compiled=drafter.compiled)
        if hasattr(drafter.model, "compute_logits"):
            yield self._after(drafter.model, "compute_logits", observer.on_logits)
        if drafter.aux_states and hasattr(drafter.model, "combine_hidden_states"):
            yield self._after(drafter.model, "combine_hidden_states", observer.on_combined)
        for number, norm in enumerate(drafter.aux_norms):
            observe = functools.partial(observer.on_aux_norm, number)
            yield self._after(norm, "forward", observe, hook="aux_norm")

    def _after(
        self, owner: Any, name: str, observe: Callable[[Any, Any], None], hook: str = ""
    ) -> Hook:
        return functools.partial(_wrap, owner, name, hook or name, observe, self.switch)

    def _stand_in(self, holder: Any, attribute: str, model: Any) -> Remove:
        """Replace the drafter by a proxy that calls the observer around each forward."""
        setattr(holder, attribute, TappedModel(model, self.observer.around_forward))
        return lambda: setattr(holder, attribute, model)


def _wrap(
    owner: Any, name: str, hook: str, observe: Callable[[Any, Any], None], switch: HookSwitch
) -> Remove:
    """Call `observe(argument, result)` after each call of the method `name`, of its first argument.

    A module's own forward hooks take several times as long.
    """

    def around(original: Any) -> Callable[..., Any]:
        def observed(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if switch.active or switch.should_record:
                switch.observe((hook, observe, args[0] if args else None, result))
            return result

        return observed

    return stand_in(owner, name, around)
