"""Closed and open loops, which decide when each planned request is sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from driftscope.trace.format.records import ClientRow
from driftscope.vocabulary import Ended
from driftscope.workloads.suites.plan import Shot, phases

GONE_AFTER = 16
"""Number of consecutive requests without a connection after which the server counts as gone; the
remaining requests are not sent."""

Fire = Callable[[Shot, float | None], Awaitable[ClientRow]]
"""Callable that sends a shot, given the Unix time at which it was due (None in a closed loop); it
records and returns the shot's row."""


class Load:
    """Fires every shot of a plan, phase after phase, until stopped or until the server is gone."""

    def __init__(self, fire: Fire) -> None:
        self._fire = fire
        self._unreached = 0
        self._before = 0
        """Number of shots started when the current series of unreached requests began."""
        self.fired: set[int] = set()
        """Orders of the shots that were started."""

    @property
    def gone(self) -> bool:
        """Whether the server can no longer be reached."""
        return self._unreached >= GONE_AFTER

    async def run(self, shots: Sequence[Shot]) -> None:
        """Fire all shots. On cancellation the running ones are cancelled and recorded."""
        for phase in phases(shots):
            async with asyncio.TaskGroup() as group:
                if phase[0].level.rate is None:
                    self._closed(group, phase)
                else:
                    await self._open(group, phase)

    def _closed(self, group: asyncio.TaskGroup, shots: Sequence[Shot]) -> None:
        waiting = iter(shots)
        for _ in range(min(shots[0].level.concurrency or 1, len(shots))):
            group.create_task(self._worker(waiting))

    async def _worker(self, waiting: Iterator[Shot]) -> None:
        for shot in waiting:
            if self.gone:
                return
            await self._one(shot, None)

    async def _open(self, group: asyncio.TaskGroup, shots: Sequence[Shot]) -> None:
        room = asyncio.Semaphore(shots[0].level.concurrency or len(shots))
        begun, begun_unix_s = time.perf_counter(), time.time()
        for shot in shots:
            due = shot.due_s or 0.0
            await asyncio.sleep(begun + due - time.perf_counter())
            await room.acquire()
            if self.gone:
                return
            task = group.create_task(self._one(shot, begun_unix_s + due))
            task.add_done_callback(lambda _: room.release())

    async def _one(self, shot: Shot, due_unix_s: float | None) -> None:
        number = len(self.fired)
        self.fired.add(shot.order)
        row = await self._fire(shot, due_unix_s)
        if row.ended == Ended.UNREACHED:
            self._before = self._before if self._unreached else len(self.fired)
            self._unreached += 1
        elif number >= self._before:  # earlier answers say nothing about the server now
            self._unreached = 0
