"""One change of a drafter that may fix it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.inspect.trial.variant import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A change, and the drafter after it.

    `fields` are those of config.json that change; `weights` says that tensors change too, so that
    the repaired weights have to be written. `mistake` names what was wrong if the repair helps.
    """

    id: str
    change: str
    mistake: str
    variant: Variant
    fields: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = False
