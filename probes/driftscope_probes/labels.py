"""Workload labels: who gave a request which, and whose requests are recorded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.boundary.bounds import MAX_LABEL_CHARS

LABEL = "driftscope_label"
"""Key of a request's workload label in vLLM's SamplingParams.extra_args (vllm_xargs over HTTP)."""
REMEMBERED_LABELS = 65_536
"""Requests of which the latest labels are remembered; far more than ever run at once."""


def label_of(sampling: Any) -> str | None:
    """The label in a request's vLLM SamplingParams, if it has any: its first MAX_LABEL_CHARS
    characters. Whoever may send a request chooses it, and it is kept with every row."""
    label = (getattr(sampling, "extra_args", None) or {}).get(LABEL)
    return None if label is None else str(label)[:MAX_LABEL_CHARS]


class Selection:
    """Whose chains are recorded: those of requests with one of `labels`, or everybody's.

    =====================  ====================================================================
    `learn(requests)`      new requests have come, as vLLM schedules them
    `chosen(ids)`          [B] bool: who of a step is recorded; None: all
    `selects(label)`       whether a request with this label, or None, is recorded
    `labels = (...)`       change at run time; (): everybody
    =====================  ====================================================================
    """

    def __init__(self, labels: Iterable[str] = ()) -> None:
        self.labels = tuple(labels)
        self._known: OrderedDict[str, str] = OrderedDict()

    def learn(self, requests: Iterable[Any]) -> None:
        """Remember the labels of vLLM's NewRequestData, also of those not selected at present."""
        for request in requests:
            label = label_of(request.sampling_params)
            if label is not None:
                self._known[request.req_id] = label
                if len(self._known) > REMEMBERED_LABELS:
                    self._known.popitem(last=False)

    def chosen(self, ids: Sequence[str]) -> npt.NDArray[np.bool_] | None:
        """Who of the requests `ids` is recorded; None, at no cost, without a selection."""
        labels = self.labels
        if not labels:
            return None
        known, wanted = self._known.get, frozenset(labels)
        return np.array([known(id_) in wanted for id_ in ids], np.bool_)

    def selects(self, label: str | None) -> bool:
        """Whether a request with `label` is recorded."""
        labels = self.labels
        return not labels or label in labels
