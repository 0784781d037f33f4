"""Passes what the hooks of a drafter see in its forwards to the kernels that measure it."""

from __future__ import annotations

from typing import Any

import torch

from driftscope.vocabulary import Execution
from driftscope_probes.drafter.drafter import Drafter
from driftscope_probes.taps.hook_switch import HookSwitch
from driftscope_probes.taps.kernels import Kernels


class ForwardObserver:
    """Observes the forwards of one drafter; its public methods are what the hooks call."""

    def __init__(
        self, drafter: Drafter, kernels: Kernels, switch: HookSwitch, *, in_graph: bool
    ) -> None:
        """`in_graph`: whether CUDA graphs record the taps."""
        self._drafter, self._kernels, self._switch = drafter, kernels, switch
        self._compiled, self._mode = drafter.compiled, drafter.forward_mode
        self._chained, self._outputs = drafter.kind.chained, tuple(drafter.kind.outputs.items())
        self._aux_norms, self._aux_states = drafter.aux_norms, drafter.aux_states
        # Compiled code reuses memory as soon as it can.
        self._logits_change = drafter.samples or drafter.compiled
        stays = not in_graph and not self._logits_change and drafter.device.type == "cpu"
        self._notes_fit = stays and self._chained
        """Whether the tensors that hooks see stay unchanged until the chain is drafted."""
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
        if not switch.should_record:
            return model(*args, **kwargs)
        # A later depth's input is what the previous depth fed forward: runners copy it.
        if self._chained and switch.active and len(switch.forwards) > 1:
            if switch.noting:
                switch.observe = switch.note
            switch.observe("forward_in", self._on_later_forward)
        else:
            switch.observe("forward_in", self._on_forward_in, args, kwargs)
        output = model(*args, **kwargs)
        residual, self._residual = self._residual, None
        switch.observe("forward_out", self._on_forward_out, output, residual)
        return output

    def on_attention(self, name: str, query: torch.Tensor, lse: torch.Tensor | None) -> None:
        """Keep the queries of layer `name`, and its kernel's log-sum-exp if there is one."""
        self._kernels.copy_query(name, query, lse, fleeting=self._compiled)

    def on_residual(self, residual: torch.Tensor) -> None:
        """Observe in compiled code, which may reuse the memory before the forward ends."""
        if self._switch.should_record:
            self._switch.observe("residual", self._on_fleeting_residual, residual)

    def keep_residual(self, residual: torch.Tensor) -> None:
        """Keep the residual stream until the forward ends, which compares it with the outputs."""
        if self._switch.should_record:
            self._residual = residual

    def on_logits(self, hidden: Any, logits: Any) -> None:
        """Measure the confidence of a depth."""
        if logits is not None:
            if isinstance(logits, list):
                logits = _by_request(logits)
            if len(self._switch.forwards) == 1:  # do not keep many of them in memory
                self._switch.noting = self._notes_fit and self._kernels.keeps(logits)
            self._kernels.confidence(logits, fleeting=self._logits_change)

    def on_combined(self, captured: torch.Tensor, combined: torch.Tensor) -> None:
        """Measure the target's captured states, and the state that they are combined into."""
        fleeting = self._compiled
        self._kernels.rms_of_chunks(captured, "aux_rms", self._aux_states, fleeting=fleeting)
        self._kernels.rms_of_chunks(combined, "fc_rms", 1, fleeting=fleeting)

    def after_aux_norm(self, module: Any, args: Any, output: torch.Tensor) -> None:
        """Measure captured states after their norm `module`."""
        if self._switch.should_record:
            self._switch.observe("aux_norm", self._on_aux_norm, module, output)

    def _on_forward_in(self, args: Any, kwargs: Any) -> None:
        hidden, forwards = self._hidden(args, kwargs), self._switch.forwards
        later = self._switch.active and len(forwards) > 0
        forwards.append(forwards[-1] if len(forwards) > 1 else self._mode())
        entering = None if later and self._chained else hidden
        self._kernels.advance(entering, attention_follows=forwards[-1] != Execution.FULL)

    def _on_later_forward(self) -> None:
        forwards = self._switch.forwards
        forwards.append(forwards[-1])
        self._kernels.advance(attention_follows=forwards[-1] != Execution.FULL)

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

    def _on_aux_norm(self, module: Any, normed: torch.Tensor) -> None:
        norms, states = self._aux_norms, self._aux_states
        # There is one norm over all captured layers, or one for each.
        chunks = states if len(norms) == 1 else 1
        first = 0 if len(norms) == 1 else norms.index(module)
        self._kernels.rms_of_chunks(normed, "aux_norm_rms", chunks, first, fleeting=self._compiled)


def _by_request(heads: list[torch.Tensor]) -> torch.Tensor:
    """Return [B * K, size] from K tensors [B, size], one for each head."""
    return torch.stack(heads, 1).flatten(0, 1)
