"""Compares chains that were not served with the tokens that the target produces afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from driftscope.trace.format.records import ShadowRow
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.step_view import DraftStep
from driftscope_probes.shadow.host_copy import HostCopy

Tokens = npt.NDArray[np.int64]
FOLLOWED_STEPS = 2
"""Draft steps per depth for which a chain waits for the target's tokens. Each step of a request
gives it a token; the rest allows for steps in which the request is not scheduled."""


class ShadowStep(NamedTuple):
    """One draft step, as the serving thread hands it to the writer's thread."""

    step: DraftStep
    verified: HostCopy
    """Copies of the fields of `VerifiedStep`."""
    number: int
    time_s: float
    chosen: npt.NDArray[np.bool_] | None
    """[B]: which requests are recorded; None: all."""
    drafted: HostCopy | None
    """Copies of the served tokens [B, K] and of each chain's of `interventions`; None if no chain
    was drafted under one."""


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """The chains of one request in one round, until the target has produced their places."""

    number: int
    time_s: float
    request: str
    position: int
    served: Tokens
    """[K]"""
    chains: Mapping[str, Tokens]
    """Tokens [K] by intervention."""
    target: list[int] = field(default_factory=list)
    """The target's tokens at the places of the chain, as far as they are known."""
    steps: int = 0
    """Draft steps seen since."""

    @property
    def k(self) -> int:
        return len(self.served)

    @property
    def is_over(self) -> bool:
        """Whether the chain waits no longer."""
        return len(self.target) == self.k or self.steps >= FOLLOWED_STEPS * self.k

    def learn(self, known: Mapping[int, int]) -> None:
        """Take the target's tokens by position as far as they continue what is known."""
        while len(self.target) < self.k:
            place = self.position + 2 + len(self.target)
            if place not in known:
                return
            self.target.append(known[place])

    def rows(self, *, keep_ids: bool) -> Iterable[ShadowRow]:
        """Yield a row for each intervention."""
        for intervention, chain in self.chains.items():
            yield ShadowRow(
                step=self.number,
                time_s=self.time_s,
                request=self.request,
                position=self.position,
                intervention=intervention,
                k=self.k,
                known=len(self.target),
                agreed=agreed_prefix(chain, self.target),
                served_agreed=agreed_prefix(self.served, self.target),
                token_ids=chain.tolist() if keep_ids else None,
            )


class AgreementTracker:
    """Holds chains on the writer's thread until they can be compared.

    A chain that the target's tokens have not reached in time, because its request ended or was
    interrupted, is compared with those that are known.
    """

    def __init__(
        self, interventions: tuple[str, ...], writer: TraceWriter, *, keep_ids: bool
    ) -> None:
        self._interventions, self._writer, self._keep_ids = interventions, writer, keep_ids
        self._waiting: list[_Waiting] = []
        self.failed = False
        """Whether an error has ended the comparison for good."""

    def rows(self, steps: list[ShadowStep]) -> list[ShadowRow]:
        """Return the rows of chains that are over after these steps, which are in order."""
        found: list[ShadowRow] = []
        try:
            for step in steps if not self.failed else ():
                found += self._after(step)
        except Exception as error:  # the border: the shadow ends, the recording goes on
            self.failed = True
            self._waiting.clear()
            self._writer.count_error("shadow_rows", error)
        return found

    def rest(self, _: object = None) -> list[ShadowRow]:
        """Return the rows of chains that still wait when the recording ends."""
        waiting, self._waiting = self._waiting, []
        return [row for each in waiting for row in each.rows(keep_ids=self._keep_ids)]

    def _after(self, step: ShadowStep) -> list[ShadowRow]:
        starts, rows, positions, tokens, newest = step.verified.take()
        known = {}
        for at, request in enumerate(step.step.requests):
            if not step.step.prefilling[at]:
                here = slice(int(starts[at]), int(rows[at]) + 1)
                known[request] = dict(
                    zip(positions[here].tolist(), tokens[here].tolist(), strict=True)
                ) | {int(positions[rows[at]]) + 1: int(newest[at])}
        for each in self._waiting:
            each.steps += 1
            each.learn(known.get(each.request, {}))
        over = [each for each in self._waiting if each.is_over]
        self._waiting = [each for each in self._waiting if not each.is_over]
        self._begin(step, positions[rows])
        return [row for each in over for row in each.rows(keep_ids=self._keep_ids)]

    def _begin(self, step: ShadowStep, position: Tokens) -> None:
        """Wait for the target's tokens if chains were drafted in this step."""
        if step.drafted is None:
            return
        served, *chains = step.drafted.take()
        for at, request in enumerate(step.step.requests):
            if step.step.prefilling[at] or (step.chosen is not None and not step.chosen[at]):
                continue
            mine = [chain[at] for chain in chains]
            self._waiting.append(
                _Waiting(
                    number=step.number,
                    time_s=step.time_s,
                    request=request,
                    position=int(position[at]),
                    served=served[at],
                    chains=dict(zip(self._interventions, mine, strict=True)),
                )
            )


def agreed_prefix(chain: Tokens, target: list[int]) -> int:
    """Return how many leading tokens of `chain` [K] equal those of `target` [at most K]."""
    same = chain[: len(target)] == np.asarray(target, np.int64)
    return int(np.cumprod(same).sum())
