"""Selects the requests that are recorded: those with a chosen workload label, or all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

REMEMBERED_LABELS = 65_536
"""Number of requests with remembered labels, the latest; far more than ever run at once."""


class RequestSelection:
    """Selects requests whose chains are recorded: those with one of `labels`, or all.

    =====================  ====================================================================
    `learn(labels)`        remember (request, label) of new requests that have a label
    `chosen(ids)`          [B] bool: which requests of a step are recorded; None: all
    `selects(label)`       whether a request with this label, or None, is recorded
    `labels = (...)`       change the selection at run time; (): all requests
    =====================  ====================================================================
    """

    def __init__(self, labels: Iterable[str] = ()) -> None:
        self.labels = tuple(labels)
        self._known: OrderedDict[str, str] = OrderedDict()

    def learn(self, labels: Iterable[tuple[str, str]]) -> None:
        """Remember the labels of new requests, even of those not selected at present."""
        for request, label in labels:
            self._known[request] = label
            if len(self._known) > REMEMBERED_LABELS:
                self._known.popitem(last=False)

    def chosen(self, ids: Sequence[str]) -> npt.NDArray[np.bool_] | None:
        """Return which of the requests `ids` are recorded; None without a selection."""
        labels = self.labels
        if not labels:
            return None
        known, wanted = self._known.get, frozenset(labels)
        return np.array([known(id_) in wanted for id_ in ids], np.bool_)

    def selects(self, label: str | None) -> bool:
        """Return whether a request with `label` is recorded."""
        labels = self.labels
        return not labels or label in labels
