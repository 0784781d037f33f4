"""Gives vLLM's CPU build the collectives by which replicas share a mixture of experts.

It lacks them: 0.32.0 raises NotImplementedError. Each process of an engine reads this from its
PYTHONPATH.
"""

from __future__ import annotations

from typing import Any

import wrapt


def all_gatherv(own: Any, part: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    import torch
    from torch import distributed

    if isinstance(part, list):
        return [all_gatherv(own, one, dim, sizes) for one in part]
    rows = sizes or [len(part)] * own.world_size
    padded = part.new_zeros(max(rows), *part.shape[1:])
    padded[: len(part)] = part
    parts = [torch.empty_like(padded) for _ in rows]
    distributed.all_gather(parts, padded, group=own.device_group)
    return torch.cat([one[:n] for one, n in zip(parts, rows, strict=True)])


def reduce_scatterv(own: Any, whole: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    from torch import distributed

    rows = sizes or [len(whole) // own.world_size] * own.world_size
    total = whole.clone()
    distributed.all_reduce(total, group=own.device_group)
    begin = sum(rows[: own.rank_in_group])
    return total[begin : begin + rows[own.rank_in_group]]


def _install(module: Any) -> None:
    module.CpuCommunicator.all_gatherv = all_gatherv
    module.CpuCommunicator.reduce_scatterv = reduce_scatterv


wrapt.register_post_import_hook(_install, "vllm.distributed.device_communicators.cpu_communicator")
