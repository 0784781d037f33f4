"""One examined item of `driftscope doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One examined item. `ok` is None for a plain fact."""

    topic: str
    ok: bool | None
    detail: str
    hint: str | None = None
    """Advice if the item is not ok."""
