"""The workload label that a request of vLLM carries."""

from __future__ import annotations

from typing import Any

from driftscope.boundary.bounds import MAX_LABEL_CHARS

LABEL = "driftscope_label"
"""Key of a request's workload label in vLLM's SamplingParams.extra_args (vllm_xargs over HTTP)."""


def label_of(sampling: Any) -> str | None:
    """The label in a request's vLLM SamplingParams, if it has any: its first MAX_LABEL_CHARS
    characters. Whoever may send a request chooses it, and it is kept with every row."""
    label = (getattr(sampling, "extra_args", None) or {}).get(LABEL)
    return None if label is None else str(label)[:MAX_LABEL_CHARS]
