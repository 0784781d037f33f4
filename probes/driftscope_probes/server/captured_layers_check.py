"""Captured target layers in `driftscope doctor`: this vLLM's default, and the layers of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from driftscope.errors import TraceError
from driftscope.trace.format.manifest import (
    AUX_FROM_CONFIG,
    AUX_FROM_ENGINE,
    Manifest,
    read_manifest,
)

EXAMPLE_LAYERS = 32
"""Number of target layers for which the default is shown: that of an 8B Llama."""
SOURCES = {
    AUX_FROM_CONFIG: "named in the drafter's config",
    AUX_FROM_ENGINE: "the engine's default: the drafter's config names none that the engine reads",
    None: "not recorded how they were chosen",
}


def of_this_vllm() -> str:
    """Return how the installed vLLM chooses the layers, with its default as an example."""
    default = ", ".join(map(str, default_layers(EXAMPLE_LAYERS))) or "a default"
    return (
        "read from the loaded target and written into the manifest; if a drafter's config names "
        f"none, this vLLM captures {default} of a target with {EXAMPLE_LAYERS} layers; `driftscope "
        "doctor --run RUN` shows what a recorded engine captured"
    )


def default_layers(target_layers: int) -> tuple[int, ...]:
    """Return the installed vLLM's default for a target of that many layers; () if it has none."""
    try:
        from vllm.model_executor.models.interfaces import SupportsEagle3

        target = SimpleNamespace(model=SimpleNamespace(layers=range(target_layers)))
        return tuple(SupportsEagle3.get_eagle3_default_aux_hidden_state_layers(target))
    except (ImportError, AttributeError, TypeError):
        return ()


def of_run(run: Path) -> tuple[Manifest | None, str]:
    """Return a run's manifest and its captured layers in words, or None and the error."""
    try:
        manifest = read_manifest(run)
    except TraceError as error:
        return None, str(error)
    if not manifest.aux_layers:
        return manifest, "none, or recorded by a driftscope version that did not note them"
    layers = ", ".join(map(str, manifest.aux_layers))
    chosen = SOURCES.get(manifest.aux_layers_source, f"{manifest.aux_layers_source}")
    return manifest, f"{layers} ({chosen})"
