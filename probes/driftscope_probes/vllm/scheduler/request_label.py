"""The workload label of a vLLM request."""

from __future__ import annotations

from typing import Any

from driftscope.boundary.bounds import MAX_LABEL_CHARS

LABEL = "driftscope_label"
"""Key of a request's workload label in vLLM's SamplingParams.extra_args (vllm_xargs over HTTP)."""


def label_of(sampling: Any) -> str | None:
    """Return the first MAX_LABEL_CHARS characters of the label in a request's vLLM SamplingParams,
    if there is one. Any client may choose the label, and it is stored with every row."""
    label = (getattr(sampling, "extra_args", None) or {}).get(LABEL)
    return None if label is None else str(label)[:MAX_LABEL_CHARS]
