"""Which requests are recorded: those with a chosen workload label, or all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

REMEMBERED_LABELS = 65_536
"""Requests of which the latest labels are remembered; far more than ever run at once."""


class RequestSelection:
    """Whose chains are recorded: those of requests with one of `labels`, or everybody's.

    =====================  ====================================================================
    `learn(labels)`        (request, label) of new requests that have one
    `chosen(ids)`          [B] bool: who of a step is recorded; None: all
    `selects(label)`       whether a request with this label, or None, is recorded
    `labels = (...)`       change at run time; (): everybody
    =====================  ====================================================================
    """

    def __init__(self, labels: Iterable[str] = ()) -> None:
        self.labels = tuple(labels)
        self._known: OrderedDict[str, str] = OrderedDict()

    def learn(self, labels: Iterable[tuple[str, str]]) -> None:
        """Remember the labels of new requests, also of those not selected at present."""
        for request, label in labels:
            self._known[request] = label
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
