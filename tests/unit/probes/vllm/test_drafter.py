"""Keys read back from vLLM's paged caches: the CPU's written by vLLM's own op."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from driftscope.errors import ProbeError
from driftscope_probes.drafter import KeyReader
from driftscope_probes.vllm.drafter import (
    FLASH_ATTENTION,
    CpuAttnKeys,
    cache_of,
    catch_lse,
    kind_of,
    offer_lse,
    reader_for,
    tap_attention,
)

BLOCKS, HEADS, BATCH = 13, 2, 3
UNSET = 1234.0
"""Found in slots that were never written."""


@pytest.fixture(scope="module")
def vllm() -> Any:
    """vLLM's ops, and its own choice of an instruction set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm import _custom_ops
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return SimpleNamespace(ops=_custom_ops, isa_of=_get_attn_isa)


def _read(
    reader: KeyReader, cache: torch.Tensor, table: torch.Tensor, length: int, size: int
) -> torch.Tensor:
    """[B, kv_heads, size, length] float32: the keys, which are what unit vectors score."""
    units = torch.eye(size).expand(len(table), HEADS, size, size)
    by_block = reader.score(units, cache, table, length)
    assert by_block.dtype == torch.float32
    scores = by_block.permute(0, 2, 3, 1, 4).flatten(3)
    assert scores.shape[-1] >= length
    return scores[..., :length]


def _values(reader: Any, cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """[slots, heads, size] float64: one request's values, which are what unit weights sum."""
    units = torch.eye(length, dtype=torch.float64)[:, None].expand(-1, HEADS, -1)
    summed: torch.Tensor = reader.weigh(units, cache, table)
    return summed


class Cache:
    """A paged cache in which B requests' blocks lie in shuffled order."""

    def __init__(self, vllm: Any, dtype: torch.dtype, block_size: int, head_size: int) -> None:
        self.isa = vllm.isa_of(dtype, block_size, head_size)
        self._write, self._block_size = vllm.ops.cpu_attn_reshape_and_cache, block_size
        generator = torch.Generator().manual_seed(1)
        self.size = head_size
        self.tensor = torch.full((BLOCKS, HEADS, block_size, 2 * head_size), UNSET, dtype=dtype)
        per_request = BLOCKS // BATCH
        order = torch.randperm(BLOCKS, generator=generator)
        self.block_table = order[: per_request * BATCH].view(BATCH, per_request).int()
        self.capacity = per_request * block_size
        shape = (BATCH, self.capacity, HEADS, head_size)
        self.keys = torch.randn(shape, generator=generator).to(dtype)

    def write(self, request: int, start: int, end: int) -> None:
        """Put slots [start, end) of a request into the cache as vLLM does."""
        slots = torch.arange(start, end)
        blocks = self.block_table[request, slots // self._block_size].long()
        mapping = blocks * self._block_size + slots % self._block_size
        size = self.tensor.shape[2]
        view = self.tensor.view(BLOCKS, HEADS, size * 2, -1)
        key_cache, value_cache = view.chunk(2, dim=2)
        keys = self.keys[request, start:end].contiguous()
        self._write(
            keys,
            keys * -7,
            key_cache,
            value_cache,
            mapping,
            self.isa,
            k_scale=1.0,
            v_scale=1.0,
            kv_cache_dtype="auto",
        )

    def expected(self, length: int) -> torch.Tensor:
        """[B, kv_heads, head_size, length] float32."""
        return self.keys[:, :length].permute(0, 2, 3, 1).float()


@pytest.fixture
def make_cache(vllm: Any) -> Callable[..., Cache]:
    return lambda dtype, block_size, head_size: Cache(vllm, dtype, block_size, head_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("block_size", "head_size"), [(16, 32), (32, 64), (128, 48), (64, 128)])
def test_what_vllm_wrote_is_read_back(
    make_cache: Callable[..., Cache], dtype: torch.dtype, block_size: int, head_size: int
) -> None:
    cache = make_cache(dtype, block_size, head_size)
    for request in range(BATCH):
        cache.write(request, 0, cache.capacity)
    reader = CpuAttnKeys(SimpleNamespace(isa=cache.isa))
    for length in (1, block_size, block_size + 3, cache.capacity):
        read = _read(reader, cache.tensor, cache.block_table, length, cache.size)
        assert torch.equal(read, cache.expected(length))
        blocks = -(-length // block_size)
        values = _values(reader, cache.tensor, cache.block_table[1:2, :blocks], length)
        assert torch.equal(values, (cache.keys[1, :length] * -7).double())


def test_keys_written_token_by_token_and_in_pieces(make_cache: Callable[..., Cache]) -> None:
    cache = make_cache(torch.float32, 32, 32)
    reader = CpuAttnKeys(SimpleNamespace(isa=cache.isa))
    for start, end in ((0, 5), (5, 6), (6, 40), (40, 41)):
        cache.write(1, start, end)
        read = _read(reader, cache.tensor, cache.block_table, end, cache.size)
        assert torch.equal(read[1], cache.expected(end)[1])
        assert (read[0] == read[0, 0, 0, 0]).all(), "another request's slots hold what they held"


def test_a_padded_block_table_does_not_reach_outside_the_cache(
    make_cache: Callable[..., Cache],
) -> None:
    cache = make_cache(torch.float32, 32, 32)
    cache.write(0, 0, 32)
    table = cache.block_table.clone()
    table[1:] = -1
    reader = CpuAttnKeys(SimpleNamespace(isa=cache.isa))
    read = _read(reader, cache.tensor, table, 64, cache.size)
    assert torch.equal(read[0, :, :, :32], cache.expected(32)[0])


def test_the_instruction_set_is_found_where_older_vllm_keeps_it(
    make_cache: Callable[..., Cache],
) -> None:
    cache = make_cache(torch.float32, 32, 32)
    cache.write(0, 0, 20)
    layer = SimpleNamespace(impl=SimpleNamespace(isa=cache.isa))
    read = _read(CpuAttnKeys(layer), cache.tensor, cache.block_table[:1], 20, cache.size)
    assert torch.equal(read[0], cache.expected(20)[0])


@pytest.mark.parametrize("dim", [4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_of_a_gpu_backend_are_read_in_either_layout(dim: int, dtype: torch.dtype) -> None:
    block_size, size = 4, 8
    generator = torch.Generator().manual_seed(2)
    keys = torch.randn(BLOCKS, block_size, HEADS, size, generator=generator).to(dtype)
    if dim == 4:
        cache = torch.cat((keys, keys * -7), -1).transpose(1, 2).contiguous()
    else:
        cache = torch.stack((keys, keys * -7), 1)
    reader = reader_for("FLASH_ATTN", SimpleNamespace(head_size=size))
    assert reader.paged
    assert torch.equal(reader.pages(cache), keys)
    assert reader.pages(cache).data_ptr() == cache.data_ptr(), "a view: nothing is copied"
    table = torch.tensor([[3, 0, 12], [5, 1, -1]])
    read = _read(reader, cache, table, 10, size)
    for slot in range(10):
        block = table[0, slot // block_size]
        assert torch.equal(read[0, :, :, slot], keys[block, slot % block_size].float())
    assert torch.equal(read[1, :, :, 5], keys[1, 1].float())
    values = _values(reader, cache, table[:1], 10)
    assert torch.equal(values, (keys[[3, 0, 12]] * -7).flatten(0, 1)[:10].double())


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ProbeError, match=r"FLEX is not supported .* supported: CPU_ATTN, FLASH"):
        reader_for("FLEX", object())


ROWS, LAYER_HEADS, SIZE = 5, 4, 8


class Impl:
    """An attention implementation of vLLM."""

    scale = 0.125

    def __init__(self) -> None:
        self.during: Callable[[], Any] = lambda: None

    def forward(self, _layer: Any, query: Any, *_: Any) -> Any:
        self.during()
        return query + 1


class Switch:
    """Stands for the taps."""

    def __init__(self, *, on: bool = True) -> None:
        self.should_record, self.hooks = on, []  # type: ignore[var-annotated]

    def observe(self, hook: str, action: Callable[..., Any], *args: Any) -> None:
        self.hooks.append(hook)
        action(*args)


def _layer(impl: Any = None, **changes: Any) -> Any:
    plain = {
        "num_heads": LAYER_HEADS,
        "num_kv_heads": 2,
        "head_size": SIZE,
        "sliding_window": None,
    }
    return SimpleNamespace(impl=impl or Impl(), **{**plain, **changes})


def test_plain_attention_is_read_off_its_layer() -> None:
    kind = kind_of(_layer())
    assert (kind.heads, kind.kv_heads, kind.head_size, kind.scale) == (
        LAYER_HEADS,
        2,
        SIZE,
        0.125,
    )
    assert (kind.window, kind.softcap, kind.sinks) == (None, 0.0, None)


def test_what_changes_the_softmax_is_read_off_too() -> None:
    impl = Impl()
    impl.logits_soft_cap, impl.sinks = 30, torch.ones(LAYER_HEADS)  # type: ignore[attr-defined]
    kind = kind_of(_layer(impl, sliding_window=128))
    assert (kind.window, kind.softcap) == (128, 30.0)
    assert kind.sinks is impl.sinks  # type: ignore[attr-defined]


def test_the_cache_is_found_where_older_versions_keep_it() -> None:
    cache = torch.zeros(1)
    assert cache_of(SimpleNamespace(kv_cache=cache)) is cache
    assert cache_of(SimpleNamespace(kv_cache=[cache])) is cache


def _call(layer: Any, *, meta: object = True) -> torch.Tensor:
    query = torch.arange(float(ROWS * LAYER_HEADS * SIZE)).view(ROWS, LAYER_HEADS, SIZE)
    result: torch.Tensor = layer.impl.forward(layer, query, None, None, None, meta)
    return result


def test_a_call_shows_its_queries_and_gives_what_it_gave() -> None:
    layer, switch, seen = _layer(), Switch(), []
    plain = _call(layer)
    tap_attention(layer, lambda query, lse: seen.append((query, lse)), switch)
    assert torch.equal(_call(layer), plain)
    ((query, lse),) = seen
    assert torch.equal(query, plain - 1)
    assert lse is None
    assert switch.hooks == ["attention"]


def test_nothing_is_shown_while_off_or_without_a_cache_in_use() -> None:
    layer, switch, seen = _layer(), Switch(on=False), []
    undo = tap_attention(layer, lambda query, _: seen.append(query), switch)
    _call(layer)
    switch.should_record = True
    _call(layer, meta=None)
    assert seen == []
    undo()
    _call(layer)
    assert seen == []
    assert "forward" not in vars(layer.impl)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's FlashAttention backend as far as the probe knows it; `calls` are its kernel's."""
    module: Any = ModuleType(FLASH_ATTENTION)
    module.calls = []

    def flash_attn_varlen_func(q: torch.Tensor, **kwargs: Any) -> Any:
        module.calls.append(kwargs)
        if kwargs.get("return_softmax_lse"):
            return q * 2, q.logsumexp(-1, keepdim=True).T
        return q * 2

    module.flash_attn_varlen_func = flash_attn_varlen_func
    name, _, _ = FLASH_ATTENTION.rpartition(".")
    # Nothing of vLLM is loaded for a module that is there already.
    for part in (FLASH_ATTENTION, name, *_parents(name)):
        monkeypatch.setitem(
            sys.modules, part, module if part == FLASH_ATTENTION else ModuleType(part)
        )
    return module


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def test_the_kernels_log_sum_exp_is_caught_where_it_is_wanted(flash: Any) -> None:
    assert offer_lse()
    layer, switch, seen = _layer(), Switch(), []
    query = torch.randn(ROWS, LAYER_HEADS, generator=torch.Generator().manual_seed(0))
    layer.impl.during = lambda: flash.flash_attn_varlen_func(query)
    tap_attention(layer, lambda _, lse: seen.append(lse), switch)
    _call(layer)
    torch.testing.assert_close(seen[0], query.logsumexp(-1)[None])
    assert torch.equal(flash.flash_attn_varlen_func(query), query * 2), "one result, as asked for"
    switch.should_record = False
    _call(layer)
    asked = [call.get("return_softmax_lse", False) for call in flash.calls]
    assert asked == [True, False, False], "asked for only while recording"


def test_a_caller_that_asks_itself_is_left_alone(flash: Any) -> None:
    offer_lse()
    query = torch.ones(ROWS, LAYER_HEADS)
    with catch_lse() as caught:
        out, _ = flash.flash_attn_varlen_func(query, return_softmax_lse=True)
        assert torch.equal(flash.flash_attn_varlen_func(query, s_aux=query), query * 2)
    assert torch.equal(out, query * 2)
    assert caught == [], "with learned biases the sum is another one"


def test_catching_ends_when_the_call_raises(flash: Any) -> None:
    offer_lse()
    layer = _layer()
    tap_attention(layer, lambda *_: None, Switch())
    layer.impl.during = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        _call(layer)
    flash.flash_attn_varlen_func(torch.ones(1, 1))
    assert not flash.calls[-1].get("return_softmax_lse")


def test_a_vllm_without_that_kernel_offers_nothing(flash: Any) -> None:
    del flash.flash_attn_varlen_func
    assert not offer_lse()
