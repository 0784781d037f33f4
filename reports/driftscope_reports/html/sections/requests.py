"""Section on the worst and the best requests, and what happened in them."""

from __future__ import annotations

from dataclasses import fields

from driftscope.analysis.closeup import NAMED_EACH, NamedRequest, OpenedRequest
from driftscope.analysis.number_words import NOTHING, milliseconds, number, percent, times
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import Analysis
from driftscope_reports.html.parts.tables import table
from driftscope_reports.markup import Child, Markup, el
from driftscope_reports.model import Section

_WORDS = 3
_HEAD = (
    "request",
    "label",
    "run",
    "tokens per round",
    "rounds",
    "growth",
    "on the chain, depth K",
    "prompt",
    "output",
    "time per token",
    "time to first",
    "temperature",
    "accepted by round",
)


def section(analysis: Analysis) -> Section:
    """Return a table of the worst and the best, which the page's script can search and expand."""
    runs = analysis.runs
    if not any(run.closeup and run.closeup.named for run in runs):
        return Section(
            id="requests", name="Requests", missing="Not applicable: no request has a round."
        )
    body = el("div", _search(), _table(runs), el("div", id="opened", aria_live="polite"))
    return Section(
        id="requests",
        name="Requests",
        conclusion=_conclusion(runs),
        lead=_lead(runs),
        body=body,
        affects=("requests",),
    )


def stories(runs: tuple[RunSummary, ...]) -> list[dict[str, object]]:
    """Return what the page's script shows of each request that can be opened, by run."""
    return [
        {
            "label": run.label,
            "k": run.k,
            "opened": [_story(each) for each in (run.closeup.opened if run.closeup else ())],
        }
        for run in runs
    ]


def _story(opened: OpenedRequest) -> dict[str, object]:
    story = {field.name: getattr(opened, field.name) for field in fields(opened)}
    return {**story, "masses": dict(opened.masses)}


def _conclusion(runs: tuple[RunSummary, ...]) -> str:
    """Return the request that yields least and the one that yields most."""
    named = [each for run in runs if run.closeup for each in run.closeup.named]
    lengths = sorted(each.mean_length for each in named)
    return f"Single requests yield {number(lengths[0])} to {number(lengths[-1])} tokens per round."


def _lead(runs: tuple[RunSummary, ...]) -> str:
    cut = any(run.requests > 2 * NAMED_EACH for run in runs)
    which = (
        f"The {NAMED_EACH} worst and the {NAMED_EACH} best requests of each run"
        if cut
        else "All requests"
    )
    recorded = any(
        ids is not None
        for run in runs
        if run.closeup
        for opened in run.closeup.opened
        for ids in opened.token_ids
    )
    text = "Token ids were recorded." if recorded else "No text and no token ids were recorded."
    return f"{which} by tokens per round, worst first. Underlined requests can be opened. {text}"


def _search() -> Markup:
    box = el("input", id="search", type="search", autocomplete="off")
    label = el("label", "Find a request or label ", box)
    return el("p", label, el("span", id="found", role="status"), class_="search", hidden="")


def _table(runs: tuple[RunSummary, ...]) -> Markup:
    rows = [
        _row(i, run, request)
        for i, run in enumerate(runs)
        if run.closeup
        for request in run.closeup.named
    ]
    kept = [at for at in range(len(_HEAD)) if _tells(_HEAD[at], [row[at] for row in rows])]
    return table(
        [_HEAD[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        words=sum(at < _WORDS for at in kept),
        caption="Requests, worst acceptance first",
        sortable=True,
        id="request-table",
    )


def _tells(name: str, cells: list[Child]) -> bool:
    """Return whether a column is informative: not a single run's name or a single label
    repeated."""
    if name in ("label", "run", "temperature"):
        return len(set(map(str, cells))) > 1
    return any(cell != NOTHING for cell in cells)


def _row(index: int, run: RunSummary, request: NamedRequest) -> list[Child]:
    opened = [o.request for o in run.closeup.opened] if run.closeup else []
    name: Child = request.request
    if request.request in opened:
        at = opened.index(request.request)
        name = el(
            "button",
            request.request,
            type="button",
            class_="open",
            disabled="",
            data_run=str(index),
            data_at=str(at),
        )
    return [
        name,
        request.label,
        run.label,
        number(request.mean_length),
        f"{request.rounds:,}",
        times(request.growth),
        percent(request.self_mass),
        _count(request.prompt_tokens),
        _count(request.output_tokens),
        milliseconds(request.tpot_s),
        milliseconds(request.ttft_s),
        number(request.temperature),
        el("code", request.accepted),
    ]


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"
