"""A place in an engine that the probe hooks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One place in an engine that the probe hooks."""

    module: str
    name: str
    """Dotted name inside the module."""
    purpose: str
    optional: bool = False
    """Whether the hook is needed for one kind of drafter or recording only, or is missing from some
    versions of the engine."""
