"""The list of kinds: what is found in it, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_drafter import AUX, tiny_drafter, watched

from driftscope.errors import ProbeError, UnknownDrafterError
from driftscope.trace.manifest import BY_DEPTH, BY_QUERY
from driftscope.trace.ranks import Place, place_of
from driftscope.trace.records import edges_of
from driftscope_probes.process_writer import role_of
from driftscope_probes.settings import (
    DEFAULT_DISTANCE_EVERY,
    RUN_ID,
    Settings,
    fix_run_directory,
    settings_from,
)
from driftscope_probes.vllm import drafter as vllm_drafter
from driftscope_probes.vllm import support
from driftscope_probes.vllm.attach import manifest_of
from driftscope_probes.vllm.drafter import drafter_of, open_drafter


def _speculation(method: str, **more: object) -> Any:
    return SimpleNamespace(method=method, **more)


@pytest.mark.parametrize("kind", support.KINDS, ids=lambda kind: kind.name)
def test_each_kind_is_found_by_its_method(kind: support.Kind) -> None:
    """Parallel drafting is a kind of its own."""
    for method in kind.methods:
        assert support.kind_for(_speculation(method, parallel_drafting=kind.parallel)) is kind
    if "eagle3" in kind.methods:
        query_kind = BY_QUERY if kind.parallel else BY_DEPTH
        assert (kind.block, kind.query_kind) == (kind.parallel, query_kind)


@pytest.mark.parametrize(
    ("speculation", "words"),
    [
        (_speculation("eagle", parallel_drafting=True), "method eagle with parallel drafting"),
        (_speculation("draft_models"), "method draft_models"),
        (_speculation("draft_model", parallel_drafting=True), "method draft_model with parallel"),
    ],
)
def test_a_method_that_is_not_in_the_list_is_refused(speculation: Any, words: str) -> None:
    with pytest.raises(ProbeError, match=words) as caught:
        support.kind_for(speculation)
    assert "beside those of eagle3, eagle, dflash, dspark, mtp" in str(caught.value)
    assert "\n" not in str(caught.value)


def _config(**parallel: int) -> Any:
    return SimpleNamespace(
        speculative_config=_speculation("eagle3"),
        parallel_config=SimpleNamespace(**parallel),
        model_config=SimpleNamespace(runner_type="generate"),
    )


def _attend(layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any) -> Any:
    """Take the arguments of vLLM's implementations."""


def _impl(**changes: object) -> Any:
    """Return attributes as vLLM's CPU implementation sets them for plain attention."""
    plain = {
        "forward": _attend,
        "sliding_window": (-1, -1),
        "sinks": None,
        "logits_soft_cap": 0,
        "alibi_slopes": None,
        "kv_cache_dtype": "auto",
    }
    return SimpleNamespace(**{**plain, **changes})


def test_an_engine_that_generates_no_text() -> None:
    config = _config()
    support.check_engine(config)
    config.model_config.runner_type = "pooling"
    with pytest.raises(ProbeError, match=r"generates no text.*unset DRIFTSCOPE_TRACE"):
        support.check_engine(config)


@pytest.mark.parametrize("names", ["tensor", "pipeline", "data", "tensor pipeline"])
def test_ranks_stages_and_replicas_are_supported(names: str) -> None:
    support.check_speculation(_config(**{f"{name}_parallel_size": 2 for name in names.split()}))


@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_keys_that_are_spread_over_ranks_are_not_measured(name: str) -> None:
    config = _config(**{f"{name}_context_parallel_size": 2})
    support.check_engine(config)
    with pytest.raises(UnknownDrafterError, match="acceptance and timing are recorded"):
        support.check_speculation(config)


def _attend_sparsely(layer: Any, query: Any, kv_cache: Any, output: Any) -> Any:
    """Take the arguments of an implementation that finds its metadata itself."""


OWN = "attention of its own, SimpleNamespace"


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"impl": _impl(alibi_slopes=torch.ones(4))}, "ALiBi slopes"),
        ({"impl": _impl(is_sparse=True)}, "sparse attention"),
        ({"impl": _impl(kv_cache_dtype="fp8_e4m3")}, "an fp8 KV cache"),
        ({"impl": _impl(kv_cache_dtype="fp8")}, "an fp8 KV cache"),
        ({"impl": _impl(), "attn_type": "encoder_only"}, "attention that is not a decoder's"),
        ({}, OWN),  # Inkling's
        ({"impl": _impl(forward=_attend_sparsely)}, OWN),  # MiniMax M3's
        ({"impl": _impl(), "kv_lora_rank": 512}, OWN),  # Kimi K3's
        *(
            ({"impl": _impl(sliding_window=window, logits_soft_cap=cap)}, None)
            for window in (None, -1, (-1, -1))
            for cap in (None, 0, 0.0)
        ),
    ],
)
def test_attention_that_would_be_measured_wrongly_is_not_measured(
    layer: dict[str, Any], words: str | None
) -> None:
    """Plain attention is, however vLLM spells it."""
    found = support.unmeasured({"plain": _layer(), "odd": SimpleNamespace(**layer)})
    assert found is None if words is None else str(found).startswith(f"layer odd has {words}")


def _layer(backend: str = "TRITON_ATTN") -> Any:
    named = SimpleNamespace(get_name=lambda: backend)
    return SimpleNamespace(impl=_impl(), head_size=8, get_attn_backend=lambda: named)


def _vllm_config(layers: dict[str, Any] | None = None) -> Any:
    def model_config(name: str, **raw: object) -> Any:
        hf = SimpleNamespace(architectures=["Some"], to_dict=lambda: {"n": name, **raw}, **raw)
        return SimpleNamespace(
            model=name, hf_config=hf, dtype=torch.bfloat16, enforce_eager=True, max_model_len=100
        )

    aux = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    return SimpleNamespace(
        model_config=model_config("tiny"),
        speculative_config=_speculation(
            "eagle3",
            num_speculative_tokens=5,
            draft_model_config=model_config("tiny-eagle3", eagle_config=aux),
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(),
        scheduler_config=SimpleNamespace(max_num_seqs=9),
        compilation_config=SimpleNamespace(mode=3, static_forward_context=layers or {}),
    )


@pytest.mark.parametrize("on", [False, True])
def test_the_manifest_says_what_was_loaded(on: bool) -> None:
    drafter = replace(tiny_drafter(fc_norm=on, norm_output=on), backend="TRITON_ATTN")
    settings = settings_from(
        {"DRIFTSCOPE_TRACE": "/a", "DRIFTSCOPE_EVERY": "4", "DRIFTSCOPE_SINK_TOKENS": "2"}
    )
    assert isinstance(settings, Settings)
    meter: Any = SimpleNamespace(strategy="lse", sorts_by_distance=True)
    found = manifest_of(_vllm_config(), "v2", settings, drafter, meter)
    assert (found.engine, found.runner) == ("vllm", "v2")
    assert (found.mode, found.method) == ("eager", "eagle3")
    assert (found.k, found.every, found.sink_tokens, found.sink_source) == (5, 4, 2, "given")
    assert (found.target.name, found.drafter.name) == ("tiny", "tiny-eagle3")
    assert found.target.config_digest != found.drafter.config_digest
    assert found.target.dtype == "bfloat16"
    assert found.norm_flags == {
        "fc_norm": on,
        "norm_output": on,
        "norm_before_fc": False,
        "norm_before_residual": True,
    }
    assert (found.attention_backend, found.drafter_layers) == ("TRITON_ATTN", 2)
    assert (found.attention_strategy, found.distance_every) == ("lse", DEFAULT_DISTANCE_EVERY)
    assert found.distance_edges == edges_of(drafter.k)
    meter.sorts_by_distance = False
    found = manifest_of(_vllm_config(), "v2", settings, drafter, meter)
    assert (found.distance_every, found.distance_edges) == (0, ())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the tiny drafter with these layers of attention in it, or those that are named; what
    finds the states is replaced, because these models have no forward."""
    monkeypatch.setattr(vllm_drafter, "_watched", watched)

    def opened(layers: dict[str, Any], names: Any = None, model: Any = None, **more: Any) -> Any:
        model = model or tiny_drafter().model
        return open_drafter(model, set(names or layers), _vllm_config(layers), {}, **more)

    return opened


def test_a_drafter_is_opened_by_its_layers_names(opened: Callable[..., Any]) -> None:
    """Layers come in the order of the network."""
    model, layers = tiny_drafter().model, {name: _layer() for name in ("b", "a", "target")}
    found = opened(layers, {"b", "a"}, model)
    assert list(found.layers) == ["a", "b"]
    assert (found.device, found.aux_states) == (torch.device("cpu"), AUX)
    assert (found.k, found.max_requests, found.max_slots) == (5, 9, 100)
    model.model.num_aux_hidden_states = 5
    assert opened(layers, {"b", "a"}, model).aux_states == 5, "by either name"
    model.model.use_aux_hidden_state = False
    assert opened(layers, {"b", "a"}, model).aux_states == 0
    names = [f"model.layers.{i}.self_attn.attn" for i in (9, 10, 100)]
    assert list(opened({name: _layer() for name in names}).layers) == names


CACHE = torch.zeros(6, 2, 4, 8)


@pytest.mark.parametrize(
    ("others", "shared"),
    [(None, False), (torch.zeros(6, 2, 4, 8), False), ([CACHE], True), (CACHE[3:], True)],
    ids=["none", "own memory", "the drafter's", "part of it"],
)
def test_layers_whose_memory_is_also_the_drafters(others: Any, shared: bool) -> None:
    attention = {"a": _layer(), "b": _layer()}
    for layer in attention.values():
        layer.kv_cache = CACHE
    config = _vllm_config({**attention, "target": SimpleNamespace(kv_cache=others)})
    assert drafter_of(tiny_drafter().model, attention, config).shares_cache() == shared


@pytest.mark.parametrize(
    ("odd", "more", "words"),
    [
        (SimpleNamespace(impl=_impl(is_sparse=True)), {}, "layer a has sparse attention"),
        (_layer("FLEX"), {}, "the drafter's attention backend FLEX is not supported"),
        (_layer(), {"unmeasured": "they stay"}, "they stay"),  # queries stay at one position
    ],
)
def test_attention_that_is_not_measured_leaves_the_states(
    opened: Callable[..., Any], odd: Any, more: dict[str, str], words: str
) -> None:
    found = opened({"a": odd}, **more)
    assert not found.layers and not found.kind.attention
    (note,) = found.notes
    assert note.startswith(f"attention masses are not recorded: {words}")


def test_a_forward_that_fails_leaves_acceptance_and_timing() -> None:
    with pytest.raises(UnknownDrafterError, match="acceptance and timing are recorded"):
        open_drafter(tiny_drafter().model, {"a"}, _vllm_config({"a": _layer()}), {})


def _placed(instance_id: str = "17", **parallel: int) -> Any:
    return SimpleNamespace(parallel_config=SimpleNamespace(**parallel), instance_id=instance_id)


@pytest.mark.parametrize(
    ("parallel", "place", "role"),
    [
        ({}, Place(), "worker0"),
        ({"tensor_parallel_size": 2, "rank": 1}, Place(rank=1), "worker1"),
        ({"data_parallel_index": 0, "rank": 0}, Place(), "worker0"),
        ({"data_parallel_index": 3}, Place(replica=3), "worker0.dp3"),
        (
            {"tensor_parallel_size": 4, "rank": 2, "data_parallel_index": 1},
            Place(rank=2, replica=1),
            "worker2.dp1",
        ),
        ({"pipeline_parallel_size": 2, "rank": 1}, Place(), "worker0"),
    ],
)
def test_a_worker_is_called_what_the_reader_takes_it_for(
    parallel: dict[str, int], place: Place, role: str
) -> None:
    assert (support.place_in(_placed(**parallel)), role_of(place)) == (place, role)
    assert place_of(f"{role}-4711") == place


def test_the_last_pipeline_stage_drafts() -> None:
    stages = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    drafts = [support.is_last_stage(_placed(**stages, rank=rank)) for rank in range(4)]
    assert drafts == [False, False, True, True]
    assert support.is_last_stage(_placed())


def test_a_run_is_of_one_start_of_one_engine_or_of_a_deployment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(RUN_ID, "abc")
    assert support.run_id_of(_placed("17")) == "abc-17"
    assert support.run_id_of(_placed("18")) == "abc-18"
    assert support.run_id_of(_placed("17_dp1")) == "abc-17", "Ray's name for a replica"
    for name in (RUN_ID, "DRIFTSCOPE_TRACE"):
        monkeypatch.setenv(name, "")
    fix_run_directory(Settings(trace=tmp_path, deployment="blue"))
    assert support.run_id_of(_placed("17")) == support.run_id_of(_placed("18")) == "blue"
