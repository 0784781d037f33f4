"""Figures of an engine's own metrics, whether from one scrape or over a window of time."""

from __future__ import annotations

from driftscope.ingest.figures import LAST_INTERVAL, Figures
from driftscope.telemetry.collect import instruments as i
from driftscope.telemetry.collect.tally import attributes
from driftscope.telemetry.watch.engine_page import EnginePage
from driftscope.telemetry.watch.engine_view import view


def figures_of(page: EnginePage, period: str, *assumptions: str) -> Figures:
    """Return the figures of an engine's counters, which cover `period`.

    A gauge of the engine's last log interval covers only that interval.
    """
    seen = view(page.points)
    rates = [depth.accepted for depth in seen.depths]
    known = [rate for rate in rates if rate is not None]
    accepted = page.points.get((i.ACCEPTED.name, attributes({})))
    return Figures(
        period=period if page.length is None else LAST_INTERVAL,
        k=seen.k or None,
        requests=seen.requests or None,
        rounds=seen.rounds or None,
        accepted=None if accepted is None or not seen.rounds else int(accepted.value),
        length=seen.length if page.length is None else page.length,
        marginal=tuple(known) if known and len(known) == len(rates) else None,
        ttft_s=seen.ttft_s,
        tpot_s=seen.tpot_s,
        assumptions=assumptions,
    )
