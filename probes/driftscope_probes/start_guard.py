"""The border between the probe and its host while an engine starts.

An engine must start and serve whatever is wrong with its probe. Each part of the start runs inside
`StartGuard`; an exception ends that part only, and one line in the log states what is not recorded
and why. With DRIFTSCOPE_STRICT=1 the exception is raised instead, and stops the engine's start.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from driftscope.boundary.bounds import MAX_TEXT_CHARS
from driftscope.boundary.text import shown
from driftscope.errors import (
    DriftscopeError,
    ProbeError,
    SettingError,
    TelemetryError,
    TraceError,
    UnknownDrafterError,
)
from driftscope.trace import status
from driftscope.trace.status import StartFault, leave_fault
from driftscope.vocabulary import MANIFEST
from driftscope_probes.guard import hook_method
from driftscope_probes.settings import (
    CORES,
    DISABLE,
    NAMES,
    REQUEST_KEY,
    RUN_ID,
    STRICT,
    Settings,
    engine_cores,
    is_strict,
    settings_from,
    suggestion,
)

NOTHING = "nothing is recorded"
INTERNALS = "attention, hidden states and confidence are not recorded"
EXPORT = "metrics and spans are not exported"
"""Cost of a fault, in the words of the log."""
START_FAULT = "DRIFTSCOPE_START_FAULT"
"""Variable that tells the processes of one start that its plugin met a fault; not a setting. It has
the fault's kind and reason."""
_KINDS = (
    (SettingError, status.SETTING),
    (UnknownDrafterError, status.DRAFTER),
    (ProbeError, status.ENGINE),
    (TraceError, status.DIRECTORY),
    (TelemetryError, status.TELEMETRY),
    (ImportError, status.PACKAGE),
)
_LOG = logging.getLogger("driftscope")
_faults: list[StartFault] = []


class StartGuard:
    """Context of one part of the start; `fault` is set afterwards if the part failed.

    With DRIFTSCOPE_STRICT=1 the exception is raised instead, unless it is that of a drafter whose
    inside cannot be recorded. A fault is logged unless `quiet`, which is for a process whose
    sibling has logged the cause.
    """

    def __init__(self, cost: str = NOTHING, *, quiet: bool = False) -> None:
        self._cost, self._quiet = cost, quiet
        self.fault: StartFault | None = None

    def __enter__(self) -> StartGuard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        # A drafter whose inside is not known is recorded by acceptance and timing all the same.
        stops = is_strict(os.environ) and not isinstance(error, UnknownDrafterError)
        if not isinstance(error, Exception) or stops:
            return False
        self.fault = fault_of(error)
        if self._cost == NOTHING:
            _faults.append(self.fault)
        if not self._quiet:
            say(f"{self._cost}: {self.fault.reason}")
        return True


def fault_of(error: BaseException) -> StartFault:
    """Return an exception as a fault, whose reason is one line."""
    kind = next((kind for type_, kind in _KINDS if isinstance(error, type_)), status.OTHER)
    words = " ".join(str(error).split())
    if not isinstance(error, DriftscopeError):
        words = f"{type(error).__name__}: {words}"
    start = os.environ.get(RUN_ID, "")
    return StartFault(kind=kind, reason=shown(words)[:MAX_TEXT_CHARS], start=start)


def say(words: str) -> None:
    """Log one line that tells an operator what the probe does not do."""
    _LOG.error(
        "driftscope: %s. The engine serves without it; `driftscope doctor` shows the cause, and "
        "%s=1 stops the start instead",
        words.rstrip("."),
        STRICT,
    )


def warn(words: str) -> None:
    """Log a warning of one line."""
    _LOG.warning("driftscope: %s", shown(words))


def this_process_fault() -> StartFault | None:
    """Return the first fault because of which this process records nothing, if any."""
    return _faults[0] if _faults else None


def hand_down(fault: StartFault) -> None:
    """Tell the processes that this one starts that nothing is recorded; they log nothing."""
    os.environ[START_FAULT] = f"{fault.kind} {fault.reason}"


def handed_down() -> StartFault | None:
    """Return the fault that this process or its parent handed down, if any."""
    kind, _, reason = os.environ.get(START_FAULT, "").partition(" ")
    if not reason:
        return None
    kind = kind if kind in status.KINDS else status.OTHER
    return StartFault(kind=kind, reason=reason, start=os.environ.get(RUN_ID, ""))


def leave_note(run: Path, fault: StartFault, role: str, *, begun: bool = False) -> None:
    """Leave the fault in the run directory if possible: the engine's other processes read it, and
    `driftscope probe status` shows it. `begun`: the run in the directory is this engine's."""
    with contextlib.suppress(Exception):  # the log has it in any case
        if begun or not (run / MANIFEST).exists():
            leave_fault(run, replace(fault, source=f"{role}-{os.getpid()}"))


_PREFIX = "DRIFTSCOPE_"
SETTINGS = (*(f"{_PREFIX}{name.upper()}" for name in NAMES), f"{_PREFIX}CONFIG", DISABLE, STRICT)
"""Variables that a user sets for the probe."""
WARNED = f"{_PREFIX}UNKNOWN_WARNED"
"""Variable that tells the processes of one start that the warning is in the log; not a setting."""
_OTHERS = {RUN_ID, REQUEST_KEY, START_FAULT, WARNED, CORES, f"{_PREFIX}DEBUG", f"{_PREFIX}CACHE"}
_FOREIGN = re.compile(rf"{_PREFIX}(TEST_|(\w+_)?(SERVICE|PORT)(_|$))")
"""Variables of driftscope's own tests, and those that Kubernetes sets for a service whose name
begins with "driftscope"."""


def unknown_settings(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each variable that looks like a setting and is none, in order."""
    known = {*SETTINGS, *_OTHERS}
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in known and not _FOREIGN.match(name):
            yield f"{name} is no setting and has no effect{suggestion(name, SETTINGS, _PREFIX)}"


def settings_of_start() -> Settings | None:
    """Return the settings in force, or None if the probe is off; warn of names that are no setting,
    once for all processes of a start. Raises SettingError and TelemetryError."""
    if WARNED not in os.environ:
        for line in unknown_settings(os.environ):
            warn(line)
            os.environ[WARNED] = "1"
    return settings_from(os.environ)


class HookPoint(NamedTuple):
    """One place in an engine that the probe hooks or reads."""

    module: str
    name: str
    """Dotted name inside the module."""
    purpose: str
    around: str = ""
    """Our module and its function that makes the replacement, see `Around`; "": it is read only."""
    optional: bool = False
    """Whether the hook is needed for one kind of drafter or recording only, or is missing from some
    versions of the engine."""


def hook_points(
    module: str, ours: str, *rows: tuple[str, str, str], optional: bool = False
) -> tuple[HookPoint, ...]:
    """Return the hooks of an engine's module from rows of name, function of our module, purpose;
    "" as the function for what is only read."""
    return tuple(
        HookPoint(module, name, purpose, around and f"{ours}.{around}", optional or not around)
        for name, around, purpose in rows
    )


def install_when_imported(
    hooks: Iterable[HookPoint],
    engine: str,
    *,
    doctor: str = "driftscope doctor",
    failed: Callable[[Any, StartFault], None] = lambda _, __: None,
) -> None:
    """Install hooks when the engine imports their module, so that a process which never drafts pays
    nothing. One that cannot be installed turns off this process and those that it starts; `failed`
    is then called with the module and the fault, as for every module that is imported later."""
    import wrapt

    engine_cores()
    hooks = [hook for hook in hooks if hook.around]
    for name in dict.fromkeys(hook.module for hook in hooks):
        install = functools.partial(_install, hooks, engine, doctor, failed)
        wrapt.register_post_import_hook(install, name)


def _install(
    hooks: Iterable[HookPoint],
    engine: str,
    doctor: str,
    failed: Callable[[Any, StartFault], None],
    module: Any,
) -> None:
    fault = handed_down()
    if fault is None:
        guard = StartGuard()
        with guard:
            try:
                install_hooks(hooks, module)
            except AttributeError as error:
                raise ProbeError(
                    f"{module.__name__} of this {engine} is organised differently from the "
                    f"versions that driftscope knows ({error}); run `{doctor}`, or set {DISABLE}=1"
                ) from error
        fault = guard.fault
        if fault is None:
            return
        hand_down(fault)
    failed(module, fault)


def install_hooks(hooks: Iterable[HookPoint], module: Any) -> None:
    """Install the hooks of an engine's module. Raises AttributeError if one that is not optional
    has no place there."""
    for hook in hooks:
        if hook.module == module.__name__ and hook.around:
            ours, _, name = hook.around.rpartition(".")
            around = getattr(importlib.import_module(ours), name)
            with contextlib.suppress(*[AttributeError] * hook.optional):
                hook_method(module, hook.name, around)
