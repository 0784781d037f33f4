"""The taps of SGLang's drafter: hooks on its modules that show each forward's states.

Depth 1 of a chain is computed in the round before, in the forward that extends the drafter's cache
by the verified tokens. Its states are kept; those of later depths go to the kernels at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from driftscope.vocabulary import Execution
from driftscope_probes.drafter import Drafter
from driftscope_probes.guard import Guard
from driftscope_probes.kernels import Kernels
from driftscope_probes.sglang.chain.forward_states import ForwardStates, pass_on
from driftscope_probes.sglang.loaded_drafter import EAGLE1
from driftscope_probes.taps import Hook, HookSet, HookSwitch, Remove


class ForwardRows:
    """The wanted rows of an extending forward: the last verified slot of each request."""

    def __init__(self, of_tokens: torch.Tensor, *, pruned: bool) -> None:
        """`of_tokens` [requests]: rows among those of all tokens. `pruned`: SGLang computes logits
        of the wanted rows only."""
        self._of_tokens, self._pruned = of_tokens, pruned

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of a state inside the network."""
        return x.index_select(0, self._of_tokens)

    def result(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of an output; they are copied because SGLang may change them."""
        return x.clone() if self._pruned else x.index_select(0, self._of_tokens)


class DrafterTaps:
    """The hooks of one drafter, with what they share; see `driftscope_probes.taps.Taps`.

    ======================  ===============================================================
    `extending(rows)`       keep the states of the forward that is about to run
    `extended()`            return them, and pass later forwards to the kernels again
    `first_depth(states)`   pass kept states to the kernels, as depth 1 of a chain
    ======================  ===============================================================
    """

    def __init__(
        self,
        drafter: Drafter,
        kernels: Kernels,
        guard: Guard,
        *,
        in_graph: bool,  # noqa: ARG002  recorded rounds run without graphs
    ) -> None:
        self._drafter, self._kernels = drafter, kernels
        self._layers = tuple(drafter.layers)
        self.hooks = HookSet(removable=True)
        self.switch = HookSwitch(guard, in_graph=False)
        self.observer = self
        self.aliased_columns: dict[str, str] = {}
        """See ForwardObserver: every column is measured."""
        self._rows: ForwardRows | None = None
        self._kept: ForwardStates | None = None
        self._forget()

    def execution(self, depths: int) -> str:  # noqa: ARG002  see ForwardObserver
        """Return how the chain just drafted ran."""
        return Execution.EAGER

    def attach(self, holder: Any, attribute: str) -> None:  # noqa: ARG002  see Taps
        """Install every hook once, to see that each can be, and remove them again."""
        self.hooks.attach(self._hooks())
        self.hooks.uninstall()

    def detach(self) -> None:
        """Remove every hook for good."""
        self.hooks.detach()

    def extending(self, rows: ForwardRows) -> None:
        """Keep the states of the forward that is about to run."""
        self._forget()
        self._rows, self._kept = rows, None
        self.hooks.install()
        self.switch.active = True

    def extended(self) -> ForwardStates | None:
        """Return the states kept since `extending`; None if the forward was not seen."""
        kept, self._kept, self._rows = self._kept, None, None
        self.switch.active = False
        self.hooks.uninstall()
        return kept

    def first_depth(self, states: ForwardStates) -> None:
        """Pass on the states of depth 1, a row for each request of the batch."""
        self._forget()
        pass_on(states, self._kernels, self._layers, captured=self._drafter.aux_states)

    def _forget(self) -> None:
        self._queries: dict[str, torch.Tensor] = {}
        self._inside: dict[str, torch.Tensor] = {}
        self._captured: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Input and output of each norm of the captured layers."""

    def _hooks(self) -> Iterator[Hook]:
        drafter, inner = self._drafter, self._drafter.model.model
        for name, layer in drafter.layers.items():
            observe = functools.partial(self._on_attention, name)
            yield functools.partial(layer.tap, observe, self.switch)
        if drafter.aux_states:
            yield self._after(inner.fc, "combine", self._on_combine)
            yield self._before(inner.layers[0], "forward_in", self._on_first_layer)
        elif drafter.kind is EAGLE1:
            yield self._after(inner.fc, "combine", self._on_fused_state)
        else:
            yield self._after(inner.hidden_layernorm, "forward_in", self._on_state_norm)
        for norm in drafter.aux_norms:
            yield self._after(norm, "aux_norm", self._on_captured_norm)
        for norm in drafter.final_norms:
            yield self._after(norm, "final_norm", self._on_final_norm)
        yield self._after(drafter.model.logits_processor, "forward_out", self._on_result)

    def _after(self, module: Any, name: str, action: Callable[[Any, Any], None]) -> Hook:
        def observe(_: Any, arguments: Any, output: Any) -> None:
            if self.switch.should_record:
                self.switch.observe(name, action, arguments, output)

        return functools.partial(_hook, module.register_forward_hook, observe)

    def _before(self, module: Any, name: str, action: Callable[[Any, Any], None]) -> Hook:
        def observe(_: Any, arguments: Any, keywords: Any) -> None:
            if self.switch.should_record:
                self.switch.observe(name, action, arguments, keywords)

        register = functools.partial(module.register_forward_pre_hook, with_kwargs=True)
        return functools.partial(_hook, register, observe)

    def _on_attention(self, name: str, query: torch.Tensor, _: torch.Tensor | None) -> None:
        self._queries[name] = query.reshape(len(query), -1)

    def _on_combine(self, arguments: Any, _: Any) -> None:
        self._inside["captured"] = arguments[0]

    def _on_fused_state(self, arguments: Any, _: Any) -> None:
        """Note the state that EAGLE-1's `fc` reads beside the embedding."""
        self._inside["entering"] = arguments[0].chunk(2, -1)[1]

    def _on_state_norm(self, arguments: Any, _: Any) -> None:
        """Note the state that an MTP head norms before it adds the embedding."""
        self._inside["entering"] = arguments[0]

    def _on_captured_norm(self, arguments: Any, output: Any) -> None:
        self._captured.append((arguments[0], output))

    def _on_first_layer(self, arguments: Any, keywords: Any) -> None:
        entering = keywords.get("hidden_states")
        self._inside["entering"] = arguments[2] if entering is None else entering

    def _on_final_norm(self, arguments: Any, output: Any) -> None:
        """Note both sides of the final norm, which adds the residual itself in some models."""
        fused = isinstance(output, tuple)
        normed, stream = output if fused else (output, arguments[0])
        self._inside["postnorm"], self._inside["prenorm"] = normed, stream

    def _on_result(self, _: Any, output: Any) -> None:
        """Put the states of a forward together at its end."""
        rows = self._rows
        pick = _unchanged if rows is None else rows.result
        results = {
            "fed": pick(output.hidden_states),
            "logits": pick(output.next_token_logits),
        }
        if not self._drafter.final_norms:  # the residual stream is what is fed
            results["prenorm"] = results["fed"]
        if rows is None:
            pass_on(self._states(_unchanged, results), self._kernels, self._layers)
        else:
            self._kept = self._states(rows.inside, results)
        self._forget()

    def _states(
        self, pick: Callable[[torch.Tensor], torch.Tensor], results: dict[str, torch.Tensor]
    ) -> ForwardStates:
        inside = {name: pick(x) for name, x in self._inside.items()}
        if self._captured:  # fc's input is normed already
            inside["captured"] = torch.cat([pick(x) for x, _ in self._captured], -1)
        return ForwardStates(
            queries=tuple(pick(self._queries[name]) for name in self._layers),
            captured_normed=tuple(pick(x) for _, x in self._captured),
            **inside,
            **results,
        )


def _hook(register: Callable[[Any], Any], observe: Callable[..., None]) -> Remove:
    remove: Remove = register(observe).remove
    return remove


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x
