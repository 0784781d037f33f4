"""Examines this machine for SGLang: installed packages, the plugin, and working hooks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator

from driftscope_probes.server.check import Check
from driftscope_probes.server.hook_checks import hook_checks
from driftscope_probes.server.start_checks import start_checks
from driftscope_probes.sglang import plugin
from driftscope_probes.sglang.plugin import TESTED

SGLANG = "SGLang"
PLUGIN_GROUP = "sglang.srt.plugins"
PACKAGES = ("driftscope-probe", "driftscope", "sglang", "torch", "transformers")
"""Distributions whose versions are shown."""


def examine_sglang() -> Iterator[Check]:
    """Yield every check in order. Imports torch and sglang if they are installed."""
    yield Check(topic="Python", ok=None, detail=sys.version.split()[0])
    for name in PACKAGES:
        yield Check(topic=name, ok=None, detail=_version(name) or "not installed")
    yield _plugin_check()
    yield from start_checks()
    if importlib.util.find_spec("sglang") is None:
        yield Check(
            topic=SGLANG,
            ok=False,
            detail="not importable: live recording is not possible",
            hint="pip install driftscope-probe in the environment of your SGLang",
        )
        return
    yield version_check(_version("sglang") or "of an unknown version")
    for seam, hooks in plugin.HOOKS.items():
        yield from hook_checks(seam, hooks, SGLANG)
    yield Check(topic="recorded", ok=None, detail=plugin.RECORDED)


def version_check(version: str) -> Check:
    """Check a version of SGLang: the probe refuses those that were not tested."""
    tested = version.partition("+")[0] in TESTED
    return Check(
        topic=SGLANG,
        ok=tested,
        detail=f"{version}, {'tested' if tested else 'not tested: nothing is recorded'}",
        hint=f"tested are {', '.join(TESTED)}",
    )


def _plugin_check() -> Check:
    entries = importlib.metadata.entry_points(group=PLUGIN_GROUP, name="driftscope")
    allowed = os.environ.get("SGLANG_PLUGINS")
    if not entries:
        return Check(
            topic="plugin",
            ok=False,
            detail=f"no {PLUGIN_GROUP} entry point",
            hint="pip install driftscope-probe in SGLang's environment",
        )
    if allowed and "driftscope" not in (name.strip() for name in allowed.split(",")):
        return Check(
            topic="plugin",
            ok=False,
            detail=f"SGLANG_PLUGINS={allowed} excludes it",
            hint="add driftscope to SGLANG_PLUGINS",
        )
    return Check(topic="plugin", ok=True, detail="SGLang will load it in every process")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
