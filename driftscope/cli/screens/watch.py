"""Why `driftscope watch` shows no chains, and what to type."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from driftscope.boundary.http_peer import public
from driftscope.boundary.json_document import WATCH, line
from driftscope.boundary.text import output_console
from driftscope.boundary.text import shown as printed
from driftscope.metrics.acceptance import UNCUT
from driftscope.telemetry.instruments import Snapshot
from driftscope.telemetry.prometheus import ENGINES, EnginePage
from driftscope.telemetry.watch import (
    CLASSES,
    Depth,
    Followed,
    View,
    follow,
    mostly_undrafted,
    nothing_accepted,
    outliers,
    view,
)
from driftscope.trace.manifest import WAS_SIMULATED
from driftscope.vocabulary import EngineName

EVERY = 4
"""Sampling interval that is proposed: chains within seconds, at a cost that a person accepts while
looking."""


def why_no_chains(
    target: str, shown: View, budget: float | None, *, over: bool = False
) -> tuple[str, ...]:
    """Return the reason and a command, a line each; () if there are chains or no rounds.

    `over`: the run has ended, so that only the next one can be changed.
    """
    if shown.down:
        return (f"nothing is recorded (reason: {shown.down}); the server's log says why",)
    if shown.chains or not shown.rounds:
        return ()
    run = _run(target)
    if shown.rate is None:
        return ("0 chains: only acceptance and timing of this drafter are recorded",)
    if not shown.rate and not over:
        return ("0 chains: recording is stopped; to resume it:", f"  driftscope probe start {run}")
    return (
        f"0 chains: {_budget_words(budget, shown.rate)}; to record more:",
        f"  --every {EVERY}, an option of driftscope serve"
        if over
        else f"  driftscope probe set {run} --every {EVERY}",
    )


def _budget_words(budget: float | None, rate: float) -> str:
    share = f"{100 * rate:.2g} % of steps"
    return f"{share} are recorded" if budget is None else f"{100 * budget:.3g} % pays for {share}"


def _run(target: str) -> str:
    """Return the run directory as a command needs it: the newest one of a scrape endpoint, which
    does not tell it."""
    if "://" in target:
        return "latest"
    near = os.path.relpath(target)
    return shlex.quote(min(target, near, key=len))


Replicas = Mapping[str, View]
"""Figures of each replica of a page by its name; empty if there is one."""
_WHOLE = ""
"""Name of all replicas together."""
WIDTH = 80
_BAR = 10
"""Width in columns of a full bar."""
_ABSENT = "-"
CLOSED, RECORDING, NOT_RECORDING = "closed", "recording", "not recording"
"""States of an engine, in words."""
DRIFT_CHAINS = 20
"""Least number of chains of which drift is shown: as many steps as the report asks for."""
BY_POSITION_UNKNOWN = (
    "The engine publishes no acceptance by position, and the acceptance length of its\n"
    "own last log interval in place of a window."
)
WHY_UNKNOWN = (
    "Why acceptance falls is not on this page: driftscope's probe in the server "
    "records attention and hidden state by depth (driftscope serve)."
)
_HEADS = {"sink": "sink", "prompt": "prompt", "generated": "verified", "self": "chain"}

_NOTES = (
    "chain: attention on the tokens of the chain itself",
    "whether speculation pays is not known, because there is no run without it:",
    "`driftscope pays http://localhost:8000` (the server's address) measures it",
)
"""Lines that explain words of the screen."""


def screen(
    target: str, shown: View, *, span: str, state: str, budget: float | None = None
) -> RenderableType:
    """Return the screen; `span` names the stretch of time and `state` the state of the engine, in
    words. `budget`: share of the time per token that the probe may use, if it is known."""
    name = public(target) if "://" in target else target
    plain = not shown.k and not shown.down
    served = "no speculation" if plain else f"K = {shown.k}"
    head = Text(f"{printed(name)}  {served}  {state}", style="bold", no_wrap=True)
    if plain:
        counted = Text(f"{span}: {shown.requests:,} requests", style="dim")
        figures = _grid(
            ("per token", _ms(shown.tpot_s)),
            ("first token", _ms(shown.ttft_s)),
            ("probe, all in", _percent(shown.all_in)),
            ("rows dropped", f"{shown.dropped:,}"),
        )
        return Group(head, counted, "", figures)
    counted = Text(
        f"{span}: {shown.rounds:,} rounds, {shown.requests:,} requests, "
        f"{shown.chains:,} chains recorded",
        style="dim",
    )
    lines = [WAS_SIMULATED] if shown.simulated else []
    lines += _cut(shown)
    dead = nothing_accepted(shown.length, shown.k, rounds=shown.rounds)
    if dead and not shown.simulated:
        lines += [f"{dead}; to find out why:", f"  driftscope analyze {_run(target)}"]
    lines += why_no_chains(target, shown, budget, over=state == CLOSED)
    why = [Text(printed(line), style="yellow") for line in lines]
    drift = [Text(drift_line(shown))] if shown.chains else []
    notes = Text("\n".join(_NOTES), style="dim")
    undrafted = ", ".join(f"{why} {_percent(share)}" for why, share in shown.undrafted.items())
    by = [Text(printed(f"undrafted by: {undrafted}"))] if undrafted else []
    tables: list[RenderableType] = ["", _figures(shown, budget), *by, "", _by_depth(shown), ""]
    return Group(head, counted, *why, *tables, *drift, notes)


_WHY_NOTHING = (
    "  driftscope inspect DRAFTER --target TARGET   # checks the drafter's files",
    "  driftscope findings nothing_accepted         # lists the causes",
)


def screen_of_engine(
    target: str, shown: View, *, span: str, state: str, page: EnginePage, replicas: Replicas
) -> RenderableType:
    """Return the screen of an engine that publishes acceptance, but nothing of the drafter."""
    k = f"K = {shown.k}  " if shown.k else ""
    name = public(target) if "://" in target else target
    head = Text(f"{printed(name)}  {k}{state}", style="bold", no_wrap=True)
    counts = {"rounds": shown.rounds, "requests": shown.requests}
    numbers = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)
    counted = Text(f"{span}: {numbers or 'no round is counted'}", style="dim")
    table = _grid(
        ("acceptance length", _number(shown.length)),
        ("per token", _ms(shown.tpot_s)),
        ("first token", _ms(shown.ttft_s)),
    )
    known = any(depth.accepted is not None for depth in shown.depths)
    unknown = f"No draft is counted by position {span}."
    if page.metrics.accepted_at is None:
        unknown = BY_POSITION_UNKNOWN
    by_depth = _by_depth(shown, ()) if known else Text(unknown, style="dim")
    lines = [Text(line, style="yellow") for line in _engine_notes(shown, page, replicas)]
    listed: list[RenderableType] = ["", _by_replica(replicas, shown)] if replicas else []
    notes = Text(WHY_UNKNOWN, style="dim")
    return Group(head, counted, *lines, "", table, *listed, "", by_depth, "", notes)


def _engine_notes(shown: View, page: EnginePage, replicas: Replicas) -> Iterator[str]:
    """Yield what the figures mean where nothing is accepted, or where a replica differs."""
    rounds = None if page.length else shown.rounds
    for cut in _cut(shown):
        yield f"{cut}; how many verified a depth beyond is not published"
    if dead := nothing_accepted(shown.length, shown.k, rounds=rounds, running=page.running):
        idle = rounds is None and page.running == 0
        yield from [dead] if idle else [f"{dead}; to find out why:", *_WHY_NOTHING]
    if few := mostly_undrafted(page):
        yield few
    lengths = {
        name: (own.length, None if page.length else own.rounds)
        for name, own in replicas.items()
        if own.length is not None
    }
    if named := outliers(lengths):
        yield from (f"{printed(name)} {words}" for name, words in named.items())
        engine = next(name for name, metrics in ENGINES.items() if metrics is page.metrics)
        yield "its drafter is its siblings': what to do, and an alert that names the replica:"
        yield f"  driftscope dashboards --engine {engine} -o monitoring"


def _cut(shown: View) -> list[str]:
    """Return in words that drafts are shorter than K; [] if they are not."""
    if shown.verified is None or shown.verified >= UNCUT * shown.k:
        return []
    return [f"a round verified {shown.verified:.1f} draft tokens of K = {shown.k}"]


def _by_replica(replicas: Replicas, whole: View) -> Table:
    """Return a line for each replica, the worst first, and last the sum."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in ("replica", "rounds", "length"):
        table.add_column(name, justify="left" if name == "replica" else "right", overflow="fold")
    table.add_column("", width=_BAR)
    most = max(own.length or 1.0 for own in (whole, *replicas.values()))
    for name, own in (*replicas.items(), (f"all {len(replicas)}", whole)):
        bar = "█" * round(_BAR * (own.length or 0.0) / most)
        rounds = f"{own.rounds:,}" if own.rounds else _ABSENT
        table.add_row(printed(name), rounds, _number(own.length), bar)
    return table


def drift_line(shown: View) -> str:
    """Return what the recorded chains show of drift, if they are enough."""
    if shown.chains < DRIFT_CHAINS:
        return f"drift: {shown.chains} of the {DRIFT_CHAINS} chains that a figure needs"
    parts = []
    if shown.growth is not None:
        parts.append(f"hidden state {shown.growth:.2f}x that at depth 1")
    sinks = [depth.masses["sink"] for depth in shown.depths]
    known = [mass for mass in sinks if mass is not None]
    if len(known) > 1:
        parts.append(f"sink {known[0]:.1%} at depth 1, {known[-1]:.1%} at {len(sinks)}")
    return "drift: " + ("; ".join(parts) or "does not apply to this drafter")


def _grid(*pairs: tuple[str, str]) -> Table:
    """Return names with their figures, three a line."""
    table = Table.grid(padding=(0, 2))
    for _ in pairs[:3]:
        table.add_column(style="dim")
        table.add_column(justify="right")
    for at in range(0, len(pairs), 3):
        table.add_row(*(cell for pair in pairs[at : at + 3] for cell in pair))
    return table


def _figures(shown: View, budget: float | None) -> Table:
    reasons = sum(shown.undrafted.values()) if shown.length is not None else None
    return _grid(
        ("acceptance length", _number(shown.length)),
        ("per token", _ms(shown.tpot_s)),
        ("rejected", _percent(shown.rejected)),
        ("draft, verify", f"{_ms(shown.draft_s).removesuffix(' ms')}, {_ms(shown.verify_s)}"),
        ("first token", _ms(shown.ttft_s)),
        ("undrafted", _percent(reasons)),
        ("rows dropped", f"{shown.dropped:,}"),
        ("sampling", _percent(shown.rate)),
        ("probe, all in", _percent(shown.all_in)),
        ("", ""),
        ("", ""),
        (
            "budgeted",
            _percent(shown.overhead) + ("" if budget is None else f" of {100 * budget:.3g}%"),
        ),
    )


def _by_depth(shown: View, classes: Sequence[str] = CLASSES) -> Table:
    """Return a line for each depth, with attention by `classes`, RMS and top-1 if there are any."""
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("depth", justify="right")
    table.add_column("accepted", justify="right")
    table.add_column("", width=_BAR)
    names = (*(_HEADS[name] for name in classes), *(("RMS", "top-1") if classes else ()))
    for name in names:
        table.add_column(name, justify="right")
    for number, depth in enumerate(shown.depths, 1):
        table.add_row(*_row(number, depth)[: 3 + len(names)])
    return table


def _row(number: int, depth: Depth) -> list[str]:
    return [
        str(number),
        _percent(depth.accepted),
        "█" * round(_BAR * min(max(depth.accepted or 0.0, 0.0), 1.0)),
        *(_percent(depth.masses[name]) for name in CLASSES),
        _number(depth.fed_rms),
        _number(depth.top1),
    ]


def _number(value: float | None, unit: str = "") -> str:
    return _ABSENT if value is None else f"{value:.2f}{unit}"


def _percent(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.1%}"


def _ms(seconds: float | None) -> str:
    return _ABSENT if seconds is None else f"{seconds * 1000:.1f} ms"


def run(
    targets: Sequence[str],
    *,
    interval_s: float,
    window_s: float,
    once: bool,
    as_json: bool,
    own: EngineName | None = None,
) -> None:
    """Show a run, or the pages of servers, until the run ends or the user stops; raises
    DriftscopeError. `own`: the engine whose own metrics are read; None: driftscope's, or an
    engine's where there are none."""
    followed = follow(targets, own)
    target = targets[0] if len(targets) == 1 else f"{len(targets)} servers"
    views = _views(followed, interval_s, window_s, once=once)
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            for shown, _, seconds, replicas in views:
                listed = [
                    {"replica": name, "rounds": own.rounds, "length": own.length}
                    for name, own in replicas.items()
                ]
                more = {"over": seconds, "engine": _title(followed), "replicas": listed}
                sys.stdout.write(line(WATCH, {**dataclasses.asdict(shown), **more}))
                sys.stdout.flush()
            return
        console = output_console(WIDTH)

        def show(look: Look) -> RenderableType:
            shown, span, seconds, replicas = look
            state = _state(shown, seconds, _title(followed))
            if page := followed.page:
                return screen_of_engine(
                    target, shown, span=span, state=state, page=page, replicas=replicas
                )
            return screen(target, shown, span=span, state=state, budget=followed.budget)

        if once or not console.is_terminal:
            for look in views:
                console.print(show(look))
            return
        with Live(console=console, auto_refresh=False, screen=False) as display:
            for look in views:
                display.update(show(look), refresh=True)


Look = tuple[View, str, bool, Replicas]
"""Figures on the screen, the stretch of time that they cover, whether the run is over, and the
figures of each replica of a page."""


def _state(shown: View, over: bool, title: str) -> str:
    if title:
        return f"{title}'s own metrics"
    return CLOSED if over else NOT_RECORDING if shown.down else RECORDING


def _title(followed: Followed) -> str:
    """Return the name of the engine whose own metrics are followed; "" if none is."""
    return followed.page.metrics.title if followed.page else ""


def _views_of_look(
    whole: Snapshot, page: EnginePage | None, before: Mapping[str, Snapshot]
) -> tuple[View, Replicas]:
    """Return the figures of a look and of each replica since the snapshots `before`, by name; a
    length that the engine publishes in place of counts is the one shown."""

    def shown(points: Snapshot, page: EnginePage | None, name: str) -> View:
        found = view(points, before.get(name))
        return found if page is None or page.length is None else replace(found, length=page.length)

    replicas = page.replicas if page else {}
    views = {name: shown(own.points, own, name) for name, own in replicas.items()}
    worst_first = sorted(views.items(), key=lambda pair: pair[1].length or math.inf)
    return shown(whole, page, _WHOLE), dict(worst_first)


def _views(followed: Followed, interval_s: float, window_s: float, *, once: bool) -> Iterator[Look]:
    """Yield a view per interval; if the run is over, or `once` is set, yield one view of everything
    since its start."""
    past: deque[tuple[float, dict[str, Snapshot]]] = deque()
    while True:
        whole, now = followed.look(), time.monotonic()
        page = followed.page
        if followed.has_ended or once or not window_s:
            found, replicas = _views_of_look(whole, page, {})
            yield found, "since the start", followed.has_ended, replicas
            if followed.has_ended or once:
                return
        else:
            while past and now - past[0][0] > window_s:
                past.popleft()
            before_s, before = past[0] if past else (now, {})
            parts = page.replicas if page else {}
            snapshots = {name: one.points for name, one in parts.items()}
            past.append((now, {_WHOLE: whole, **snapshots}))
            words = f"last {now - before_s:.0f} s" if before else "since the start"
            found, replicas = _views_of_look(whole, page, before)
            yield found, words, False, replicas
        time.sleep(interval_s)
