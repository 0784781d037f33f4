"""Whether the process that wrote a status file still runs on this machine."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_PID = re.compile(r"-(\d+)(?:\.\d+)?$")
"""End of a source's name: the process's number, and a count if several had the same number."""
_START_FIELD = 19
"""Index of the start time among the fields of /proc/PID/stat after the name in brackets."""
_TOLERANCE_S = 2.0
"""Inaccuracy, in seconds, of a start time that is counted in clock ticks since the boot."""


def alive(source: str, written_s: float) -> bool:
    """Return whether the process of `source`, such as "worker0-4711", runs on this machine.

    A process that began after `written_s`, a Unix time at which the source wrote, has only got the
    same number.
    """
    match = _PID.search(source)
    if match is None:
        return False
    began_s = _began_s(int(match[1]))
    return began_s is not None and began_s <= written_s + _TOLERANCE_S


def _began_s(pid: int) -> float | None:
    """Return the Unix time at which a process began; None if there is none of this number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(fields.rpartition(")")[2].split()[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return None
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot_s + ticks / os.sysconf("SC_CLK_TCK")
