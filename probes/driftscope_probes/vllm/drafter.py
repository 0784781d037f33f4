"""A drafter that vLLM has loaded: its attention layers, the hook that sees their queries, and the
readers of their keys.

Multi-head latent attention keeps one latent per slot instead of the keys of all heads: the cache
holds [latent | rotary key] of each slot. A head's score is q_nope . (W_UK latent) +
q_rope . rotary key. If W_UK is moved to the query's side ("absorbed"), the score is one product
with the cached row: attention with a single key head of the row's size. vLLM absorbs when it
decodes and not when it prefills. The tap keeps the query before absorption, so that all depths of a
chain are measured alike.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from driftscope.boundary.files import first_line
from driftscope.errors import ProbeError, UnknownDrafterError
from driftscope.vocabulary import Execution
from driftscope_probes.discovery import ROWS, Anatomy, anatomy_of
from driftscope_probes.drafter import (
    AttentionKind,
    Drafter,
    DrafterKind,
    KeyReader,
    Observer,
    Remove,
    Switch,
    WitnessedLayer,
    stand_in,
)
from driftscope_probes.meter import page_size
from driftscope_probes.vllm import support
from driftscope_probes.vllm.support import EAGLE3, kind_for


class ValueReader(KeyReader, Protocol):
    """Reads the values of a layer, too, for the start-up witness."""

    def weigh(
        self, weights: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor
    ) -> torch.Tensor:
        """See WitnessedLayer."""


class PagedKeys(ValueReader):
    """Keys of vLLM's GPU backends: FLASH_ATTN, TRITON_ATTN, FLASHINFER.

    Cache since vLLM 0.27: [blocks, kv_heads, block_size, 2 * head_size], keys first. Before:
    [blocks, 2, block_size, kv_heads, head_size].
    """

    paged = True

    def __init__(self, layer: Any) -> None:
        self._size = int(layer.head_size)

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        if kv_cache.dim() == 5:
            return kv_cache[:, 0]
        return kv_cache.transpose(1, 2)[..., : self._size]

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        pages = self.pages(kv_cache)
        wanted = block_table[:, : -(-length // pages.shape[1])].long().clamp(0, len(pages) - 1)
        slots = pages[wanted].flatten(1, 2)  # [B, N, kv_heads, head_size]
        return (queries @ slots.permute(0, 2, 3, 1).float())[:, None]

    def weigh(
        self, weights: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor
    ) -> torch.Tensor:
        """See ValueReader."""
        if kv_cache.dim() == 5:
            pages = kv_cache[:, 1]
        else:
            pages = kv_cache.transpose(1, 2)[..., self._size :]
        return _weigh(weights, pages[block_table[0].long()].flatten(0, 1).transpose(0, 1))


class CpuAttnKeys(ValueReader):
    """Keys of vLLM's CPU_ATTN backend.

    The backend packs the keys of a (block, head) in an order that depends on the instruction set,
    so the order is found by writing known values through vLLM's own op and reading them back. Cache
    layout since vLLM 0.27: [blocks, kv_heads, block_size, 2 * head_size], keys first.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._order: torch.Tensor | None = None
        self.in_order = False
        """Whether the packed order is the plain one; valid once the order is known."""
        self._heads = np.arange(0)
        """[kv_heads] int64: rows of each head's keys, among those of a block."""

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        blocks, heads, block_size, size = kv_cache.shape
        head_size = size // 2
        order = self.order(kv_cache)
        table = block_table[:, : -(-length // block_size)].numpy()
        wanted = np.maximum(np.minimum(table, blocks - 1), 0)
        rows = wanted[..., None] * (2 * heads) + self._heads
        packed = self.packed(kv_cache).index_select(0, torch.from_numpy(rows.ravel()))
        if not self.in_order:
            packed = packed[..., order]
        blockwise = packed.view(*wanted.shape, heads, head_size, block_size).float()
        return queries[:, None] @ blockwise

    def packed(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return a view of the cache with alternating rows: the keys, then the values, of each
        block and head, [2 * blocks * kv_heads, head_size * block_size]."""
        blocks, heads, block_size, size = kv_cache.shape
        return kv_cache.view(2 * blocks * heads, block_size * size // 2)

    def order(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """Return [head_size * block_size] int64: index of (dim, slot) in a row of `packed`."""
        if self._order is None:
            _, heads, block_size, size = kv_cache.shape
            self._order = self._find_order(kv_cache.dtype, block_size, size // 2)
            self.in_order = torch.equal(self._order, torch.arange(len(self._order)))
            self._heads = 2 * np.arange(heads)
        return self._order

    def weigh(
        self, weights: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor
    ) -> torch.Tensor:
        """See ValueReader."""
        _, heads, block_size, size = kv_cache.shape
        order = self._find_order(kv_cache.dtype, block_size, size // 2, of_values=True)
        rows = block_table[0].long()[:, None] * (2 * heads) + 2 * torch.arange(heads) + 1
        packed = self.packed(kv_cache)[rows][..., order]  # [blocks, heads, dims and slots]
        values = packed.view(len(rows), heads, size // 2, block_size).permute(1, 0, 3, 2)
        return _weigh(weights, values.flatten(1, 2))

    def _find_order(
        self, dtype: torch.dtype, block_size: int, head_size: int, *, of_values: bool = False
    ) -> torch.Tensor:
        """Return [head_size * block_size]: the index of element (dim, token) in a packed block."""
        token = torch.arange(block_size).view(-1, 1, 1).expand(-1, 1, head_size)
        dim = torch.arange(head_size).view(1, 1, -1).expand(block_size, 1, -1)
        at_token, at_dim = (
            self._round_trip(x, dtype, block_size, head_size)[of_values] for x in (token, dim)
        )
        order = torch.empty(block_size * head_size, dtype=torch.long)
        order[at_dim * block_size + at_token] = torch.arange(block_size * head_size)
        return order

    def _round_trip(
        self, values: torch.Tensor, dtype: torch.dtype, block_size: int, head_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the number found at each packed index after `values` are written as keys, and as
        values.

        Values are written as two digits of base 128, which every supported dtype represents
        exactly.
        """
        from vllm import _custom_ops as ops

        # The attribute is on the layer since vLLM 0.31, set with the KV cache; before, on the
        # implementation.
        isa = getattr(self._layer, "isa", None) or self._layer.impl.isa
        low, high = values % 128, values // 128
        read = []
        for digit in (low, high):
            cache = torch.zeros(1, 1, block_size * 2, head_size, dtype=dtype)
            keys, rest = cache.chunk(2, dim=2)
            source = digit.to(dtype).contiguous()
            ops.cpu_attn_reshape_and_cache(
                source,
                source.clone(),
                keys,
                rest,
                torch.arange(block_size),
                isa,
                k_scale=1.0,
                v_scale=1.0,
                kv_cache_dtype="auto",
            )
            read.append([part.reshape(-1).float().round().long() for part in (keys, rest)])
        (low_key, low_value), (high_key, high_value) = read
        return low_key + 128 * high_key, low_value + 128 * high_value


def _weigh(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return [K, heads, size] from weights [K, heads, N] and values [kv_heads, N or more, size]."""
    k, heads, slots = weights.shape
    grouped = weights.view(k, len(values), heads // len(values), slots)
    return torch.einsum("khgn,hnd->khgd", grouped, values[:, :slots].to(weights)).flatten(1, 2)


READERS: dict[str, Callable[[Any], ValueReader]] = {
    "CPU_ATTN": CpuAttnKeys,
    "FLASH_ATTN": PagedKeys,
    "TRITON_ATTN": PagedKeys,
    "FLASHINFER": PagedKeys,
}
"""Readers by vLLM's backend name."""


class LatentKeys(ValueReader):
    """Rows of the cache, [blocks, block_size, latent + rope], as keys of a single head. Such heads
    are too large for the paged kernel."""

    def __init__(self, layer: Any) -> None:
        """Raises ProbeError if vLLM has not prepared the up-projection of the keys."""
        self._nope = int(layer.qk_nope_head_dim)
        weight = getattr(layer, "W_UK_T", None)
        if weight is None:
            raise ProbeError(
                "latent attention without an absorbed key projection (W_UK_T) is not supported by "
                "this driftscope"
            )
        self._weight: torch.Tensor = weight
        """[heads, nope, latent]."""
        self._up: torch.Tensor = layer.W_UV
        """[heads, latent, value size]."""

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        blocks, size, _ = kv_cache.shape
        wanted = block_table[:, : -(-length // size)].long().clamp(0, blocks - 1)
        keys = kv_cache[wanted].flatten(1, 2)[:, None].transpose(-1, -2).float()
        return (queries @ keys)[:, None]

    def weigh(
        self, weights: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor
    ) -> torch.Tensor:
        """See ValueReader: the latents are summed first, and projected then."""
        rows = kv_cache[block_table[0].long()].flatten(0, 1)
        latent = self._weight.shape[-1]
        summed = _weigh(weights, rows[None, :, :latent])
        return torch.einsum("khl,hlv->khv", summed, self._up.to(weights))

    def queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Absorb [B, K, heads * (nope + rope)] to [B, K, heads * (latent + rope)] float32."""
        q = queries.float()
        q = q.view(*q.shape[:-1], len(self._weight), -1)
        nope, rope = q[..., : self._nope], q[..., self._nope :]
        absorbed = torch.einsum("bkhn,hnl->bkhl", nope, self._weight.float())
        return torch.cat((absorbed, rope), -1).flatten(-2)


FLASH_ATTENTION = "vllm.v1.attention.backends.flash_attn"


class VllmAttentionLayer(WitnessedLayer):
    """One loaded attention layer of vLLM; see `AttentionLayer`."""

    def __init__(self, module: Any) -> None:
        """Wrap an attention module."""
        self._module = module
        self._is_latent = hasattr(module, "kv_lora_rank")

    @functools.cached_property
    def kind(self) -> AttentionKind:
        """See AttentionLayer."""
        layer, impl = self._module, self._module.impl
        window = getattr(layer, "sliding_window", None)
        return AttentionKind(
            heads=int(layer.num_heads),
            kv_heads=int(layer.num_kv_heads),
            head_size=int(layer.head_size),
            scale=float(impl.scale),
            window=int(window) if isinstance(window, int) and window > 0 else None,
            chunk=getattr(layer, "attention_chunk_size", None),
            softcap=float(getattr(impl, "logits_soft_cap", None) or 0.0),
            sinks=getattr(impl, "sinks", None),
        )

    @functools.cached_property
    def reader(self) -> ValueReader:
        """See AttentionLayer."""
        if self._is_latent:
            return LatentKeys(self._module)
        if (backend := backend_of(self._module)) not in READERS:
            raise ProbeError(
                f"the drafter's attention backend {backend} is not supported by this driftscope; "
                f"supported: {', '.join(sorted(READERS))}"
            )
        return READERS[backend](self._module)

    @property
    def query_size(self) -> int:
        """See AttentionLayer."""
        layer = self._module
        if self._is_latent:  # before absorption
            return int(layer.qk_nope_head_dim) + int(layer.qk_rope_head_dim)
        return super().query_size

    def cache(self) -> torch.Tensor:
        """See AttentionLayer; older versions wrap the cache in a list."""
        cache = self._module.kv_cache
        tensor: torch.Tensor = cache[0] if isinstance(cache, list | tuple) else cache
        return tensor

    def tap(self, observer: Observer, switch: Switch) -> Remove:
        """See AttentionLayer."""
        query, meta = self._arguments

        def around(original: Any) -> Callable[..., Any]:
            def observed(*args: Any, **kwargs: Any) -> Any:
                if args[meta] is None or not (switch.active or switch.should_record):
                    return original(*args, **kwargs)
                if not _offered:  # a context costs more than the hook
                    result = original(*args, **kwargs)
                    switch.observe(("attention", observer, args[query], None))
                    return result
                with catch_lse() as caught:
                    result = original(*args, **kwargs)
                lse = caught[-1] if caught else None
                switch.observe(("attention", observer, args[query], lse))
                return result

            return observed

        return self._replace(around)

    def watch(self, keep: Callable[[torch.Tensor, torch.Tensor], None]) -> Remove:
        """See AttentionLayer."""
        query, meta = self._arguments

        def around(original: Any) -> Callable[..., Any]:
            def watched(*args: Any, **kwargs: Any) -> Any:
                asked, result = args[query].clone(), original(*args, **kwargs)
                if args[meta] is not None:
                    keep(asked, result)
                return result

            return watched

        return self._replace(around)

    @property
    def _arguments(self) -> tuple[int, int]:
        """Places of the query and of the attention metadata among the arguments of a forward."""
        return (0, 4) if self._is_latent else (1, 5)

    def _replace(self, around: Callable[[Any], Callable[..., Any]]) -> Remove:
        """Replace the forward that compiled code calls too; return the removal. Latent attention
        has it on the module, because some implementations have no `forward`."""
        module = self._module
        owner, name = (module, "forward_impl") if self._is_latent else (module.impl, "forward")
        return stand_in(owner, name, around)

    def weigh(self, weights: torch.Tensor, block_table: torch.Tensor, length: int) -> torch.Tensor:
        """See WitnessedLayer."""
        cache = self.cache()
        blocks = -(-length // page_size(cache))
        given: torch.Tensor = self.reader.weigh(weights, cache, block_table[:, :blocks])
        return given


def backend_of(layer: Any) -> str:
    """Return vLLM's name of a layer's attention backend, such as CPU_ATTN."""
    get = getattr(layer, "get_attn_backend", None)
    return str((get() if get else layer.attn_backend).get_name())


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


@functools.cache
def _forward_context() -> tuple[Callable[[], bool], Callable[[], Any]]:
    """Return vLLM's functions that test for and get the context; imported once."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    return is_forward_context_available, get_forward_context


def forward_mode(compiled: bool) -> str:
    """Return the mode that vLLM reports for the forward in progress, one of `Execution`."""
    plain = Execution.COMPILED if compiled else Execution.EAGER
    available, context = _forward_context()
    if not available():
        return plain
    name = getattr(context().cudagraph_runtime_mode, "name", "NONE")
    return {"PIECEWISE": Execution.PIECEWISE, "FULL": Execution.FULL}.get(str(name), plain)


def drafter_of(
    model: Any,
    attention: Mapping[str, Any],
    config: Any,
    kind: DrafterKind = EAGLE3,
    notes: tuple[str, ...] = (),
) -> Drafter:
    """Return the properties of vLLM's drafter module, with the `attention` modules by name and the
    engine's VllmConfig."""
    speculation, compiled = config.speculative_config, is_compiled(config)
    greedy = getattr(speculation, "draft_sample_method", None) == "greedy"
    backend = next((backend_of(layer) for layer in attention.values()), "")
    inner: Any = getattr(model, "model", None)
    states = 0
    # A block drafter's captured states have the target's rows and not those of its queries.
    if not kind.block and getattr(inner, "use_aux_hidden_state", False):
        # vLLM's Qwen3-style drafter uses another name for it.
        count = getattr(inner, "num_aux_hidden_states", None)
        states = int(inner.num_aux_layers if count is None else count)
    return Drafter(
        model=model,
        layers={name: VllmAttentionLayer(layer) for name, layer in attention.items()},
        kind=kind,
        dtype=speculation.draft_model_config.dtype,
        k=int(speculation.num_speculative_tokens),
        max_requests=int(config.scheduler_config.max_num_seqs),
        max_slots=int(config.model_config.max_model_len),
        compiled=compiled,
        samples=not greedy or bool(getattr(speculation, "use_heterogeneous_vocab", False)),
        aux_states=states,
        backend=backend,
        notes=notes,
        shares_cache=functools.partial(_share_cache, attention, config),
        forward_mode=functools.partial(forward_mode, compiled),
        offer_lse=lambda: backend == "FLASH_ATTN" and offer_lse(),
    )


def is_compiled(config: Any) -> bool:
    """Return whether an engine with this VllmConfig compiles models."""
    mode = getattr(config.compilation_config, "mode", 0) or 0
    return not config.model_config.enforce_eager and int(mode) > 0


def _share_cache(attention: Mapping[str, Any], config: Any) -> bool:
    """Return whether other layers may write to the memory of the drafter's keys, in blocks that
    have been freed: vLLM lets layers of different kinds share memory."""
    layers = config.compilation_config.static_forward_context
    own = [_extent(layer) for layer in attention.values()]
    others = [_extent(layer) for name, layer in layers.items() if name not in attention]
    return any(
        low < other_high and other_low < high
        for low, high in own
        for other_low, other_high in others
    )


def open_drafter(
    model: Any,
    layer_names: Iterable[str],
    config: Any,
    inputs: Mapping[str, torch.Tensor],
    *,
    unmeasured: str | None = None,
    causal: bool | None = None,
    queries: int | None = None,
) -> Drafter:
    """Return the drafter after finding out what its forward gives out.

    `inputs` are the arguments of a forward of `discovery.ROWS` rows, and `unmeasured` why no masses
    can be measured, if the runner knows of a reason. `causal` and `queries` of a block: see
    LoadedProposer. Raises ProbeError if it cannot be recorded.
    """
    context = config.compilation_config.static_forward_context
    attention = {name: context[name] for name in sorted(layer_names, key=_numbers_apart)}
    support.check_speculation(config)
    kind = kind_for(config.speculative_config)
    if kind.block and queries is not None:
        ahead = queries - int(config.speculative_config.num_speculative_tokens)
        kind = replace(kind, ahead=ahead, causal=kind.causal if causal is None else causal)
    notes: tuple[str, ...] = ()
    if not kind.heads:
        anatomy = _watched(kind, model, attention, config, inputs)
        kind = replace(
            kind,
            outputs=anatomy.outputs,
            norms=anatomy.norms,
            head_norms=anatomy.head_norms,
        )
        # Several MTP modules may be loaded; the runners that get here run only the first.
        attention = {name: attention[name] for name in anatomy.layers}
    if kind.attention:
        try:
            reason = unmeasured or support.unmeasured(attention)
            for layer in () if reason else attention.values():
                VllmAttentionLayer(layer).reader  # noqa: B018  raises if its keys cannot be read
        except ProbeError as error:
            reason = str(error)
        if reason:
            kind, attention = replace(kind, attention=False), {}
            notes = (f"attention masses are not recorded: {reason}",)
    return drafter_of(model, attention, config, kind, notes)


def _watched(
    kind: DrafterKind,
    model: Any,
    attention: Mapping[str, Any],
    config: Any,
    inputs: Mapping[str, torch.Tensor],
) -> Anatomy:
    """Return what one forward over made-up rows shows; raises UnknownDrafterError if it fails."""
    from vllm.forward_context import set_forward_context

    wanted = inspect.signature(model.forward).parameters
    given = {name: tensor for name, tensor in inputs.items() if name in wanted}

    def forward() -> Any:
        rows = torch.full((support.replicas_of_experts(config),), ROWS, dtype=torch.int32)
        with (
            _alone(),
            _without_adapters(model),
            # Without the rows of all replicas vLLM would ask them.
            set_forward_context(None, config, num_tokens=ROWS, num_tokens_across_dp=rows),
        ):
            return model(**given)

    try:
        return anatomy_of(model, attention, forward, fed=kind.chained)
    except Exception as error:  # the border: a model of any class runs here
        raise UnknownDrafterError(
            f"drafter {type(model).__name__}: a forward that is to show its states fails "
            f"({first_line(error)}); acceptance and timing are recorded"
        ) from error


@contextlib.contextmanager
def _without_adapters(model: Any) -> Iterator[None]:
    """Run the target's layers that the drafter shares without LoRA, which is told the requests of
    each step before it runs."""
    with contextlib.ExitStack() as undo:
        for module in model.modules():
            if (plain := getattr(module, "base_layer", None)) is not None:
                module.forward = plain.forward
                undo.callback(delattr, module, "forward")
        yield


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let this rank exchange nothing with the others: one that the probe left out would be waited
    for forever, and what an output is does not depend on sums, nor on experts elsewhere."""
    from vllm.distributed import parallel_state

    groups = (parallel_state._TP, getattr(parallel_state, "_EP", None))
    with contextlib.ExitStack() as undo:
        for group in {id(group): group for group in groups if group is not None}.values():
            # Without a communicator, tokens are sent to no other rank's experts.
            undo.callback(setattr, group, "device_communicator", group.device_communicator)
            group.device_communicator = None
            group.all_reduce = lambda tensor: tensor
            undo.callback(delattr, group, "all_reduce")
        yield


def _extent(layer: Any) -> tuple[int, int]:
    """Return the address range of a layer's KV cache; empty if the layer has no cache."""
    cache = getattr(layer, "kv_cache", None)
    cache = cache[0] if isinstance(cache, list | tuple) and cache else cache
    if not isinstance(cache, torch.Tensor):
        return 0, 0
    spans = ((n - 1) * stride for n, stride in zip(cache.shape, cache.stride(), strict=True))
    size = (sum(spans) + 1) * cache.element_size() if cache.numel() else 0
    return cache.data_ptr(), cache.data_ptr() + size


def _numbers_apart(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts layers.9 before layers.10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]
