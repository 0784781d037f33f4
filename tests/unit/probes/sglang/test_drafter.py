"""SGLang's pool keeps a row per slot: the reader's scores are plain products with those rows."""

from pathlib import Path
from types import SimpleNamespace

import torch

from driftscope.trace.writer import TraceWriter
from driftscope_probes.guard import Guard
from driftscope_probes.sglang.drafter import PoolKeys, SglangAttentionLayer
from driftscope_probes.taps import HookSwitch

HEADS, KV_HEADS, SIZE, SLOTS = 4, 2, 8, 12


class Attention(torch.nn.Module):
    tp_q_head_num, tp_k_head_num, qk_head_dim = HEADS, KV_HEADS, SIZE
    scaling, logit_cap, layer_id = 0.25, 0.0, 0

    def forward(self, q: torch.Tensor, *_: object) -> torch.Tensor:
        return 2 * q


def layer() -> tuple[SglangAttentionLayer, Attention, torch.Tensor]:
    keys, module = torch.randn(SLOTS, KV_HEADS, SIZE), Attention()
    pool = SimpleNamespace(get_key_buffer=lambda _: keys)
    return SglangAttentionLayer(module, pool), module, keys


def test_scores_are_products_with_the_rows_of_the_table() -> None:
    wrapped, _, keys = layer()
    table = torch.tensor([[3, 1, 7, 0], [2, 2, 11, 5]], dtype=torch.int32)
    queries = torch.randn(2, KV_HEADS, 6, SIZE)
    scores = PoolKeys().score(queries, wrapped.cache(), table, 3)
    assert scores.shape == (2, 1, KV_HEADS, 6, 3)
    expected = torch.einsum("bhqd,bshd->bhqs", queries, keys[table[:, :3].long()])
    assert torch.allclose(scores[:, 0], expected)


def test_parameters_and_pages() -> None:
    wrapped, _, keys = layer()
    assert (wrapped.kind.heads, wrapped.kind.kv_heads, wrapped.query_size) == (4, 2, 8)
    assert torch.equal(PoolKeys().pages(wrapped.cache())[:, 0], keys)


def test_a_tap_sees_queries_only_while_recording(tmp_path: Path) -> None:
    wrapped, module, _ = layer()
    guard = Guard(TraceWriter(tmp_path / "run", source="worker0-1"))
    switch = HookSwitch(guard, in_graph=False)
    seen: list[torch.Tensor] = []
    remove = wrapped.tap(lambda query, _: seen.append(query), switch)
    q = torch.randn(1, HEADS * SIZE)
    assert torch.equal(module(q), 2 * q) and not seen
    switch.active = True
    assert torch.equal(module(q), 2 * q) and len(seen) == 1
    remove()
    module(q)
    assert len(seen) == 1
