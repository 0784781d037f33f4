"""The main loop of `driftscope watch`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live

from driftscope.boundary import strict_json
from driftscope.cli.screens.watch_screen import WIDTH, screen
from driftscope.telemetry.collect.tally import Snapshot
from driftscope.telemetry.watch.engine_view import View, view
from driftscope.telemetry.watch.followed_engine import Followed, follow


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command."""

    interval_s: float
    window_s: float
    once: bool
    as_json: bool


def run(target: str, options: Options) -> None:
    """Show `target` until its run ends or the user stops; raises DriftscopeError."""
    looks = _looks(follow(target), options)
    with contextlib.suppress(KeyboardInterrupt):
        if options.as_json:
            for shown, _, over in looks:
                figures = {**dataclasses.asdict(shown), "over": over}
                sys.stdout.write(strict_json.dumps(figures, sort_keys=True) + "\n")
                sys.stdout.flush()
            return
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=WIDTH)
        _show(console, target, looks, live=console.is_terminal and not options.once)


Look = tuple[View, str, bool]
"""Figures on the screen, the stretch of time that they cover, and whether the run is over."""


def _show(console: Console, target: str, looks: Iterator[Look], *, live: bool) -> None:
    if not live:
        for shown, span, over in looks:
            console.print(screen(target, shown, span=span, state=_state(over)))
        return
    with Live(console=console, auto_refresh=False, screen=False) as display:
        for shown, span, over in looks:
            display.update(screen(target, shown, span=span, state=_state(over)), refresh=True)


def _state(over: bool) -> str:
    return "closed" if over else "recording"


def _looks(followed: Followed, options: Options) -> Iterator[Look]:
    """Yield a view per interval; if the run is over, or `once` is set, yield one view of everything
    since its start."""
    past: deque[tuple[float, Snapshot]] = deque()
    while True:
        snapshot, now = followed.look(), time.monotonic()
        if followed.over or options.once or not options.window_s:
            yield view(snapshot), "since the start", followed.over
            if followed.over or options.once:
                return
        else:
            while past and now - past[0][0] > options.window_s:
                past.popleft()
            before_s, before = past[0] if past else (now, {})
            past.append((now, snapshot))
            words = f"last {now - before_s:.0f} s" if before else "since the start"
            yield view(snapshot, before), words, False
        time.sleep(options.interval_s)
