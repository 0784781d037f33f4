"""Finds DRIFTSCOPE_* variables that no part of driftscope reads: usually misspelt settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from driftscope_probes.base.settings import DISABLE, NAMES, REQUEST_KEY, RUN_ID, STRICT
from driftscope_probes.base.spelling import suggestion
from driftscope_probes.base.start_guard import START_FAULT

_PREFIX = "DRIFTSCOPE_"
SETTINGS = (*(f"{_PREFIX}{name.upper()}" for name in NAMES), f"{_PREFIX}CONFIG", DISABLE, STRICT)
"""Variables that a user sets for the probe."""
WARNED = f"{_PREFIX}UNKNOWN_WARNED"
"""Variable that tells the processes of one start that the warning is in the log; not a setting."""
_OTHERS = {RUN_ID, REQUEST_KEY, START_FAULT, WARNED, f"{_PREFIX}CORES", f"{_PREFIX}DEBUG"}
_FOREIGN = re.compile(rf"{_PREFIX}(TEST_|(\w+_)?(SERVICE|PORT)(_|$))")
"""Variables of driftscope's own tests, and those that Kubernetes sets for a service whose name
begins with "driftscope"."""


def unknown_settings(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each variable that looks like a setting and is none, in order."""
    known = {*SETTINGS, *_OTHERS}
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in known and not _FOREIGN.match(name):
            yield f"{name} is no setting and has no effect{suggestion(name, SETTINGS, _PREFIX)}"
