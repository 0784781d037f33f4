"""A drafter that SGLang has loaded: its attention layers, their keys, and the hook that sees their
queries.

Written against sglang.srt.layers.radix_attention, sglang.srt.mem_cache.memory_pool,
sglang.srt.layers.logits_processor and sglang.srt.speculative.eagle_worker_v2, 0.5.23.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from driftscope.boundary.files import first_line
from driftscope.errors import UnknownDrafterError
from driftscope_probes.discovery import ROWS, Anatomy, anatomy_of, made_up
from driftscope_probes.drafter import (
    AttentionKind,
    AttentionLayer,
    Drafter,
    DrafterKind,
    KeyReader,
    Observer,
    Remove,
    Switch,
    stand_in,
)
from driftscope_probes.start_guard import INTERNALS


class PoolKeys(KeyReader):
    """Keys of SGLang's pool: a row for each slot, in every backend with plain attention."""

    paged = True

    def pages(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """See KeyReader."""
        return kv_cache.transpose(1, 2)

    def score(
        self, queries: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, length: int
    ) -> torch.Tensor:
        """See KeyReader."""
        wanted = block_table[:, :length].long().clamp(0, len(kv_cache) - 1)
        keys = kv_cache[:, :, 0][wanted]  # [B, slots, kv_heads, head_size]
        return (queries @ keys.permute(0, 2, 3, 1).float())[:, None]


class SglangAttentionLayer(AttentionLayer):
    """One RadixAttention module of a drafter; see `AttentionLayer`."""

    reader: KeyReader = PoolKeys()

    def __init__(self, module: Any, pool: Any) -> None:
        """`pool`: the drafter's KV pool."""
        self._module, self._pool = module, pool

    @functools.cached_property
    def kind(self) -> AttentionKind:
        """See AttentionLayer."""
        module = self._module
        return AttentionKind(
            heads=int(module.tp_q_head_num),
            kv_heads=int(module.tp_k_head_num),
            head_size=int(module.qk_head_dim),
            scale=float(module.scaling),
            softcap=float(module.logit_cap or 0.0),
        )

    def cache(self) -> torch.Tensor:
        """Return the layer's keys, [slots, kv_heads, 1, head_size]: blocks of one slot each."""
        keys: torch.Tensor = self._pool.get_key_buffer(self._module.layer_id)
        return keys.unsqueeze(2)

    def tap(self, observer: Observer, switch: Switch) -> Remove:
        """See AttentionLayer: the queries are those after the rotary embedding."""

        def around(original: Any) -> Callable[..., Any]:
            def observed(q: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(q, *args, **kwargs)
                if switch.should_record:
                    switch.observe(("attention", observer, q, None))
                return result

            return observed

        return stand_in(self._module, "forward", around)


TREE = (
    "attention and hidden states are not applicable: with speculative_eagle_topk > 1 the drafts "
    "form a tree, whose depth is not a position"
)
NO_MODEL = (
    "attention and hidden states are not applicable: an n-gram lookup drafts, and no model; K is "
    "the number of nodes of the tree that is verified, without its root"
)


def open_drafter(worker: Any) -> Drafter:
    """Return the drafter of an EagleDraftWorker; raises UnknownDrafterError if its inside cannot be
    recorded."""
    from sglang.srt.layers.radix_attention import RadixAttention

    runner = worker.draft_runner
    if runner is None:
        raise UnknownDrafterError(NO_MODEL)
    if worker.topk > 1:
        raise UnknownDrafterError(TREE)
    name = type(runner.model).__name__
    attention = {
        path: module
        for path, module in runner.model.named_modules()
        if isinstance(module, RadixAttention)
    }
    if reason := _unsupported(worker, attention):
        raise UnknownDrafterError(
            f"{INTERNALS}: drafter {name} is not supported by this driftscope in SGLang: {reason}"
        )
    try:
        anatomy = _watched(runner, attention)
    except Exception as error:  # the border: a model of any class runs here
        raise UnknownDrafterError(
            f"{INTERNALS}: drafter {name}: a forward that is to show its states fails "
            f"({first_line(error)})"
        ) from error
    kind = DrafterKind(name=name, methods=(), outputs=anatomy.outputs, norms=anatomy.norms)
    pool = runner.token_to_kv_pool
    return Drafter(
        model=runner.model,
        layers={path: SglangAttentionLayer(attention[path], pool) for path in anatomy.layers},
        kind=kind,
        dtype=runner.dtype,
        k=int(worker.speculative_num_steps),
        max_requests=int(worker.req_to_token_pool.size),
        max_slots=int(runner.model_config.context_len),
        # Others than EAGLE-3 read the target's last state, and capture no layer.
        aux_states=int(getattr(getattr(runner.model, "model", None), "num_aux_hidden_states", 0)),
    )


def _watched(runner: Any, attention: dict[str, Any]) -> Anatomy:
    """Return what one forward over made-up rows shows, without cache and without other ranks."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

    model, config = runner.model, runner.model_config
    device = next(model.parameters()).device
    rows = torch.ones(ROWS, dtype=torch.int64, device=device)
    state = made_up(torch.empty(ROWS, int(config.hidden_size), dtype=config.dtype, device=device))
    batch = ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        batch_size=ROWS,
        input_ids=rows,
        req_pool_indices=rows,
        seq_lens=rows,
        out_cache_loc=rows,
        seq_lens_sum=ROWS,
    )
    batch.spec_info = SimpleNamespace(hidden_states=state)
    with contextlib.ExitStack() as undo:
        undo.enter_context(_alone())
        for module in attention.values():
            module.forward = functools.partial(_attended, module)
            undo.callback(delattr, module, "forward")
        processor = model.logits_processor
        processor.forward = _states
        undo.callback(delattr, processor, "forward")
        return anatomy_of(model, attention, lambda: model.forward(rows, rows, batch), fed=True)


def _attended(module: Any, query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Return a place for the numbers that attention gives out."""
    return query.new_empty(len(query), module.tp_q_head_num * module.v_head_dim)


def _states(
    input_ids: Any,  # noqa: ARG001  the parameters of SGLang's LogitsProcessor
    hidden_states: torch.Tensor,
    lm_head: Any,  # noqa: ARG001
    logits_metadata: Any,  # noqa: ARG001
    aux_hidden_states: Any = None,
    hidden_states_before_norm: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the state that logits are computed from and, if that is another, the one that SGLang
    would feed."""
    if hidden_states_before_norm is not None:
        return hidden_states, hidden_states_before_norm
    if aux_hidden_states is None:
        return (hidden_states,)
    is_packed = isinstance(aux_hidden_states, torch.Tensor)
    parts = (aux_hidden_states,) if is_packed else tuple(aux_hidden_states)
    return hidden_states, torch.cat(parts, dim=-1)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let this rank add up nothing with the others: one that the probe left out would be waited for
    forever, and what an output is does not depend on the sum."""
    from sglang.srt.distributed import parallel_state

    names = ("_TP", "_ATTN_TP", "_MOE_EP", "_MOE_TP", "_SHARED_EXPERTS_TP")
    groups = (getattr(parallel_state, name, None) for name in names)
    with contextlib.ExitStack() as undo:
        for group in {id(group): group for group in groups if group is not None}.values():
            group.all_reduce = lambda tensor: tensor
            undo.callback(delattr, group, "all_reduce")
        yield


def _unsupported(worker: Any, attention: dict[str, Any]) -> str | None:
    """Return what would be measured incorrectly; None if nothing would be."""
    runner = worker.draft_runner
    if worker.speculative_algorithm.is_standalone():
        return "it reads tokens alone, as a draft model"
    if not attention:
        return "it has no attention layers"
    if runner.kv_index_translator.is_translating:
        return "its KV cache has virtual slots"
    if "float8" in str(runner.kv_cache_dtype):
        return "its KV cache is fp8"
    for module in attention.values():
        if module.sliding_window_size > 0:
            return "it has a sliding window"
        if module.qk_head_dim != module.v_head_dim or module.is_cross_attention:
            return "its attention is latent or crosses to the target's"
    return None
