"""Where and in which precision the trio is trained."""

from __future__ import annotations

import torch
from torch import nn

from driftscope_lab.trio import recipe


def autocast(device: torch.device) -> torch.autocast:
    """Matrix products in bf16, wherever they run; weights stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.BF16_AUTOCAST)


def device_of(module: nn.Module) -> torch.device:
    """That of its parameters."""
    return next(module.parameters()).device
