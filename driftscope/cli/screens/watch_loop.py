"""The main loop of `driftscope watch`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rich.console import Console, RenderableType
from rich.live import Live

from driftscope.boundary.text import output_console
from driftscope.cli.screens.watch_screen import (
    CLOSED,
    NOT_RECORDING,
    RECORDING,
    WIDTH,
    screen,
    screen_of_engine,
)
from driftscope.json_report.operation import watch_to_line
from driftscope.telemetry.instruments import Snapshot
from driftscope.telemetry.prometheus import EngineName
from driftscope.telemetry.watch import Followed, View, follow, view


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command."""

    interval_s: float
    window_s: float
    once: bool
    as_json: bool
    own: tuple[EngineName, ...] = ()
    """Engines whose own metrics are read; (): driftscope's, or an engine's where there are none."""


def run(target: str, options: Options) -> None:
    """Show `target` until its run ends or the user stops; raises DriftscopeError."""
    followed = follow(target, options.own)
    views = _views(followed, options)
    with contextlib.suppress(KeyboardInterrupt):
        if options.as_json:
            for shown, _, over in views:
                names = {"over": over, "engine": followed.title}
                figures = {**dataclasses.asdict(shown), **names}
                sys.stdout.write(watch_to_line(figures))
                sys.stdout.flush()
            return
        console = output_console(WIDTH)

        def show(look: Look) -> RenderableType:
            shown, span, over = look
            state = _state(shown, over, followed.title)
            if followed.title:
                return screen_of_engine(target, shown, span=span, state=state)
            return screen(target, shown, span=span, state=state, budget=followed.budget)

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


def _state(shown: View, over: bool, title: str) -> str:
    if title:
        return f"{title}'s own metrics"
    return CLOSED if over else NOT_RECORDING if shown.down else RECORDING


def _with(shown: View, length: float | None) -> View:
    """Return the view with the length that an engine publishes in place of counts."""
    return shown if length is None else replace(shown, length=length)


def _views(followed: Followed, options: Options) -> Iterator[Look]:
    """Yield a view per interval; if the run is over, or `once` is set, yield one view of everything
    since its start."""
    past: deque[tuple[float, Snapshot]] = deque()
    while True:
        snapshot, now = followed.look(), time.monotonic()
        given = followed.length
        if followed.over or options.once or not options.window_s:
            yield _with(view(snapshot), given), "since the start", followed.over
            if followed.over or options.once:
                return
        else:
            while past and now - past[0][0] > options.window_s:
                past.popleft()
            before_s, before = past[0] if past else (now, {})
            past.append((now, snapshot))
            words = f"last {now - before_s:.0f} s" if before else "since the start"
            yield _with(view(snapshot, before), given), words, False
        time.sleep(options.interval_s)
