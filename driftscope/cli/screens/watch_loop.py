"""The main loop of `driftscope watch`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.live import Live

from driftscope.cli.screens.watch_screen import CLOSED, NOT_RECORDING, RECORDING, WIDTH, screen
from driftscope.json_report.operation import watch_to_line
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
    followed = follow(target)
    views = _views(followed, options)
    with contextlib.suppress(KeyboardInterrupt):
        if options.as_json:
            for shown, _, over in views:
                figures = {**dataclasses.asdict(shown), "over": over}
                sys.stdout.write(watch_to_line(figures))
                sys.stdout.flush()
            return
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=WIDTH)

        def show(look: Look) -> RenderableType:
            shown, span, over = look
            return screen(
                target, shown, span=span, state=_state(shown, over), budget=followed.budget
            )

        _show(console, show, views, live=console.is_terminal and not options.once)


Look = tuple[View, str, bool]
"""Figures on the screen, the stretch of time that they cover, and whether the run is over."""
Show = Callable[[Look], RenderableType]


def _show(console: Console, show: Show, views: Iterator[Look], *, live: bool) -> None:
    if not live:
        for look in views:
            console.print(show(look))
        return
    with Live(console=console, auto_refresh=False, screen=False) as display:
        for look in views:
            display.update(show(look), refresh=True)


def _state(shown: View, over: bool) -> str:
    return CLOSED if over else NOT_RECORDING if shown.down else RECORDING


def _views(followed: Followed, options: Options) -> Iterator[Look]:
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
