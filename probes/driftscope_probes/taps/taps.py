"""The taps of a drafter: hooks on its modules that show each forward to the kernels.

`Taps.attach` installs the hooks, and `Taps.detach` removes them for good; if no graph or compiled
code has captured them, they are also removed during unrecorded steps. On a GPU they run while vLLM
captures its CUDA graphs, which then replay them; a gate on the device decides whether they write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from driftscope_probes.base.guard import Guard
from driftscope_probes.drafter.drafter import Drafter
from driftscope_probes.taps.forward_observer import ForwardObserver
from driftscope_probes.taps.hook_set import Hook, HookSet, Remove
from driftscope_probes.taps.hook_switch import HookSwitch
from driftscope_probes.taps.kernels import Kernels
from driftscope_probes.taps.residual_op import tap_residual
from driftscope_probes.taps.tapped_model import TappedModel


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
            observe = functools.partial(observer.on_attention, name)
            yield functools.partial(layer.tap, observe, self.switch)
        show = observer.on_residual if drafter.compiled else observer.keep_residual
        for norm in drafter.final_norms:
            out = torch.zeros(1, device=drafter.device)
            yield functools.partial(tap_residual, norm, out, show, compiled=drafter.compiled)
        if hasattr(drafter.model, "compute_logits"):
            yield self._method_hook("compute_logits", observer.on_logits)
        if drafter.aux_states and hasattr(drafter.model, "combine_hidden_states"):
            yield self._method_hook("combine_hidden_states", observer.on_combined)
        for norm in drafter.aux_norms:
            yield functools.partial(_after_forward, norm, observer.after_aux_norm)

    def _method_hook(self, name: str, observe: Callable[[Any, Any], None]) -> Hook:
        return functools.partial(_wrap, self._drafter.model, name, observe, self.switch)

    def _stand_in(self, holder: Any, attribute: str, model: Any) -> Remove:
        """Replace the drafter by a proxy that calls the observer around each forward."""
        setattr(holder, attribute, TappedModel(model, self.observer.around_forward))
        return lambda: setattr(holder, attribute, model)


def _wrap(owner: Any, name: str, observe: Callable[[Any, Any], None], switch: HookSwitch) -> Remove:
    """Call `observe(argument, result)` after each call of the one-argument method `name`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def observed(argument: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(argument, *args, **kwargs)
        if switch.should_record:
            switch.observe(name, observe, argument, result)
        return result

    setattr(owner, name, observed)
    return lambda: delattr(owner, name)


def _after_forward(module: Any, observe: Callable[..., None]) -> Remove:
    remove: Remove = module.register_forward_hook(observe).remove
    return remove
