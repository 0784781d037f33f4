"""The list of kinds: what is found in it, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.tiny_drafter import AUX, watched

from driftscope.errors import ProbeError, UnknownDrafterError
from driftscope.trace.manifest import BY_DEPTH, BY_QUERY
from driftscope.trace.ranks import Place, place_of
from driftscope.trace.records import edges_of
from driftscope_probes.drafter import Drafter
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
from driftscope_probes.vllm.support import (
    KINDS,
    is_last_stage,
    kind_for,
    place_in,
    run_id_of,
)


def _speculation(method: str, **more: object) -> Any:
    return SimpleNamespace(method=method, **more)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_is_found_by_its_method(kind: support.Kind) -> None:
    for method in kind.methods:
        asked = _speculation(method, parallel_drafting=kind.parallel)
        assert kind_for(asked) is kind


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
        kind_for(speculation)
    assert "beside those of eagle3, eagle, dflash, dspark, mtp" in str(caught.value)
    assert "\n" not in str(caught.value)


def _config(method: str | None = "eagle3", **parallel: int) -> Any:
    speculation = method and SimpleNamespace(method=method)
    return SimpleNamespace(
        speculative_config=speculation,
        parallel_config=SimpleNamespace(**parallel),
        model_config=SimpleNamespace(runner_type="generate"),
    )


def _refused(check: Callable[[], object], *words: str) -> None:
    with pytest.raises(ProbeError) as caught:
        check()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def _attend(layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any) -> Any:
    """Take the arguments of vLLM's implementations."""


def _attend_sparsely(layer: Any, query: Any, kv_cache: Any, output: Any) -> Any:
    """Take the arguments of an implementation that finds its metadata itself."""


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
    config = _config(None)
    support.check_engine(config)
    config.model_config.runner_type = "pooling"
    _refused(lambda: support.check_engine(config), "generates no text", "unset DRIFTSCOPE_TRACE")


@pytest.mark.parametrize("names", ["tensor", "pipeline", "data", "tensor pipeline"])
def test_ranks_stages_and_replicas_are_supported(names: str) -> None:
    support.check_speculation(_config(**{f"{name}_parallel_size": 2 for name in names.split()}))


@pytest.mark.parametrize("name", ["decode", "prefill"])
def test_keys_that_are_spread_over_ranks_are_not_measured(name: str) -> None:
    config = _config(**{f"{name}_context_parallel_size": 2})
    support.check_engine(config)
    with pytest.raises(UnknownDrafterError, match="acceptance and timing are recorded"):
        support.check_speculation(config)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"alibi_slopes": torch.ones(4)}, "ALiBi slopes"),
        ({"is_sparse": True}, "sparse attention"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "an fp8 KV cache"),
        ({"kv_cache_dtype": "fp8"}, "an fp8 KV cache"),
    ],
)
def test_attention_that_would_be_measured_wrongly(part: dict[str, object], words: str) -> None:
    layers = {"plain": _layer(), "odd": SimpleNamespace(impl=_impl(**part))}
    assert str(support.unmeasured(layers)).startswith(f"layer odd has {words}")


@pytest.mark.parametrize(
    "layer",
    [
        SimpleNamespace(),  # Inkling's
        SimpleNamespace(impl=_impl(forward=_attend_sparsely)),  # MiniMax M3's
        SimpleNamespace(impl=_impl(), kv_lora_rank=512),  # Kimi K3's
    ],
)
def test_attention_that_shows_no_queries_is_not_measured(layer: Any) -> None:
    words = "layer own has attention of its own, SimpleNamespace"
    assert str(support.unmeasured({"plain": _layer(), "own": layer})).startswith(words)


def _layer(backend: str = "TRITON_ATTN") -> Any:
    named = SimpleNamespace(get_name=lambda: backend)
    return SimpleNamespace(impl=_impl(), head_size=8, get_attn_backend=lambda: named)


@pytest.mark.parametrize("window", [None, -1, (-1, -1)])
@pytest.mark.parametrize("cap", [None, 0, 0.0])
def test_plain_attention_however_vllm_spells_it(window: object, cap: object) -> None:
    layer = SimpleNamespace(impl=_impl(sliding_window=window, logits_soft_cap=cap))
    assert support.unmeasured({"a": layer}) is None


def test_attention_of_another_sort_than_a_decoders() -> None:
    layer = SimpleNamespace(impl=_impl(), attn_type="encoder_only")
    assert "attention that is not a decoder's" in str(support.unmeasured({"odd": layer}))


def test_parallel_drafting_is_a_kind_of_its_own() -> None:
    plain = kind_for(SimpleNamespace(method="eagle3"))
    parallel = kind_for(SimpleNamespace(method="eagle3", parallel_drafting=True))
    assert (plain.block, parallel.block) == (False, True)
    assert (plain.query_kind, parallel.query_kind) == (BY_DEPTH, BY_QUERY)


def _vllm_config(**changes: object) -> Any:
    def model_config(name: str, **raw: object) -> Any:
        hf = SimpleNamespace(architectures=["Some"], to_dict=lambda: {"n": name, **raw}, **raw)
        return SimpleNamespace(
            model=name, hf_config=hf, dtype=torch.bfloat16, enforce_eager=True, max_model_len=100
        )

    aux = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    return SimpleNamespace(
        model_config=model_config("tiny"),
        speculative_config=SimpleNamespace(
            method="eagle3",
            num_speculative_tokens=5,
            draft_model_config=model_config("tiny-eagle3", **(changes or {"eagle_config": aux})),
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        parallel_config=SimpleNamespace(),
        scheduler_config=SimpleNamespace(max_num_seqs=9),
        compilation_config=SimpleNamespace(mode=3, static_forward_context={}),
    )


@pytest.mark.parametrize("on", [False, True])
def test_the_manifest_says_what_was_loaded(make_drafter: Callable[..., Drafter], on: bool) -> None:
    drafter = replace(make_drafter(fc_norm=on, norm_output=on), backend="TRITON_ATTN")
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
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the forward that shows where the states are: these models have none."""
    monkeypatch.setattr(vllm_drafter, "_watched", watched)


@pytest.mark.usefixtures("_found")
def test_a_drafter_is_opened_by_its_layers_names(make_drafter: Callable[..., Drafter]) -> None:
    model, config = make_drafter().model, _vllm_config()
    layers = {name: _layer() for name in ("b", "a", "target")}
    config.compilation_config.static_forward_context = layers
    opened = open_drafter(model, {"b", "a"}, config, {})
    assert list(opened.layers) == ["a", "b"]
    assert (opened.device, opened.aux_states) == (torch.device("cpu"), 3)
    assert (opened.k, opened.max_requests, opened.max_slots) == (5, 9, 100)
    model.model.use_aux_hidden_state = False
    assert open_drafter(model, {"b", "a"}, config, {}).aux_states == 0


@pytest.mark.parametrize(
    ("others", "shared"),
    [("none", False), ("own memory", False), ("the drafter's", True), ("part of it", True)],
)
def test_layers_whose_memory_is_also_the_drafters(
    make_drafter: Callable[..., Drafter], others: str, shared: bool
) -> None:
    cache = torch.zeros(6, 2, 4, 8)
    attention = {"a": _layer(), "b": _layer()}
    for layer in attention.values():
        layer.kv_cache = cache
    kept = {
        "none": None,
        "own memory": torch.zeros(6, 2, 4, 8),
        "the drafter's": [cache],
        "part of it": cache[3:],
    }
    config = _vllm_config()
    context = {**attention, "target": SimpleNamespace(kv_cache=kept[others])}
    config.compilation_config.static_forward_context = context
    assert drafter_of(make_drafter().model, attention, config).shares_cache() == shared


@pytest.mark.usefixtures("_found")
@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (SimpleNamespace(impl=_impl(is_sparse=True)), "layer a has sparse attention"),
        (_layer("FLEX"), "the drafter's attention backend FLEX is not supported"),
    ],
)
def test_attention_that_is_not_measured_leaves_the_states(
    make_drafter: Callable[..., Drafter], odd: Any, words: str
) -> None:
    config = _vllm_config()
    config.compilation_config.static_forward_context = {"a": odd}
    opened = open_drafter(make_drafter().model, {"a"}, config, {})
    assert not opened.layers and not opened.kind.attention
    (note,) = opened.notes
    assert note.startswith(f"attention masses are not recorded: {words}")


@pytest.mark.usefixtures("_found")
def test_queries_that_stay_at_one_position_have_no_masses(
    make_drafter: Callable[..., Drafter],
) -> None:
    config = _vllm_config()
    config.compilation_config.static_forward_context = {"a": _layer()}
    opened = open_drafter(make_drafter().model, {"a"}, config, {}, unmeasured="they stay")
    assert opened.notes == ("attention masses are not recorded: they stay",)


def test_a_forward_that_fails_leaves_acceptance_and_timing(
    make_drafter: Callable[..., Drafter],
) -> None:
    config = _vllm_config()
    config.compilation_config.static_forward_context = {"a": _layer()}
    with pytest.raises(UnknownDrafterError, match="acceptance and timing are recorded"):
        open_drafter(make_drafter().model, {"a"}, config, {})


@pytest.mark.usefixtures("_found")
def test_layers_come_in_the_order_of_the_network(make_drafter: Callable[..., Drafter]) -> None:
    config, names = _vllm_config(), [f"model.layers.{i}.self_attn.attn" for i in (9, 10, 100)]
    config.compilation_config.static_forward_context = {name: _layer() for name in names}
    opened = open_drafter(make_drafter().model, set(names), config, {})
    assert list(opened.layers) == names


def test_captured_layers_are_counted_by_either_name(
    make_drafter: Callable[..., Drafter],
) -> None:
    model = make_drafter().model
    assert drafter_of(model, {}, _vllm_config()).aux_states == AUX
    model.model.num_aux_hidden_states = 5
    assert drafter_of(model, {}, _vllm_config()).aux_states == 5


def _placed(**parallel: int) -> Any:
    return SimpleNamespace(parallel_config=SimpleNamespace(**parallel), instance_id="17")


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
    assert (place_in(_placed(**parallel)), role_of(place)) == (place, role)
    assert place_of(f"{role}-4711") == place


def test_the_last_pipeline_stage_drafts() -> None:
    stages = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    drafts = [is_last_stage(_placed(**stages, rank=rank)) for rank in range(4)]
    assert drafts == [False, False, True, True]
    assert is_last_stage(_placed())


def test_a_run_is_of_one_start_of_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_ID, "abc")
    one, other = _placed(), _placed()
    other.instance_id = "18"
    assert run_id_of(one) == run_id_of(_placed()) == "abc-17"
    assert run_id_of(other) == "abc-18"
    one.instance_id = "17_dp1"
    assert run_id_of(one) == "abc-17", "Ray's name for a replica"
    monkeypatch.setenv(RUN_ID, "abd")
    assert run_id_of(other) == "abd-18"


def test_the_starts_of_a_deployment_are_one_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (RUN_ID, "DRIFTSCOPE_TRACE"):
        monkeypatch.setenv(name, "")
    fix_run_directory(Settings(trace=tmp_path, deployment="blue"))
    one, other = _placed(), _placed()
    other.instance_id = "18"
    assert run_id_of(one) == run_id_of(other) == "blue"
