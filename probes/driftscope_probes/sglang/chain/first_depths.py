"""The first depth of each request's next chain, kept from one round to the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch

from driftscope_probes.sglang.chain.forward_states import ForwardStates, joined


class _Place(NamedTuple):
    states: ForwardStates
    row: int


class FirstDepths:
    """States of depth 1 by request id.

    Every round replaces or drops those of its requests, so that a chain never begins with an older
    round's state. A request that is preempted is extended again before its next chain.
    """

    def __init__(self, most: int) -> None:
        """`most`: number of requests kept; the oldest give way."""
        self._most = most
        self._places: dict[str, _Place] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no request's first depth is known."""
        return not self._places

    def keep(self, requests: Sequence[str], states: ForwardStates) -> None:
        """Keep the states of a forward's requests, a row for each."""
        self.drop(requests)
        for row, request in enumerate(requests):
            self._places[request] = _Place(states, row)
        for request in list(self._places)[: -self._most]:
            del self._places[request]

    def drop(self, requests: Iterable[str]) -> None:
        """Forget requests: a forward that was not recorded has replaced their depth 1."""
        for request in requests:
            self._places.pop(request, None)

    def missing(self, requests: Iterable[str]) -> frozenset[str]:
        """Return the requests whose first depth is not known."""
        return frozenset(name for name in requests if name not in self._places)

    def take(self, requests: Sequence[str]) -> ForwardStates | None:
        """Return the states of a batch; None if none is known. The rows of requests whose first
        depth is not known belong to another request."""
        known = [place for name in requests if (place := self._places.get(name)) is not None]
        if not known:
            return None
        places = [self._places.get(name, known[0]) for name in requests]
        return joined([_rows(list(run)) for _, run in groupby(places, lambda p: id(p.states))])


def _rows(places: list[_Place]) -> ForwardStates:
    """Return rows of one forward."""
    states, rows = places[0].states, [place.row for place in places]
    device = states.queries[0].device
    return states.rows(torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True))
