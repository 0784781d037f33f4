"""Interventions that an engine cannot draft under are left out, with the reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from driftscope.trace.format.manifest import GREEDY, PROBABILISTIC
from driftscope.vocabulary import HIDE_CHAIN, LIVE_INTERVENTIONS, PIN_SIZE
from driftscope_probes.drafter.attention_kind import AttentionKind
from driftscope_probes.vllm.configuration.drafter_kinds import EAGLE3, KINDS
from driftscope_probes.vllm.configuration.live_interventions import ShadowEngine, live_interventions


def _config(connector: object = None, **sizes: int) -> Any:
    return SimpleNamespace(parallel_config=SimpleNamespace(**sizes), kv_transfer_config=connector)


def _layer(window: int | None = None) -> AttentionKind:
    return AttentionKind(
        heads=4, kv_heads=2, head_size=8, scale=1.0, window=window, softcap=0.0, sinks=None
    )


FITTING = ShadowEngine(
    offered=LIVE_INTERVENTIONS,
    runner="v1",
    draft_sampling=GREEDY,
    config=_config(tensor_parallel_size=1),
    kind=EAGLE3,
    backend="CPU_ATTN",
    layers=[_layer()],
)


def test_all_apply_to_a_fitting_engine() -> None:
    assert live_interventions(LIVE_INTERVENTIONS, FITTING) == (LIVE_INTERVENTIONS, ())
    assert live_interventions((HIDE_CHAIN,), FITTING).live == (HIDE_CHAIN,)
    assert live_interventions((), FITTING) == ((), ())


@pytest.mark.parametrize(
    ("changed", "live", "reason"),
    [
        ({"offered": (), "runner": "v2"}, (), "on the V2 runner"),
        ({"offered": (PIN_SIZE,)}, (PIN_SIZE,), "on the V1 runner"),
        ({"draft_sampling": PROBABILISTIC}, (), "at random"),
        ({"draft_sampling": None}, (), "at random"),
        ({"config": _config(tensor_parallel_size=2)}, (), "tensor_parallel_size"),
        ({"config": _config(data_parallel_size=2)}, (), "data_parallel_size"),
        ({"config": _config(connector=object())}, (), "KV connector"),
        ({"kind": KINDS[1]}, (), KINDS[1].name),
        ({"backend": "FLASHINFER"}, (PIN_SIZE,), "not FLASHINFER"),
        ({"layers": [_layer(), _layer(64)]}, (PIN_SIZE,), "sliding window"),
    ],
)
def test_the_reason_is_noted(changed: dict[str, Any], live: tuple[str, ...], reason: str) -> None:
    found = live_interventions(LIVE_INTERVENTIONS, FITTING._replace(**changed))
    assert found.live == live
    assert len(found.notes) == len(LIVE_INTERVENTIONS) - len(live)
    for note in found.notes:
        assert "not applicable, because" in note
        assert reason in note
