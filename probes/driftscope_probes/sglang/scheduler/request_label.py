"""Names of an SGLang request: those that its client gives it, and those of SGLang's own."""

from __future__ import annotations

from typing import Any

from driftscope.boundary.bounds import MAX_LABEL_CHARS

LABEL = "driftscope_label"
"""Key of a request's workload label in SGLang's SamplingParams.custom_params."""
SESSION = "driftscope_session"
"""Key of a request's session, as LABEL."""
PAIR = "driftscope_pair"
"""Key of the question that a replay asks, as LABEL."""


_HEALTH_CHECK = "HEALTH_CHECK"
"""Beginning of the ids of the requests that SGLang's front end sends to see whether it is alive."""


def is_health_check(request: str) -> bool:
    """Return whether a request is SGLang's own: no row is written of it."""
    return str(request).startswith(_HEALTH_CHECK)


def label_of(sampling: Any) -> str | None:
    """Return the workload label in a request's SamplingParams, see `name_in`."""
    return name_in(sampling, LABEL)


def name_in(sampling: Any, key: str) -> str | None:
    """Return the first MAX_LABEL_CHARS characters of the name under `key`, if there is one. Any
    client may choose it, and it is stored with every row."""
    own = getattr(sampling, "custom_params", None)
    name = own.get(key) if isinstance(own, dict) else None
    return None if name is None else str(name)[:MAX_LABEL_CHARS]
