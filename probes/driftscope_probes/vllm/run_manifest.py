"""Builds a run's manifest from a vLLM engine."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from driftscope.inspect.weights_digest import weights_digest
from driftscope.trace.format.distance_bins import edges_of
from driftscope.trace.format.manifest import Manifest, Model
from driftscope.version import __version__
from driftscope.vocabulary import SINK_SOUGHT, Strategy
from driftscope_probes.meter import Meter
from driftscope_probes.recorder import IDENTIFIERS_OFF, SINKS_SOUGHT, distance_every
from driftscope_probes.settings import EAGER, Settings
from driftscope_probes.start_guard import warn
from driftscope_probes.vllm.configuration.place import place_in, run_id_of
from driftscope_probes.vllm.configuration.sampling_check import WRONG_TOKENS, loses_temperature
from driftscope_probes.vllm.loaded_drafter import VllmDrafter

_NORM_FLAGS = ("fc_norm", "norm_output", "norm_before_fc", "norm_before_residual")


def manifest_of(drafter: VllmDrafter, runner: str, settings: Settings, meter: Meter) -> Manifest:
    """Return the manifest of a recorded drafter, whose masses are measured by `meter`; `runner` is
    "v1" or "v2"."""
    speculation = drafter.config.speculative_config
    every = distance_every(meter, settings)
    return _manifest(
        drafter.config,
        runner,
        settings,
        drafter=_model(drafter.config, speculation.draft_model_config),
        norm_flags={flag: _flag(drafter.model, flag) for flag in _NORM_FLAGS},
        drafter_layers=len(drafter.attention),
        attention_backend=drafter.backend,
        attention_strategy=meter.strategy,
        per_head=settings.per_head,
        distance_every=every,
        distance_edges=edges_of(drafter.k) if every else (),
        query_kind=drafter.kind.query_kind,
        notes=(SINKS_SOUGHT,) if settings.sink_source == SINK_SOUGHT and drafter.attention else (),
    )


def manifest_of_lookup(runner: str, settings: Settings, config: Any) -> Manifest:
    """Return the manifest of a run in which only acceptance and timing are recorded."""
    speculation = config.speculative_config
    drafter = Model(name=speculation.method, architecture="", config_digest="", dtype="")
    if _has_own_model(speculation, config.model_config):
        drafter = _model(config, speculation.draft_model_config)
    return _manifest(
        config,
        runner,
        settings,
        drafter=drafter,
        norm_flags={},
        drafter_layers=0,
        attention_backend="",
        attention_strategy=Strategy.NONE,
    )


def _has_own_model(speculation: Any, target: Any) -> bool:
    """Return whether a model drafts: vLLM gives a lookup the target's configuration. The modules of
    method "mtp" are in the target's checkpoint."""
    draft = getattr(speculation, "draft_model_config", None)
    if draft is None:
        return False
    return bool(speculation.method == "mtp" or getattr(draft, "model", None) != target.model)


def _manifest(
    config: Any, runner: str, settings: Settings, *, notes: tuple[str, ...] = (), **of_drafter: Any
) -> Manifest:
    import vllm

    speculation, parallel = config.speculative_config, config.parallel_config
    return Manifest(
        run_id=run_id_of(config),
        created_s=time.time(),
        driftscope_version=__version__,
        engine="vllm",
        engine_version=str(vllm.__version__).partition("+")[0],
        runner=runner,
        mode=_mode(config),
        recording="sampled eager" if settings.recording == EAGER else settings.recording,
        method=speculation.method,
        k=speculation.num_speculative_tokens,
        target=_model(config, config.model_config),
        kv_cache_dtype=str(config.cache_config.cache_dtype),
        rank=place_in(config).rank,
        tensor_parallel=getattr(parallel, "tensor_parallel_size", 1),
        data_parallel=getattr(parallel, "data_parallel_size", 1),
        pipeline_parallel=getattr(parallel, "pipeline_parallel_size", 1),
        every=settings.every or 1,
        budget=None if settings.every else settings.budget,
        sink_tokens=len(settings.sink_slots),
        sink_slots=settings.sink_slots,
        sink_source=settings.sink_source,
        samples_wrongly=_samples_wrongly(runner),
        notes=notes if settings.identifiers else (IDENTIFIERS_OFF, *notes),
        **of_drafter,
    )


def _samples_wrongly(runner: str) -> bool:
    """Return whether vLLM's V1 runner verifies at wrong temperatures, and log it."""
    wrong = runner == "v1" and loses_temperature()
    if wrong:
        warn(WRONG_TOKENS)
    return wrong


def _mode(config: Any) -> str:
    compilation = config.compilation_config
    if config.model_config.enforce_eager or int(getattr(compilation, "mode", 0) or 0) == 0:
        return "eager"
    return "compiled"


def _model(config: Any, model_config: Any) -> Model:
    hf_config = model_config.hf_config
    raw = json.dumps(hf_config.to_dict(), sort_keys=True, default=str)
    return Model(
        name=str(model_config.model),
        architecture=",".join(getattr(hf_config, "architectures", None) or ()),
        config_digest=hashlib.sha256(raw.encode()).hexdigest()[:16],
        dtype=str(model_config.dtype).removeprefix("torch."),
        weights_digest=_weights_digest(config, model_config),
    )


def _weights_digest(config: Any, model_config: Any) -> str | None:
    """Return the digest; None for random weights, which come from no file."""
    if getattr(getattr(config, "load_config", None), "load_format", None) == "dummy":
        return None
    return weights_digest(str(model_config.model), getattr(model_config, "revision", None))


def _flag(model: Any, flag: str) -> bool:
    """Return a norm flag of the loaded drafter, which may differ from the flag in its config."""
    value = getattr(getattr(model, "model", None), flag, None)
    if value is None:
        value = getattr(model.config, flag, False)
    return value is not None and value is not False
