"""Time axes in seconds, minutes or hours, whichever reads best."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((3600.0, "hours"), (60.0, "minutes"))
_FEW = 3
"""Smallest number of units from which a unit is used."""


def unit_of(lasted_s: float) -> tuple[float, str]:
    """Return the unit of an axis of this length: its seconds and its name."""
    for seconds, name in _UNITS:
        if lasted_s >= _FEW * seconds:
            return seconds, name
    return 1.0, "seconds"


def clock(time_s: float) -> str:
    """Return a Unix time as time of day, short enough for an axis."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S UTC")


def moment(time_s: float) -> str:
    """Return a Unix time as date and time of day."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
