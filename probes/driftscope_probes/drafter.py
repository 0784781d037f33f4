"""A loaded drafter as the probe sees it, the same for every runner."""

from __future__ import annotations

import re
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
        if not inner.use_aux_hidden_state:
            return 0
        # vLLM's Qwen3-style drafter has another name for it.
        count = getattr(inner, "num_aux_hidden_states", None)
        return int(inner.num_aux_layers if count is None else count)


def open_drafter(model: Any, layer_names: set[str], config: Any, max_rows: int) -> Drafter:
    """The drafter, checked; raises ProbeError when it cannot be recorded."""
    context = config.compilation_config.static_forward_context
    attention = {name: context[name] for name in sorted(layer_names, key=_numbers_apart)}
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


def _numbers_apart(name: str) -> list[tuple[int, str]]:
    """A sort key by which layers.9 comes before layers.10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]
