"""The start-up witness on the pages of vLLM's GPU backends, in both layouts, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from driftscope.vocabulary import MASSES
from driftscope_probes.buffers import Layout
from driftscope_probes.drafter import Kind
from driftscope_probes.engine import DraftStep
from driftscope_probes.vllm.drafter import VllmAttentionLayer
from driftscope_probes.witness import StartWitness, Verdict

HEADS, KV_HEADS, SIZE, PAGE, K, POSITION, PROMPT = 4, 2, 8, 4, 3, 9, 6
SLOTS, SINKS, LAYOUT = POSITION + K, (0, 1), Layout(depths=K, layers=1, aux=0)
CHANCE = torch.Generator().manual_seed(0)
KEYS, VALUES = (torch.randn(SLOTS, KV_HEADS, SIZE, generator=CHANCE) for _ in range(2))
QUERIES = torch.randn(K, HEADS, SIZE, generator=CHANCE)
TABLE = torch.tensor([[5, 0, 3]])


def weights() -> torch.Tensor:
    """Attention [K, heads, slots] in the plain way."""
    keys = KEYS.repeat_interleave(HEADS // KV_HEADS, 1)
    scores = torch.einsum("khd,shd->khs", QUERIES, keys) * SIZE**-0.5
    own = POSITION + torch.arange(K)
    return scores.masked_fill(torch.arange(SLOTS) > own[:, None, None], -torch.inf).softmax(-1)


def cache(*, newer: bool) -> torch.Tensor:
    """Keys and values on pages 5, 0 and 3, in the layout since vLLM 0.27 or the one before."""
    old = torch.full((6, 2, PAGE, KV_HEADS, SIZE), torch.nan)
    for index, whole in enumerate((KEYS, VALUES)):
        for at, page in enumerate(TABLE[0]):
            part = whole[at * PAGE : (at + 1) * PAGE]
            old[page, index, : len(part)] = part
    if not newer:
        return old
    return torch.cat((old[:, 0], old[:, 1]), -1).transpose(1, 2).contiguous()


class Backend:
    scale = SIZE**-0.5

    def __init__(self) -> None:
        values = VALUES.repeat_interleave(HEADS // KV_HEADS, 1)
        self._results = iter(torch.einsum("khs,shd->khd", weights(), values)[:, None])

    def forward(self, *_: Any) -> torch.Tensor:
        return next(self._results)


def verdict_of(
    kv_cache: torch.Tensor, masses: torch.Tensor, *, drafted_again: bool = False
) -> Verdict:
    """`drafted_again`: another chain writes the last slot before the watched one is judged."""
    backend = SimpleNamespace(get_name=lambda: "FLASH_ATTN")
    sizes = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_size": SIZE}
    module: Any = SimpleNamespace(impl=Backend(), attn_backend=backend, kv_cache=kv_cache, **sizes)
    queries = iter(QUERIES[:, None])

    def model() -> torch.Tensor:
        module.impl.forward(module, next(queries), None, None, kv_cache, "metadata")
        return torch.ones(1, 2)

    kind = Kind(name="own", methods=(), fed=False)
    drafter: Any = SimpleNamespace(model=model, kind=kind, k=K, compiled=True)
    holder = SimpleNamespace(model=model)
    layers = {"layer": VllmAttentionLayer(module)}
    witness = StartWitness(drafter, layers, holder, of_other_run=drafted_again)
    at: Any = SimpleNamespace(
        rows=torch.tensor([0]),
        position=torch.tensor([POSITION]),
        block_tables={"layer": TABLE},
        prompt_tokens=[PROMPT],
    )
    witness.choose(DraftStep(("a",), bytes(1), K), at)
    witness.watch()
    for _ in range(K):
        holder.model()
    drafts = torch.tensor([[1, 2, 3]])
    if drafted_again:
        witness.drafted(drafts)
        kv_cache[TABLE[0, -1]] = 9.0
    witness.end()
    values = torch.full((1, LAYOUT.width), torch.nan)
    first = LAYOUT.column("masses")
    values[0, first : first + masses.numel()] = masses.flatten()
    return witness.judge(values, LAYOUT, {}, SINKS, drafts)


def masses() -> torch.Tensor:
    mean, slot = weights().mean(1), torch.arange(SLOTS)
    sink = slot < len(SINKS)
    classes = (
        sink,
        ~sink & (slot < PROMPT),
        (slot >= PROMPT) & (slot <= POSITION),
        slot > POSITION,
    )
    found = torch.full((K, len(MASSES)), torch.nan)
    for column, chosen in enumerate(classes):
        found[:, column] = mean[:, chosen].sum(1)
    return found


@pytest.mark.parametrize("newer", [True, False])
def test_pages_give_what_the_layer_gave_out(newer: bool) -> None:
    pages, right = cache(newer=newer), masses()
    assert verdict_of(pages, right).fault is None
    wrong = verdict_of(pages, right + 0.01)
    assert wrong.states_agree and wrong.fault == "a mass of layer layer is off by 0.010"
    other = verdict_of(pages * 1.1, right)
    assert other.fault is not None and "gives out something else" in other.fault


@pytest.mark.parametrize("newer", [True, False])
def test_a_chain_is_judged_by_the_keys_of_its_own_run(newer: bool) -> None:
    """vLLM's V2 runner drafts once more for the witness. The served chain takes the same slots, and
    in a step that is no traffic other requests do, too."""
    verdict = verdict_of(cache(newer=newer), masses(), drafted_again=True)
    assert (verdict.fault, verdict.unsure) == (None, None)
