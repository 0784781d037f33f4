"""Keys read back from vLLM's paged caches, and the start-up witness that checks them."""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support.mass_cases import MassCase

from driftscope.errors import ProbeError
from driftscope_probes.buffers import Layout
from driftscope_probes.drafter import AttentionKind, DrafterKind, KeyReader
from driftscope_probes.engine import DraftStep
from driftscope_probes.vllm.drafter import (
    FLASH_ATTENTION,
    CpuAttnKeys,
    PagedKeys,
    VllmAttentionLayer,
    catch_lse,
    offer_lse,
)
from driftscope_probes.witness import StartWitness, WitnessResult

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
        slots, size = torch.arange(start, end), self._block_size
        blocks = self.block_table[request, slots // size].long()
        view = self.tensor.view(BLOCKS, HEADS, size * 2, -1)
        keys = self.keys[request, start:end].contiguous()
        arguments = (keys, keys * -7, *view.chunk(2, dim=2), blocks * size + slots % size, self.isa)
        self._write(*arguments, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto")

    def expected(self, length: int) -> torch.Tensor:
        """[B, kv_heads, head_size, length] float32."""
        return self.keys[:, :length].permute(0, 2, 3, 1).float()


@pytest.fixture
def make_cache(vllm: Any) -> Callable[..., Cache]:
    return functools.partial(Cache, vllm)


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


@pytest.mark.parametrize("older", [False, True])
def test_a_padded_block_table_does_not_reach_outside_the_cache(
    make_cache: Callable[..., Cache], older: bool
) -> None:
    """Older vLLM keeps the instruction set at another place."""
    cache = make_cache(torch.float32, 32, 32)
    cache.write(0, 0, 32)
    table = cache.block_table.clone()
    table[1:] = -1
    own = SimpleNamespace(isa=cache.isa)
    reader = CpuAttnKeys(SimpleNamespace(impl=own) if older else own)
    read = _read(reader, cache.tensor, table, 64, cache.size)
    assert torch.equal(read[0, :, :, :32], cache.expected(32)[0])


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
    reader = PagedKeys(SimpleNamespace(head_size=size))
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
        _ = VllmAttentionLayer(_layer(attn_backend=SimpleNamespace(get_name=lambda: "FLEX"))).reader


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
        self.active, self.should_record, self.hooks = False, on, []  # type: ignore[var-annotated]

    def observe(self, note: tuple[Any, ...]) -> None:
        hook, action, *args = note
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


def test_attention_is_read_off_its_layer() -> None:
    plain = AttentionKind(heads=LAYER_HEADS, kv_heads=2, head_size=SIZE, scale=0.125)
    assert asdict(VllmAttentionLayer(_layer()).kind) == asdict(plain)
    impl: Any = Impl()
    impl.logits_soft_cap, impl.sinks = 30, torch.ones(LAYER_HEADS)
    kind = VllmAttentionLayer(_layer(impl, sliding_window=128)).kind
    assert kind.sinks is impl.sinks
    wanted = replace(plain, window=128, softcap=30.0)
    assert asdict(replace(kind, sinks=None)) == asdict(wanted)


def test_the_cache_is_found_where_older_versions_keep_it() -> None:
    cache = torch.zeros(1)
    assert VllmAttentionLayer(SimpleNamespace(kv_cache=cache)).cache() is cache
    assert VllmAttentionLayer(SimpleNamespace(kv_cache=[cache])).cache() is cache


def _call(layer: Any, *, meta: object = True) -> torch.Tensor:
    query = torch.arange(float(ROWS * LAYER_HEADS * SIZE)).view(ROWS, LAYER_HEADS, SIZE)
    result: torch.Tensor = layer.impl.forward(layer, query, None, None, None, meta)
    return result


def test_a_call_shows_its_queries_and_gives_what_it_gave() -> None:
    layer, switch, seen = _layer(), Switch(), []
    plain = _call(layer)
    VllmAttentionLayer(layer).tap(lambda query, lse: seen.append((query, lse)), switch)
    assert torch.equal(_call(layer), plain)
    ((query, lse),) = seen
    assert torch.equal(query, plain - 1)
    assert lse is None
    assert switch.hooks == ["attention"]


def test_nothing_is_shown_while_off_or_without_a_cache_in_use() -> None:
    layer, switch, seen = _layer(), Switch(on=False), []
    undo = VllmAttentionLayer(layer).tap(lambda query, _: seen.append(query), switch)
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
    # Nothing of vLLM is loaded for a module that is there already.
    for name in itertools.accumulate(FLASH_ATTENTION.split("."), "{}.{}".format):
        found = module if name == FLASH_ATTENTION else ModuleType(name)
        monkeypatch.setitem(sys.modules, name, found)
    return module


def test_the_kernels_log_sum_exp_is_caught_where_it_is_wanted(flash: Any) -> None:
    assert offer_lse()
    layer, switch, seen = _layer(), Switch(), []
    query = torch.randn(ROWS, LAYER_HEADS, generator=torch.Generator().manual_seed(0))
    layer.impl.during = lambda: flash.flash_attn_varlen_func(query)
    VllmAttentionLayer(layer).tap(lambda _, lse: seen.append(lse), switch)
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
    VllmAttentionLayer(layer).tap(lambda *_: None, Switch())
    layer.impl.during = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        _call(layer)
    flash.flash_attn_varlen_func(torch.ones(1, 1))
    assert not flash.calls[-1].get("return_softmax_lse")


def test_a_vllm_without_that_kernel_offers_nothing(flash: Any) -> None:
    del flash.flash_attn_varlen_func
    assert not offer_lse()


K, PAGE, SINKS, TABLE = 3, 4, (0, 1), torch.tensor([[5, 0, 3]])
CASE = MassCase(positions=(9,), prompts=(6,), depths=K, sink_slots=SINKS)
KEYS, QUERIES = CASE.tensors()[0][0].permute(2, 0, 1), CASE.tensors()[1][0]
VALUES = torch.randn(KEYS.shape, generator=torch.Generator().manual_seed(1))
RIGHT = CASE.expected()[0][0].mean(1).float()
"""Masses [K, 5] of the chain, in the plain way."""


def cache(*, newer: bool) -> torch.Tensor:
    """Keys and values on pages 5, 0 and 3, in the layout since vLLM 0.27 or the one before."""
    old = torch.full((6, 2, PAGE, *KEYS.shape[1:]), torch.nan)
    for index, whole in enumerate((KEYS, VALUES)):
        for at, page in enumerate(TABLE[0]):
            part = whole[at * PAGE : (at + 1) * PAGE]
            old[page, index, : len(part)] = part
    if not newer:
        return old
    return torch.cat((old[:, 0], old[:, 1]), -1).transpose(1, 2).contiguous()


class Backend:
    scale = CASE.kind.scale

    def __init__(self) -> None:
        values = VALUES.repeat_interleave(CASE.heads // CASE.kv_heads, 1)
        weights = [CASE.weights(0, depth)[:, :-1].float() for depth in range(1, K + 1)]
        self._results = iter(torch.einsum("khs,shd->khd", torch.stack(weights), values)[:, None])

    def forward(self, *_: Any) -> torch.Tensor:
        return next(self._results)


def judged(
    model: Any,
    depth: Callable[[Any], object],
    figures: dict[str, torch.Tensor],
    served: Sequence[int] = (1, 2, 3),
    *,
    layers: dict[str, Any] | None = None,
    of_other_run: bool = False,
    then: Callable[[], object] = lambda: None,
) -> WitnessResult:
    """Watch a chain of the tokens 1, 2, 3 whose depths `depth` runs, and judge the figures of one
    that was served. `then` happens between the two if the chain is of another run."""
    kind, layers = DrafterKind(name="own", methods=(), fed=False), layers or {}
    drafter: Any = SimpleNamespace(model=model, kind=kind, k=K, compiled=True)
    holder = SimpleNamespace(model=model)
    witness = StartWitness(drafter, layers, holder, of_other_run=of_other_run)
    at: Any = SimpleNamespace(
        rows=torch.tensor([0]),
        position=torch.tensor(CASE.positions),
        block_tables=dict.fromkeys(layers, TABLE),
        prompt_tokens=list(CASE.prompts),
    )
    witness.choose(DraftStep(("a",), bytes(1), K), at)
    witness.watch()
    for _ in range(K):
        depth(holder.model)
    if of_other_run:
        witness.drafted(torch.tensor([[1, 2, 3]]))
        then()
    witness.end()
    layout = Layout(depths=K, layers=len(layers), aux=0)
    values = torch.full((1, layout.width), torch.nan)
    for name, found in figures.items():
        first = layout.column(name)
        values[0, first : first + found.numel()] = found.flatten()
    return witness.judge(values, layout, {}, SINKS, torch.tensor([list(served)]))


def verdict_of(
    kv_cache: torch.Tensor, masses: torch.Tensor, *, drafted_again: bool = False
) -> WitnessResult:
    """`drafted_again`: another chain writes the last slot before the watched one is judged."""
    backend = SimpleNamespace(get_name=lambda: "FLASH_ATTN")
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_size": CASE.size}
    module: Any = SimpleNamespace(impl=Backend(), attn_backend=backend, kv_cache=kv_cache, **sizes)
    queries = iter(QUERIES[:, None])

    def model() -> torch.Tensor:
        module.impl.forward(module, next(queries), None, None, kv_cache, "metadata")
        return torch.ones(1, 2)

    return judged(
        model,
        lambda watched: watched(),
        {"masses": masses},
        layers={"layer": VllmAttentionLayer(module)},
        of_other_run=drafted_again,
        then=lambda: kv_cache.__setitem__(TABLE[0, -1], 9.0),
    )


@pytest.mark.parametrize("newer", [True, False])
def test_pages_give_what_the_layer_gave_out(newer: bool) -> None:
    pages, right = cache(newer=newer), RIGHT
    assert verdict_of(pages, right).fault is None
    wrong = verdict_of(pages, right + 0.01)
    assert wrong.states_agree and wrong.fault == "a mass of layer layer is off by 0.010"
    other = verdict_of(pages * 1.1, right)
    assert other.fault is not None and "gives out something else" in other.fault


@pytest.mark.parametrize("newer", [True, False])
def test_a_chain_is_judged_by_the_keys_of_its_own_run(newer: bool) -> None:
    """vLLM's V2 runner drafts once more for the witness. The served chain takes the same slots, and
    in a step that is no traffic other requests do, too."""
    verdict = verdict_of(cache(newer=newer), RIGHT, drafted_again=True)
    assert (verdict.fault, verdict.unsure) == (None, None)


LOGITS = [torch.tensor([[0.0, float(depth)]]) for depth in range(K)]


class Model:
    def __init__(self) -> None:
        self._logits = iter(LOGITS)

    def __call__(self) -> torch.Tensor:
        return torch.ones(1, 2)

    def compute_logits(self, _: torch.Tensor) -> torch.Tensor:
        return next(self._logits)


@pytest.mark.parametrize(
    ("off", "served", "of_other_run", "agrees"),
    [
        ([0.0, 0.0, 0.0], [1, 2, 3], False, True),
        ([0.0, 0.01, 0.0], [1, 2, 3], False, False),
        ([0.0, 0.04, 0.0], [1, 2, 3], True, True),
        ([0.0, 0.3, 0.0], [1, 2, 3], True, False),
        ([0.0, 0.3, 0.3], [9, 2, 3], True, True),
        ([0.3, 0.3, 0.3], [9, 2, 3], True, False),
        ([0.0, 0.3, 0.3], [1, 9, 3], True, False),
    ],
    ids=["same", "off", "rounded", "wrong", "other chain", "wrong before", "wrong until"],
)
def test_depths_are_compared_until_the_tokens_differ(
    off: list[float], served: list[int], of_other_run: bool, agrees: bool
) -> None:
    """A chain whose top-1 is `off` by so much."""
    top1 = torch.cat(LOGITS).softmax(-1).amax(-1) + torch.tensor(off)
    run = lambda model: model.compute_logits(model())  # noqa: E731
    verdict = judged(Model(), run, {"top1": top1}, served, of_other_run=of_other_run)
    assert (verdict.fault is None) is agrees, verdict.fault
