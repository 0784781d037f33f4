"""Builds a run's manifest from an SGLang engine.

Written against sglang.srt.server_args and sglang.srt.configs.model_config, 0.5.23.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from dataclasses import dataclass, replace
from typing import Any

from driftscope.parser_marks import unknown_parsers
from driftscope.trace.manifest import (
    AUX_FROM_CONFIG,
    AUX_FROM_ENGINE,
    GREEDY,
    PROBABILISTIC,
    SGLANG_RULE,
    SIMULATED,
    Manifest,
    Model,
    rule_of_sglang,
    weights_digest,
)
from driftscope.trace.ranks import Place
from driftscope.version import __version__
from driftscope.vocabulary import SINK_SOUGHT, Strategy
from driftscope_probes.drafter import Drafter, named_layers
from driftscope_probes.meter import Meter
from driftscope_probes.recorder import (
    IDENTIFIERS_OFF,
    SINKS_SOUGHT,
    masses_in_manifest,
    model_in_manifest,
    settings_in_manifest,
)
from driftscope_probes.settings import Settings, run_id_of
from driftscope_probes.sglang.scheduler import parsers_of

RUNNER = "eagle v2"
"""`Manifest.runner`: SGLang's EAGLEWorkerV2."""
EAGER_ROUNDS = (
    "recorded rounds were drafted without CUDA graphs; other rounds as the engine is configured"
)
"""Note in the manifest of a run on a GPU."""
_NORM_FLAGS = ("fc_norm", "norm_output", "norm_before_fc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those of its engine: a scheduler, which also drafts."""

    rank: int
    ranks: int
    """Number of tensor-parallel ranks of a replica."""
    replica: int
    replicas: int

    @property
    def place(self) -> Place:
        """Place of the process in the run."""
        return Place(rank=self.rank, replica=self.replica if self.replicas > 1 else None)


def ranks_of(arguments: Any) -> Ranks:
    """Return this process's ranks, as its ServerArgs and SGLang's own context say."""
    from sglang.srt.runtime_context import get_parallel

    parallel, replicas = get_parallel(), int(getattr(arguments, "dp_size", 1) or 1)
    return Ranks(
        rank=int(parallel.tp_rank),
        ranks=int(parallel.tp_size),
        replica=int(parallel.dp_rank or 0) if replicas > 1 else 0,
        replicas=replicas,
    )


def run_id(arguments: Any) -> str:
    """Return the run id, shared by an engine's processes: its one scheduler names it, or else the
    process that has started them all."""
    ranks = ranks_of(arguments)
    alone = ranks.ranks == ranks.replicas == 1
    return run_id_of(str(os.getpid() if alone else os.getppid()))


def manifest_of(
    worker: Any,
    settings: Settings,
    note: str = "",
    drafter: Drafter | None = None,
    meter: Meter | None = None,
) -> Manifest:
    """Return the manifest of a run, whose masses are measured by `meter`; without a recorded
    `drafter`, of acceptance and timing alone, or of timing if nothing drafts."""
    target, arguments = worker.target_worker.model_runner, worker.server_args
    draft, k = worker.draft_runner or target, int(worker.speculative_num_steps)
    method = str(arguments.speculative_algorithm).lower() if k else ""
    model = _model(draft.model_config, draft.model) if k else None
    if k and draft is target:
        model = Model(name=method, architecture="", config_digest="", dtype="")
    # A runner may have no backend yet.
    backend = getattr(draft, "attn_backend", None)
    without_graphs = str(worker.device) == "cpu" or getattr(arguments, "disable_cuda_graph", False)
    sampled = getattr(arguments, "speculative_use_rejection_sampling", False)
    ranks = ranks_of(arguments)
    inside: dict[str, Any] = {"drafter_layers": 0, "attention_strategy": Strategy.NONE}
    notes = list[str]() if settings.identifiers else [IDENTIFIERS_OFF]
    notes += map(str, unknown_parsers(*parsers_of(arguments))) if settings.regions else []
    if drafter is not None and meter is not None:
        captured, source = _captured(worker)
        inside = masses_in_manifest(drafter, settings, meter) | {
            "norm_flags": {flag: _flag(drafter.model, flag) for flag in _NORM_FLAGS},
            "aux_layers": captured,
            "aux_layers_source": source,
        }
        notes += [SINKS_SOUGHT] * (settings.sink_source == SINK_SOUGHT)
        notes += [EAGER_ROUNDS] * (drafter.device.type != "cpu")
    return Manifest(
        run_id=run_id(arguments),
        created_s=time.time(),
        driftscope_version=__version__,
        engine="sglang",
        engine_version=importlib.metadata.version("sglang").partition("+")[0],
        runner=RUNNER,
        mode="eager" if without_graphs else "full graphs",
        recording="sampled eager",
        method=method,
        k=k,
        target=_model(target.model_config, target.model),
        drafter=model,
        attention_backend=str(
            arguments.decode_attention_backend if backend is None else type(backend).__name__
        ),
        kv_cache_dtype=str(draft.kv_cache_dtype).removeprefix("torch."),
        verification=verification_of(arguments),
        rank=ranks.rank,
        tensor_parallel=ranks.ranks,
        data_parallel=ranks.replicas,
        draft_sampling=None if draft is target else PROBABILISTIC if sampled else GREEDY,
        **settings_in_manifest(settings),
        notes=(*notes, *filter(None, [note])),
        **{"norm_flags": {}, **inside},
    )


def verification_of(arguments: Any) -> str:
    """Return the rule by which SGLang verifies drafts; an environment variable replaces the target
    by a given acceptance length (sglang.srt.speculative.spec_utils)."""
    if float(os.environ.get("SGLANG_SIMULATE_ACC_LEN") or -1) > 0:
        return SIMULATED
    return rule_of_sglang({name: getattr(arguments, name, None) for name in SGLANG_RULE})


def _model(config: Any, model: Any) -> Model:
    path = str(config.model_path)
    found = model_in_manifest(path, type(model).__name__, config.dtype, config.hf_config)
    return replace(found, weights_digest=weights_digest(path, getattr(config, "revision", None)))


def _captured(worker: Any) -> tuple[tuple[int, ...], str | None]:
    """Return the captured target layers in the manifest's count, and their source.

    SGLang's target notes them in that count already: its models add 1 to a config's numbers, and
    capture the residual stream that enters layer i.
    """
    inner = worker.target_worker.model_runner.model
    layers = getattr(getattr(inner, "model", inner), "layers_to_capture", None)
    if not layers:
        return (), None
    named = named_layers(worker.draft_runner.model_config.hf_config)
    source = AUX_FROM_CONFIG if named else AUX_FROM_ENGINE
    return tuple(int(layer) for layer in layers), source


def _flag(model: Any, flag: str) -> bool:
    value = getattr(model.model, flag, None)
    return value is not None and value is not False
