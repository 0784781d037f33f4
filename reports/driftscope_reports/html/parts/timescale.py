"""Time axes: seconds, minutes or hours, whichever reads best."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((3600.0, "hours"), (60.0, "minutes"))
_FEW = 3
"""Of a unit, from which it is used."""


def unit_of(lasted_s: float) -> tuple[float, str]:
    """Seconds in the unit of an axis so long, and its name."""
    for seconds, name in _UNITS:
        if lasted_s >= _FEW * seconds:
            return seconds, name
    return 1.0, "seconds"


def clock(time_s: float) -> str:
    """A Unix time as time of day: short enough for an axis."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%S UTC")


def moment(time_s: float) -> str:
    """A Unix time as date and time of day."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
