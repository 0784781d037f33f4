"""An attention layer of vLLM: its attention parameters, and the hook that sees its queries."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from driftscope_probes.drafter import AttentionKind, KeyReader, Observer, Switch
from driftscope_probes.vllm.layers.key_readers import reader_for
from driftscope_probes.vllm.layers.latent_attention import is_latent, query_size, tap_latent

FLASH_ATTENTION = "vllm.v1.attention.backends.flash_attn"


class VllmAttentionLayer:
    """One loaded attention layer of vLLM; see `AttentionLayer`."""

    def __init__(self, module: Any) -> None:
        """Wrap an attention module."""
        self._module = module

    @functools.cached_property
    def kind(self) -> AttentionKind:
        """See AttentionLayer."""
        return kind_of(self._module)

    @functools.cached_property
    def reader(self) -> KeyReader:
        """See AttentionLayer."""
        return reader_for(backend_of(self._module), self._module)

    @property
    def query_size(self) -> int:
        """See AttentionLayer."""
        return query_size(self._module) if is_latent(self._module) else self.kind.head_size

    def cache(self) -> torch.Tensor:
        """See AttentionLayer."""
        return cache_of(self._module)

    def tap(self, observer: Observer, switch: Switch) -> Callable[[], None]:
        """See AttentionLayer."""
        return tap_attention(self._module, observer, switch)


def backend_of(layer: Any) -> str:
    """Return vLLM's name of a layer's attention backend, such as CPU_ATTN."""
    get = getattr(layer, "get_attn_backend", None)
    return str((get() if get else layer.attn_backend).get_name())


def kind_of(layer: Any) -> AttentionKind:
    """Return the attention parameters of a loaded vLLM `Attention` layer."""
    impl = layer.impl
    window = getattr(layer, "sliding_window", None)
    return AttentionKind(
        heads=int(layer.num_heads),
        kv_heads=int(layer.num_kv_heads),
        head_size=int(layer.head_size),
        scale=float(impl.scale),
        window=int(window) if isinstance(window, int) and window > 0 else None,
        softcap=float(getattr(impl, "logits_soft_cap", None) or 0.0),
        sinks=getattr(impl, "sinks", None),
    )


def cache_of(layer: Any) -> torch.Tensor:
    """Return the layer's KV cache, which older versions wrap in a list."""
    cache = layer.kv_cache
    tensor: torch.Tensor = cache[0] if isinstance(cache, list | tuple) else cache
    return tensor


def tap_attention(layer: Any, observer: Observer, switch: Switch) -> Callable[[], None]:
    """Pass each call of a layer with an active cache to `observer`; return the removal."""
    if is_latent(layer):
        return tap_latent(layer, observer, switch)
    original = layer.impl.forward

    @functools.wraps(original)
    def observed(
        layer_: Any, query: Any, key: Any, value: Any, cache: Any, meta: Any, *a: Any, **kw: Any
    ) -> Any:
        if meta is None or not switch.should_record:
            return original(layer_, query, key, value, cache, meta, *a, **kw)
        if not _offered:
            result = original(layer_, query, key, value, cache, meta, *a, **kw)
            switch.observe("attention", observer, query, None)
            return result
        with catch_lse() as caught:
            result = original(layer_, query, key, value, cache, meta, *a, **kw)
        switch.observe("attention", observer, query, caught[-1] if caught else None)
        return result

    layer.impl.forward = observed
    return lambda: delattr(layer.impl, "forward")


_offered = False
"""Whether vLLM's FlashAttention backend has been patched to serve `catch_lse`."""
_caught: list[torch.Tensor] | None = None
"""List that receives the log-sum-exp of the attention call in progress; one thread runs a model."""


@contextlib.contextmanager
def catch_lse() -> Iterator[list[torch.Tensor]]:
    """Collect the log-sum-exp, which FlashAttention computes and vLLM does not request."""
    global _caught
    values: list[torch.Tensor] = []
    _caught = values
    try:
        yield values
    finally:
        _caught = None


def offer_lse() -> bool:
    """Make vLLM's FlashAttention serve `catch_lse`; return whether this vLLM allows it."""
    global _offered
    try:
        module = importlib.import_module(FLASH_ATTENTION)
        original = module.flash_attn_varlen_func
    except (ImportError, AttributeError):
        return False
    _offered = True
    if hasattr(original, "_driftscope"):
        return True

    @functools.wraps(original)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if _caught is None or kwargs.get("return_softmax_lse") or kwargs.get("s_aux") is not None:
            return original(*args, **kwargs)
        out, lse = original(*args, **kwargs, return_softmax_lse=True)[:2]
        _caught.append(lse)
        return out

    asked._driftscope = True  # type: ignore[attr-defined]
    module.flash_attn_varlen_func = asked  # type: ignore[attr-defined]
    return True
