"""Checks of what would keep an engine in this environment from recording, for `driftscope doctor`.

Each check does what the start of the probe does, and leaves nothing behind.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from driftscope.errors import DriftscopeError
from driftscope.trace.write.run_directory import check_writable
from driftscope_probes.server.check import Check
from driftscope_probes.settings import DISABLE, Settings, is_disabled, settings_from
from driftscope_probes.start_guard import fault_of, unknown_settings

PACKAGES = ("numpy", "pyarrow", "wrapt")
"""Packages without which nothing is recorded."""


def start_checks() -> Iterator[Check]:
    """Yield the checks of settings, packages, run directory and exports."""
    yield from _packages()
    if is_disabled(os.environ):
        yield Check(topic="settings", ok=None, detail=f"off ({DISABLE} is set)")
        return
    for line in unknown_settings(os.environ):
        yield Check(topic="settings", ok=False, detail=line, hint="correct or remove it")
    try:
        settings = settings_from(os.environ)
    except DriftscopeError as error:
        yield Check(topic="settings", ok=False, detail=str(error), hint="correct the setting")
        return
    yield _in_words(settings)
    if settings is not None:
        yield from _places(settings)


def _packages() -> Iterator[Check]:
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken installation may raise anything
            yield Check(
                topic=name,
                ok=False,
                detail=f"cannot be imported: {fault_of(error).reason}",
                hint=f"pip install --force-reinstall {name}",
            )


def _in_words(settings: Settings | None) -> Check:
    if settings is None:
        return Check(topic="settings", ok=None, detail="off (DRIFTSCOPE_TRACE is not set)")
    governed = f"draft steps within {100 * settings.budget:g} % of the time per token"
    rate = f"every {settings.every}. draft step" if settings.every else governed
    return Check(topic="settings", ok=None, detail=f"recording {rate} to {settings.trace}")


def _places(settings: Settings) -> Iterator[Check]:
    path = str(settings.trace).replace("{time}", time.strftime("%Y%m%d-%H%M%S"))
    run = Path(path.replace("{pid}", str(os.getpid())))
    yield _checked("run directory", f"{run}: can be written", lambda: check_writable(run))
    if settings.telemetry is not None and settings.telemetry.prometheus is not None:
        host, port = settings.telemetry.prometheus
        yield _checked("Prometheus", f"{host}:{port} is free", lambda: _check_scrapes(host, port))


def _check_scrapes(host: str, port: int) -> None:
    importlib.import_module("prometheus_client")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()


def _checked(topic: str, good: str, check: Callable[[], None]) -> Check:
    try:
        check()
    except (DriftscopeError, OSError, ImportError) as error:
        hint = "an engine serves without what this keeps it from, or stops if DRIFTSCOPE_STRICT=1"
        return Check(topic=topic, ok=False, detail=fault_of(error).reason, hint=hint)
    return Check(topic=topic, ok=None, detail=good)
