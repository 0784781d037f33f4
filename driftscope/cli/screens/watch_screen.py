"""The screen of `driftscope watch`, which fits in 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from driftscope.boundary.http_peer import public
from driftscope.boundary.text import shown as printed
from driftscope.cli.screens.missing_chains import why_no_chains
from driftscope.telemetry.watch import CLASSES, Depth, View

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
    "Why acceptance falls is not on this page: driftscope's probe in the server records\n"
    "attention and hidden state by depth (driftscope serve)."
)
_HEADS = {"sink": "sink", "prompt": "prompt", "generated": "verified", "self": "chain"}

_NOTES = (
    "chain: attention on the tokens of the chain itself",
    "estimated speedup: if a round verifies in the time of a step without drafts;",
    "a run without speculation measures it (driftscope analyze RUN --baseline PLAIN)",
)
"""Lines that explain words of the screen."""


def screen(
    target: str, shown: View, *, span: str, state: str, budget: float | None = None
) -> RenderableType:
    """Return the screen; `span` names the stretch of time and `state` the state of the engine, in
    words. `budget`: share of the time per token that the probe may use, if it is known."""
    name = public(target) if "://" in target else target
    head = Text(f"{printed(name)}  K = {shown.k}  {state}", style="bold", no_wrap=True)
    counted = Text(
        f"{span}: {shown.rounds:,} rounds, {shown.requests:,} requests, "
        f"{shown.chains:,} chains recorded",
        style="dim",
    )
    lines = why_no_chains(target, shown, budget, over=state == CLOSED)
    why = [Text(printed(line), style="yellow") for line in lines]
    drift = [Text(drift_line(shown))] if shown.chains else []
    notes = Text("\n".join(_NOTES), style="dim")
    figures = [_figures(shown, budget), *_undrafted(shown)]
    tables: list[RenderableType] = ["", *figures, "", _by_depth(shown), ""]
    return Group(head, counted, *why, *tables, *drift, notes)


def screen_of_engine(target: str, shown: View, *, span: str, state: str) -> RenderableType:
    """Return the screen of an engine that publishes acceptance, but nothing of the drafter."""
    k = f"K = {shown.k}  " if shown.k else ""
    head = Text(f"{printed(public(target))}  {k}{state}", style="bold", no_wrap=True)
    counted = Text(f"{span}: {shown.rounds:,} rounds, {shown.requests:,} requests", style="dim")
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(style="dim")
        table.add_column(justify="right")
    table.add_row(
        "acceptance length",
        _number(shown.length),
        "per token",
        _ms(shown.tpot_s),
        "first token",
        _ms(shown.ttft_s),
    )
    depths = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for name in ("depth", "accepted"):
        depths.add_column(name, justify="right")
    depths.add_column("", width=_BAR)
    for number, depth in enumerate(shown.depths, 1):
        depths.add_row(*_row(number, depth)[:3])
    by_depth = depths if shown.depths else Text(BY_POSITION_UNKNOWN, style="dim")
    return Group(head, counted, "", table, "", by_depth, "", Text(WHY_UNKNOWN, style="dim"))


def drift_line(shown: View) -> str:
    """Return what the recorded chains show of drift, if they are enough."""
    if shown.chains < DRIFT_CHAINS:
        return f"drift: {shown.chains} of the {DRIFT_CHAINS} chains that a figure needs"
    parts = []
    if shown.growth is not None:
        parts.append(f"hidden state grows {shown.growth:.2f}x")
    sinks = [depth.masses["sink"] for depth in shown.depths]
    seen = [mass for mass in sinks if mass is not None]
    if len(seen) > 1:
        parts.append(f"sink {seen[0]:.1%} at depth 1, {seen[-1]:.1%} at {len(sinks)}")
    return "drift: " + ("; ".join(parts) or "does not apply to this drafter")


def _figures(shown: View, budget: float | None) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(style="dim")
        table.add_column(justify="right")
    reasons = sum(shown.undrafted.values()) if shown.length is not None else None
    table.add_row(
        "acceptance length",
        _number(shown.length),
        "per token",
        _ms(shown.tpot_s),
        "rejected",
        _percent(shown.rejected),
    )
    table.add_row(
        "estimated speedup",
        _number(shown.speedup, "x"),
        "first token",
        _ms(shown.ttft_s),
        "undrafted",
        _percent(reasons),
    )
    table.add_row(
        "draft, verify",
        f"{_ms(shown.draft_s).removesuffix(' ms')}, {_ms(shown.verify_s)}",
        "sampling",
        _percent(shown.rate),
        "probe, all in",
        _percent(shown.all_in),
    )
    table.add_row(
        "rows dropped",
        f"{shown.dropped:,}",
        "",
        "",
        "budgeted",
        _percent(shown.overhead) + ("" if budget is None else f" of {budget:.1%}"),
    )
    return table


def _undrafted(shown: View) -> list[RenderableType]:
    """Return the reasons why steps had no draft, each with its share of all steps, on one line."""
    named = ", ".join(f"{reason} {_percent(share)}" for reason, share in shown.undrafted.items())
    return [Text(printed(f"undrafted by: {named}"))] if named else []


def _by_depth(shown: View) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("depth", justify="right")
    table.add_column("accepted", justify="right")
    table.add_column("", width=_BAR)
    for name in CLASSES:
        table.add_column(_HEADS[name], justify="right")
    for name in ("RMS", "top-1"):
        table.add_column(name, justify="right")
    for number, depth in enumerate(shown.depths, 1):
        table.add_row(*_row(number, depth))
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
