"""Decides which interventions an engine can draft under, and says why others do not apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from driftscope.trace.format.manifest import GREEDY
from driftscope.vocabulary import HIDE_CHAIN
from driftscope_probes.drafter.attention_kind import AttentionKind
from driftscope_probes.drafter.drafter_kind import Kind
from driftscope_probes.recording.manifest_notes import shadow_note
from driftscope_probes.vllm.configuration.drafter_kinds import EAGLE3

HIDES_BY_LENGTH = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN")
"""Attention backends whose kernel sees as many slots as the sequence length on the device says. The
first one is tested; the others read the same field."""
_PARALLEL = ("tensor", "pipeline", "data")


class LiveInterventions(NamedTuple):
    """Interventions under which chains are drafted, and what to say about the others."""

    live: tuple[str, ...]
    notes: tuple[str, ...]
    """Notes for the manifest, one for each intervention that was wanted and does not apply."""


class ShadowEngine(NamedTuple):
    """The properties of an engine and its drafter that decide which interventions apply."""

    offered: tuple[str, ...]
    """Interventions that the runner's module can draft under."""
    runner: str
    draft_sampling: str | None
    config: Any
    """The engine's VllmConfig."""
    kind: Kind
    backend: str
    layers: Sequence[AttentionKind]


def live_interventions(wanted: tuple[str, ...], engine: ShadowEngine) -> LiveInterventions:
    """Return which of the `wanted` interventions apply."""
    reasons: Mapping[str, str | None] = {each: _reason(each, engine) for each in wanted}
    return LiveInterventions(
        live=tuple(each for each, reason in reasons.items() if reason is None),
        notes=tuple(
            shadow_note(each, reason) for each, reason in reasons.items() if reason is not None
        ),
    )


def _reason(intervention: str, engine: ShadowEngine) -> str | None:
    """Return why an intervention does not apply; None if it does."""
    if engine.kind is not EAGLE3:
        return f"it is defined for {EAGLE3.name} alone, and this drafter is {engine.kind.name}"
    if intervention not in engine.offered:
        return f"driftscope cannot draft under it on the {engine.runner.upper()} runner"
    if engine.draft_sampling != GREEDY:
        return "drafts are sampled at random, which a second chain would change"
    return _engine_reason(engine.config) or _attention_reason(intervention, engine)


def _engine_reason(config: Any) -> str | None:
    parallel = config.parallel_config
    for name in _PARALLEL:
        if int(getattr(parallel, f"{name}_parallel_size", 1)) > 1:
            return f"{name}_parallel_size > 1: all ranks would have to draft the same chains"
    if getattr(config, "kv_transfer_config", None) is not None:
        return "a KV connector is on, which may send what the chain writes into the cache"
    return None


def _attention_reason(intervention: str, engine: ShadowEngine) -> str | None:
    if intervention != HIDE_CHAIN:
        return None
    if engine.backend not in HIDES_BY_LENGTH:
        return f"it needs the attention backend {', '.join(HIDES_BY_LENGTH)}, not {engine.backend}"
    if any(layer.window for layer in engine.layers):
        return "the drafter has a sliding window, which would move with the hidden slots"
    return None
