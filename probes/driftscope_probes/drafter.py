"""A loaded drafter as the probe sees it, the same for every runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftscope_probes import support


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drafter:
    """What the taps need of a drafter that vLLM has loaded."""

    model: Any
    """vLLM's drafter module, such as Eagle3LlamaForCausalLM."""
    attention: dict[str, Any]
    """Its attention layers by name, in order of depth in the network."""
    config: Any
    """The engine's VllmConfig."""
    max_rows: int
    """Largest number of rows in one forward."""
    device_type: str

    @property
    def backend(self) -> str:
        """vLLM's name of the attention backend, such as CPU_ATTN."""
        layer = next(iter(self.attention.values()))
        get = getattr(layer, "get_attn_backend", None)
        return str((get() if get else layer.attn_backend).get_name())

    @property
    def aux_states(self) -> int:
        """Number of captured target layers that are combined for the drafter."""
        inner = self.model.model
        return int(inner.num_aux_hidden_states) if inner.use_aux_hidden_state else 0


def open_drafter(model: Any, layer_names: set[str], config: Any, max_rows: int) -> Drafter:
    """The drafter, checked; raises ProbeError when it cannot be recorded."""
    context = config.compilation_config.static_forward_context
    attention = {name: context[name] for name in sorted(layer_names)}
    support.check_speculation(config)
    support.check_drafter(model, attention)
    device = next(model.parameters()).device
    support.check_device(device.type)
    return Drafter(
        model=model,
        attention=attention,
        config=config,
        max_rows=max_rows,
        device_type=device.type,
    )
