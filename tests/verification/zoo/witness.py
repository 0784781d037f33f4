"""Watch a drafter with independent hooks and recompute in float64 what the probe records.

No code of the probe is used. Attention layers are watched where vLLM writes keys and where it
attends. Every attention row gets the full softmax over all slots that it may see, from the raw
queries and keys. The drafter's forward is watched for the states that go in and come out.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

SINK_SLOTS = 4
"""The probe's default."""


@dataclass
class Forward:
    """One forward of the drafter, with a row for each token."""

    positions: torch.Tensor
    hidden: torch.Tensor | None
    outputs: tuple[torch.Tensor, ...] = ()
    prenorm: torch.Tensor | None = None
    starts: list[int] = field(default_factory=list)
    """First row of each request, and the end of the last."""
    weights: list[list[torch.Tensor]] = field(default_factory=list)
    """Layer -> row -> [heads, slots + 1] float64; the last column is the share of a learned
    bias."""
    output_errors: dict[int, float] = field(default_factory=dict)
    """Row -> difference between vLLM's attention and these weights times the values, relative to
    the largest. It shows that these weights are the ones in use."""

    def rows(self, request: int) -> dict[int, int]:
        """Return position -> row for consecutive positions: later rows were rejected, and may hold
        anything."""
        start, end = self.starts[request], self.starts[request + 1]
        known = self.positions[start:end].tolist()
        first = known[0]
        count = next((i for i, at in enumerate(known) if at != first + i), len(known))
        return {first + i: start + i for i in range(count)}


@dataclass
class Draft:
    """One call of the proposer."""

    requests: tuple[str, ...]
    prompt_tokens: tuple[int, ...]
    forwards: list[Forward] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)


class Witness:
    """Records a drafter: call `install` before the engine starts, read `drafts` afterwards."""

    def __init__(self, drafter: str, prenorm: str | None) -> None:
        """`drafter`: class name; `prenorm`: path of a final norm below it."""
        self.drafter, self._prenorm = drafter, prenorm
        self.drafts: list[Draft] = []
        self._keys: dict[int, dict[int, torch.Tensor]] = {}
        self._forward: Forward | None = None
        self.model: Any = None

    # The engine's own classes are changed in this process only.
    def install(self, runner: str) -> None:
        from vllm.model_executor.layers.attention.mla_attention import MLAAttention
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl
        from vllm.v1.attention.backends.mla.cpu_mla import CPUMLAImpl

        _around(CPUAttentionBackendImpl, "do_kv_cache_update", self._write)
        _around(CPUAttentionBackendImpl, "forward", self._attend)
        _around(CPUMLAImpl, "do_kv_cache_update", self._write_latent)
        _around(MLAAttention, "forward_impl", self._attend_latent)
        if runner == "v1":
            from vllm.v1.worker.gpu_model_runner import GPUModelRunner

            _around(GPUModelRunner, "propose_draft_token_ids", self._draft_v1)
        else:
            from vllm.v1.worker.gpu.model_runner import GPUModelRunner

            _around(GPUModelRunner, "sample_tokens", self._draft_v2)

    def watch(self, model: Any) -> None:
        """Watch the loaded drafter's instance: its class may be the target's too."""
        self.model = model
        _around(model, "forward", self._run)
        _around(model, "compute_logits", self._read)
        if self._prenorm:
            norm = model.get_submodule(self._prenorm)
            norm.register_forward_pre_hook(self._before_norm)

    def _draft_v1(self, call: Callable[[], Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        return self._drafted(call, batch.req_ids, batch.num_prompt_tokens[: batch.num_reqs])

    def _draft_v2(self, call: Callable[[], Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
        state = runner.execute_model_state
        if state is None:
            return call()
        batch = state.input_batch
        lengths = runner.req_states.prompt_len.np[batch.idx_mapping_np[: batch.num_reqs]]
        return self._drafted(call, batch.req_ids, lengths)

    def _drafted(self, call: Callable[[], Any], requests: Any, lengths: Any) -> Any:
        self.drafts.append(Draft(tuple(requests), tuple(int(n) for n in lengths)))
        return call()

    def _run(self, call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        positions = kwargs.get("positions")
        hidden = kwargs.get("hidden_states", args[0] if args else None)
        if not self.drafts:
            return call()
        self._forward = forward = Forward(
            positions=torch.empty(0) if positions is None else positions.clone(),
            hidden=None if hidden is None else hidden.clone(),
        )
        output = call()
        outputs = output if isinstance(output, tuple | list) else (output,)
        forward.outputs = tuple(x.clone() for x in outputs)
        self.drafts[-1].forwards.append(forward)
        self._forward = None
        return output

    def _read(self, call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        logits = call()
        if self.drafts:
            found = torch.stack(logits, 1).flatten(0, 1) if isinstance(logits, list) else logits
            self.drafts[-1].logits.append(found.double())
        return logits

    def _before_norm(self, norm: Any, inputs: Any) -> None:
        if self._forward is not None:
            residual = inputs[1] if len(inputs) > 1 else None
            self._forward.prenorm = inputs[0].clone() if residual is None else sum(inputs[:2])

    def _write(self, call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        _, _, key, value, cache, slots, *_ = args
        self._store(cache, torch.cat((key, value), -1), slots)
        return call()

    def _write_latent(self, call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        _, latent, rope, cache, slots, *_ = args
        self._store(cache, torch.cat((latent, rope.flatten(1)), -1), slots)
        return call()

    def _store(self, cache: torch.Tensor, keys: torch.Tensor, slots: torch.Tensor) -> None:
        known = self._keys.setdefault(cache.data_ptr(), {})
        for slot, key in zip(slots.flatten().tolist(), keys.double(), strict=False):
            if slot >= 0:
                known[slot] = key.clone()

    def _attend(self, call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        impl, _, query, _, _, cache, meta, *_ = args
        output = call()
        if self._forward is not None and meta is not None:
            size = impl.head_size
            kept = functools.partial(self._lookup, cache, cache.shape[2])
            per_key = impl.num_heads // impl.num_kv_heads
            window = impl.sliding_window if impl.sliding_window > 0 else None
            cap, sinks = impl.logits_soft_cap or 0.0, impl.sinks

            def weigh(row: int, table: torch.Tensor, seen: range) -> torch.Tensor:
                own = kept(table, seen).repeat_interleave(per_key, 1)
                q = query[row].double()
                scores = torch.einsum("hd,nhd->hn", q, own[..., :size]) * impl.scale
                if cap:
                    scores = cap * torch.tanh(scores / cap)
                bias = scores.new_full((len(scores), 1), -torch.inf)
                if sinks is not None:
                    bias = sinks.double()[:, None]
                weights = torch.softmax(torch.cat((scores, bias), -1), -1)
                out = torch.einsum("hn,nhd->hd", weights[:, :-1], own[..., size:])
                self._compare(row, output[row], out)
                return weights

            starts = meta.query_start_loc.tolist()
            causal = getattr(meta, "causal", True) is not False
            lengths = meta.seq_lens.tolist()
            self._rows(starts, lengths, meta.block_table, window, weigh, causal)
        return output

    def _attend_latent(self, call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        layer, query, _, _, cache, meta, *_ = args
        output = call()
        if self._forward is not None and meta is not None:
            kept = functools.partial(self._lookup, cache, cache.shape[1])
            nope, rank = layer.qk_nope_head_dim, layer.kv_lora_rank
            up = layer.impl.kv_b_proj.weight.double().unflatten(0, (layer.num_heads, -1))

            def weigh(row: int, table: torch.Tensor, seen: range) -> torch.Tensor:
                rows, q = kept(table, seen), query[row].double()
                whole = torch.einsum("hpl,nl->nhp", up, rows[:, :rank])  # [slots, heads, nope + v]
                scores = torch.einsum("hp,nhp->hn", q[:, :nope], whole[..., :nope])
                scores = scores + q[:, nope:] @ rows[:, rank:].T
                weights = torch.softmax(scores * layer.impl.scale, -1)
                self._compare(
                    row, output[row], torch.einsum("hn,nhv->hv", weights, whole[..., nope:])
                )
                return torch.cat((weights, weights.new_zeros(len(weights), 1)), -1)

            parts = [part for part in (meta.decode, meta.prefill) if part is not None]
            table = torch.cat([part.block_table for part in parts])
            self._rows(meta.query_start_loc.tolist(), None, table, None, weigh, True)
        return output

    def _compare(self, row: int, output: torch.Tensor, wanted: torch.Tensor) -> None:
        error = (output.double().flatten() - wanted.flatten()).abs().max() / wanted.abs().max()
        assert self._forward is not None
        errors = self._forward.output_errors
        errors[row] = max(errors.get(row, 0.0), float(error))

    def _rows(
        self,
        starts: list[int],
        lengths: list[int] | None,
        tables: torch.Tensor,
        window: int | None,
        weigh: Callable[..., torch.Tensor],
        causal: bool,
    ) -> None:
        """Return the weights of each row over all slots, zero where it does not attend."""
        forward = self._forward
        assert forward is not None
        forward.starts, found = starts, []
        for b, (first, end) in enumerate(itertools.pairwise(starts)):
            for row in range(first, end):
                own = int(forward.positions[row])
                last = own if causal or lengths is None else lengths[b] - 1
                begin = 0 if window is None else max(0, own - window + 1)
                if not causal and window is not None:
                    last = min(last, own + window - 1)
                seen = range(begin, last + 1)
                weights = weigh(row, tables[b], seen)
                whole = weights.new_zeros(len(weights), last + 2)
                whole[:, begin:] = weights
                found.append(whole)
        forward.weights.append(found)

    def _lookup(self, cache: torch.Tensor, page: int, table: torch.Tensor, seen: range) -> Any:
        known = self._keys[cache.data_ptr()]
        blocks = table.tolist()
        missing = next(iter(known.values())) * torch.nan
        return torch.stack([known.get(blocks[s // page] * page + s % page, missing) for s in seen])


def _around(owner: Any, name: str, observer: Callable[..., Any]) -> None:
    """Replace `owner.name` so that each call runs `observer(call, *arguments)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        return observer(lambda: original(*args, **kwargs), *args, **kwargs)

    setattr(owner, name, observed)
