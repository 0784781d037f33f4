"""The device and the precision in which the trio is trained."""

from __future__ import annotations

import torch
from torch import nn

from driftscope_lab.training import recipe


def autocast(device: torch.device) -> torch.autocast:
    """Return a context in which matrix products run in bf16 on any device; weights stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.BF16_AUTOCAST)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters."""
    return next(module.parameters()).device
