"""Facts read off an attention layer, and the hook that sees its queries and log-sum-exps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from driftscope_probes.vllm.drafter import (
    FLASH_ATTENTION,
    cache_of,
    catch_lse,
    kind_of,
    offer_lse,
    tap_attention,
)

ROWS, HEADS, SIZE = 5, 4, 8


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
    plain = {"num_heads": HEADS, "num_kv_heads": 2, "head_size": SIZE, "sliding_window": None}
    return SimpleNamespace(impl=impl or Impl(), **{**plain, **changes})


def test_plain_attention_is_read_off_its_layer() -> None:
    kind = kind_of(_layer())
    assert (kind.heads, kind.kv_heads, kind.head_size, kind.scale) == (HEADS, 2, SIZE, 0.125)
    assert (kind.window, kind.softcap, kind.sinks) == (None, 0.0, None)


def test_what_changes_the_softmax_is_read_off_too() -> None:
    impl = Impl()
    impl.logits_soft_cap, impl.sinks = 30, torch.ones(HEADS)  # type: ignore[attr-defined]
    kind = kind_of(_layer(impl, sliding_window=128))
    assert (kind.window, kind.softcap) == (128, 30.0)
    assert kind.sinks is impl.sinks  # type: ignore[attr-defined]


@pytest.mark.parametrize("window", [None, -1, 0, (-1, -1)])
def test_the_ways_to_say_that_there_is_no_window(window: object) -> None:
    assert kind_of(_layer(sliding_window=window)).window is None


def test_the_cache_is_found_where_older_versions_keep_it() -> None:
    cache = torch.zeros(1)
    assert cache_of(SimpleNamespace(kv_cache=cache)) is cache
    assert cache_of(SimpleNamespace(kv_cache=[cache])) is cache


def _call(layer: Any, *, meta: object = True) -> torch.Tensor:
    query = torch.arange(float(ROWS * HEADS * SIZE)).view(ROWS, HEADS, SIZE)
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
    query = torch.randn(ROWS, HEADS, generator=torch.Generator().manual_seed(0))
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
    query = torch.ones(ROWS, HEADS)
    with catch_lse() as caught:
        out, _ = flash.flash_attn_varlen_func(query, return_softmax_lse=True)
        assert torch.equal(flash.flash_attn_varlen_func(query, s_aux=query), query * 2)
    assert torch.equal(out, query * 2)
    assert caught == [], "with learned biases the sum is another one"


def test_the_offer_is_made_once(flash: Any) -> None:
    assert offer_lse()
    offered = flash.flash_attn_varlen_func
    assert offer_lse()
    assert flash.flash_attn_varlen_func is offered


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
