"""Plain PyTorch in place of SGLang's CPU kernels, for tests; see the README beside `site/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_kernel import attention as attention
from sgl_kernel.cache import (
    assign_draft_cache_locs_contiguous_cpu as assign_draft_cache_locs_contiguous_cpu,
)
from sgl_kernel.cache import assign_extend_cache_locs_cpu as assign_extend_cache_locs_cpu
from sgl_kernel.cache import assign_req_to_token_pool_cpu as assign_req_to_token_pool_cpu
from sgl_kernel.cache import build_draft_decode_metadata_cpu as build_draft_decode_metadata_cpu
from sgl_kernel.cache import copy_all_layer_kv_cache_cpu as copy_all_layer_kv_cache_cpu
from sgl_kernel.tree import build_tree_kernel_efficient_cpu as build_tree_kernel_efficient_cpu
from sgl_kernel.tree import fill_accept_out_cache_loc_cpu as fill_accept_out_cache_loc_cpu
from sgl_kernel.tree import fill_bonus_tokens_cpu as fill_bonus_tokens_cpu
from sgl_kernel.tree import verify_tree_greedy_cpu as verify_tree_greedy_cpu

__version__ = "99.0.0+standin"
"""Newer than any version that SGLang asks for."""


def __getattr__(name: str) -> Callable[..., Any]:
    """Return a function that raises NotImplementedError: SGLang imports more than it calls."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return missing
