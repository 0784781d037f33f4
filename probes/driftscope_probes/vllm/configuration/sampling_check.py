"""Finds out whether this vLLM samples from the target's distribution when it verifies drafts.

vLLM's CPU build verifies with functions in C++ if there is no Triton for the CPU. The one that
spreads each request's temperature over its drafted tokens writes to a copy, so that the sampler
divides by numbers that happen to be in memory.
Source: vllm.utils.cpu_triton_utils._expand_kernel_impl, 0.32.0.
"""

from __future__ import annotations

import torch

WRONG_TOKENS = (
    "this vLLM returns wrong tokens at temperature > 0: its CPU build lacks Triton for the CPU; "
    "send requests at temperature 0"
)
"""Line in the log of an engine that loses temperatures."""
_TEMPERATURES = (0.375, 1.625)
"""Numbers that memory is unlikely to hold by chance."""


def loses_temperature() -> bool:
    """Return whether drafts are verified at temperatures that no request asked for.

    vLLM's own function is run on a few numbers on a CPU; on other devices, and if this vLLM's
    function is another one, the answer is no.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return False
    temperatures, ends = torch.tensor(_TEMPERATURES), torch.tensor([2, 5], dtype=torch.int32)
    try:
        from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

        spread = expand_batch_to_tokens(temperatures, ends, 5)
    except Exception:  # the border: whatever another version of vLLM does with these arguments
        return False
    return not torch.equal(spread, temperatures.repeat_interleave(torch.tensor([2, 3])))
