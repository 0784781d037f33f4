"""A drafter laid out as vLLM's, small enough to compute by hand what the probe should see."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from driftscope_probes import keys
from driftscope_probes.drafter import Drafter
from driftscope_probes.view import DraftStep

HIDDEN, HEADS, KV_HEADS, SIZE, VOCABULARY, SLOTS, AUX = 16, 4, 2, 4, 11, 64, 3
MAX_ROWS = 24


class Norm(nn.Module):
    """As vLLM's RMSNorm, which dispatches through `_forward_method`."""

    def __init__(self, size: int = HIDDEN) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self._forward_method = self._native

    def _native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        total = x if residual is None else x + residual
        normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True)) * self.weight
        return normed if residual is None else (normed, total)

    def forward(self, *args: torch.Tensor) -> Any:
        return self._forward_method(*args)


class AttentionImpl:
    """Writes keys into a dense cache [B, kv_heads, size, slots]; meta.position is each row's."""

    scale = 0.5

    def forward(self, *call: Any) -> torch.Tensor:
        _layer, _query, key, value, cache, meta = call
        if meta is not None:
            cache[meta.request, :, :, meta.position] = key.view(-1, KV_HEADS, SIZE)
        return value.repeat(1, HEADS // KV_HEADS)


class Attention(nn.Module):
    head_size = SIZE

    def __init__(self) -> None:
        super().__init__()
        self.impl = AttentionImpl()

    def get_attn_backend(self) -> Any:
        return SimpleNamespace(get_name=lambda: "DENSE")


class Inner(nn.Module):
    use_aux_hidden_state = True
    num_aux_hidden_states = AUX

    def __init__(self, *, fc_norm: bool, norm_output: bool, norm_before_fc: bool) -> None:
        super().__init__()
        self.norm_before_fc = norm_before_fc
        self.input_norm = Norm(AUX * HIDDEN) if norm_before_fc else None
        self.norm, self.fc = Norm(), nn.Linear(AUX * HIDDEN, HIDDEN, bias=False)
        self.fc_norm = nn.ModuleList([Norm() for _ in range(AUX)]) if fc_norm else None
        self.norm_output = norm_output
        self.attention = Attention()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * SIZE, bias=False)


class Eagle3LlamaForCausalLM(nn.Module):
    """Named as vLLM's class, by which drafters are recognised."""

    def __init__(self, **flags: bool) -> None:
        super().__init__()
        self.model = Inner(**flags)
        self.lm_head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.config = SimpleNamespace(norm_before_residual=True)
        self.cache = torch.zeros(8, KV_HEADS, SIZE, SLOTS)

    def combine_hidden_states(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.model.input_norm is not None:
            hidden = self.model.input_norm(hidden)
        if self.model.fc_norm is not None:
            parts = hidden.chunk(AUX, dim=-1)
            normed = [norm(x) for norm, x in zip(self.model.fc_norm, parts, strict=True)]
            hidden = torch.cat(normed, dim=-1)
        return self.model.fc(hidden)  # type: ignore[no-any-return]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def forward(self, *, hidden_states: torch.Tensor, meta: Any) -> Any:
        inner = self.model
        sizes = [HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE]
        q, k, v = inner.qkv(hidden_states).split(sizes, dim=-1)
        attention = inner.attention
        out = attention.impl.forward(attention, q, k, v, self.cache, meta)
        normed, total = inner.norm(out, hidden_states)
        return normed, normed if inner.norm_output else total


class DenseKeys:
    def gather(
        self, cache: torch.Tensor, block_table: torch.Tensor, length: int, room: int = 0
    ) -> torch.Tensor:
        keys = cache[block_table[:, 0].long(), :, :, :length]
        return torch.nn.functional.pad(keys, (0, room), value=torch.nan)


class Batch:
    """Two requests, the second with a shorter context; drafts K tokens as vLLM's proposer does."""

    k = 3
    positions = (9, 4)
    tokens = (3, 2)
    """Rows of each request in the forward at depth 1."""

    def __init__(self, model: Eagle3LlamaForCausalLM, prefilling: tuple[bool, ...]) -> None:
        self.model = model
        generator = torch.Generator().manual_seed(3)
        model.cache.copy_(torch.randn(model.cache.shape, generator=generator))
        self.aux = torch.randn(sum(self.tokens), AUX * HIDDEN, generator=generator)
        self.view = DraftStep(
            requests=("a", "b"),
            prompt_tokens=np.array([6, 5]),
            rows=torch.tensor([2, 4]),
            position=torch.tensor(self.positions),
            prefilling=np.array(prefilling),
            k=self.k,
        )

    def draft(self) -> torch.Tensor:
        """[B, K] drafted token ids; `self.seen` keeps what went by, by depth."""
        self.seen: list[dict[str, torch.Tensor]] = []
        request = torch.tensor([0, 0, 0, 1, 1])
        slots = torch.tensor([7, 8, 9, 3, 4])
        hidden, drafts = self.model.combine_hidden_states(self.aux), []
        for depth in range(1, self.k + 1):
            meta = SimpleNamespace(
                request=request, position=slots, max_seq_len=max(self.positions) + 1,
                block_table=torch.tensor([[0], [1]]),
            )  # fmt: skip
            postnorm, fed = self.model(hidden_states=hidden, meta=meta)
            rows = self.view.rows if depth == 1 else torch.arange(2)
            logits = self.model.compute_logits(postnorm[rows])
            drafts.append(logits.argmax(-1))
            self.seen.append({"in": hidden[rows], "postnorm": postnorm[rows], "fed": fed[rows],
                              "logits": logits})  # fmt: skip
            hidden, request = fed[rows], torch.arange(2)
            slots = self.view.position + depth
        return torch.stack(drafts, dim=1)


@pytest.fixture
def make_drafter(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Drafter]:
    """A drafter with the flags of EAGLE-3 (all off), EAGLE-3.1 (the first two on) or others."""
    monkeypatch.setitem(keys.READERS, "DENSE", lambda _: DenseKeys())

    def make(
        *, fc_norm: bool = False, norm_output: bool = False, norm_before_fc: bool = False
    ) -> Drafter:
        torch.manual_seed(2)
        model = Eagle3LlamaForCausalLM(
            fc_norm=fc_norm, norm_output=norm_output, norm_before_fc=norm_before_fc
        ).eval()
        model.requires_grad_(False)
        return Drafter(
            model=model,
            attention={"model.layers.0.self_attn.attn": model.model.attention},
            config=None,
            max_rows=MAX_ROWS,
            device_type="cpu",
        )

    return make


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    return lambda drafter, prefilling=(False, False): Batch(drafter.model, prefilling)
