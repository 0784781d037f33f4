"""Output of commands: figures of a report, a comparison of two runs, advice on K."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from driftscope.analysis.advice import NO_SPECULATION, Advice, answer, faster, to_measure
from driftscope.analysis.compare import Comparison, mix_words, verdict
from driftscope.analysis.compare_masses import mass_sentence
from driftscope.analysis.number_words import (
    NOTHING,
    between_percent,
    count,
    ks_of,
    listed,
    milliseconds,
    percent,
)
from driftscope.analysis.pairing import UNPAIRED
from driftscope.analysis.statistics.intervals import Estimate
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.time_per_token import WIDEST, threshold_words
from driftscope.boundary.text import output_console, shown
from driftscope.findings.causes import none_accepted
from driftscope.findings.finding import Finding, Severity
from driftscope.findings.first_screen import State
from driftscope.json_report import DEAD
from driftscope.pipeline import Analysis
from driftscope_reports.tables import (
    CELL_COLUMNS,
    LENGTH_NAME,
    POLICY_COLUMNS,
    ROUNDS,
    SEGMENT_COLUMNS,
    TIME,
    UNSURE,
    VERSUS_COLUMNS,
    comparison_cells,
    comparison_rows,
    figure_rows,
    head_of,
    is_unsure,
    rows_of,
    stands_out,
)

BADGES = {
    State.ACT: "ACT",
    State.LOOK: "LOOK",
    State.TOO_LITTLE: "TOO LITTLE DATA",
    State.NOTHING_SEEN: "NOTHING FOUND",
    State.HEALTHY: "HEALTHY",
    State.PLAIN: "NO SPECULATION",
}
"""Word of each state, before the headline."""


_COMMAND = re.compile(r"`(driftscope [^\s`]+ [^`]+)`[ .:,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Sentences beside a name, wrapped, in which each command has a line of its own that is never
    broken: it works when pasted. Print with crop=False."""

    text: str
    name: str = ""
    name_width: int = 0
    """Columns of the name; 0: the sentences begin at the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        begin = " " * (self.name_width + 2 if self.name_width else 0)
        room = options.max_width - len(begin)
        lines: list[str] = []
        for sentence in self.text.split("\n"):
            for place, piece in enumerate(_COMMAND.split(sentence)):
                if place % 2:
                    lines.append(piece)
                elif piece:
                    lines += [line.plain.rstrip() for line in Text(piece).wrap(console, room)]
        for place, line in enumerate(lines):
            bold = console.get_style("bold") if not place and self.name else None
            yield Segment(begin if place else self.name.ljust(len(begin)), bold)
            yield Segment(line)
            yield Segment.line()


def first_screen(analysis: Analysis) -> list[RenderableType]:
    """Return the badge and the headline, the most urgent finding, and a line for each figure,
    topic and action."""
    screen = analysis.screen
    head: list[RenderableType] = [
        Text(shown(f"[{BADGES[screen.state]}] {screen.headline}"), style="bold")
    ]
    head += [
        Text(shown(f"Part of {run.label}: {run.slice.words(run.requests)}."))
        for run in analysis.runs
        if run.slice is not None
    ]
    if screen.subject is not None:
        cause = f"But: {screen.cause.rstrip('.')} {certainty(screen.subject)}."
        head.append(Lines(text=shown(cause)))
    rows = [
        (shown(figure.value), [f"{figure.unit}; {figure.reference}"]) for figure in screen.figures
    ]
    rows += [(topic.words, list(texts)) for topic, texts in screen.lines]
    for place, action in enumerate(screen.actions, start=1):
        name = "What to do" if len(screen.actions) == 1 else f"What to do, {place}"
        # The advice, its reason if that is not told yet, the option, and causes to check.
        about = f" ({listed(action.runs)})" if screen.several and action.runs else ""
        sure = f" {certainty(action)}" if action.severity else ""
        is_shown = screen.is_told(action) or not action.title
        why = f"{sure}." if action == screen.lead else ""
        if not is_shown:
            why = f". Why: {action.title}{about}{sure}."
        option = [action.option] if action.option else []
        advice = action.short_advice
        action_lines = [
            f"{advice.removesuffix('.')}{why}" if why else advice,
            *option,
            *causes(action),
        ]
        rows.append((name, action_lines))
    width = max(len(name) for name, _ in rows)
    return head + [
        Lines(text="\n".join(map(shown, texts)), name=name, name_width=width)
        for name, texts in rows
    ]


def certainty(finding: Finding) -> str:
    """Return confidence and cost in brackets."""
    cost = f", costs {finding.cost_tps:,.1f} tokens/s" if finding.cost_tps else ""
    return f"(confidence {finding.confidence}{cost})"


_CAUSES = 2
"""Most causes of a finding that are listed."""


def causes(finding: Finding) -> list[str]:
    """Return the first causes to check, in order, and those that are ruled out."""
    lines = []
    for place, suspect in enumerate(finding.causes[:_CAUSES], start=1):
        evidence = f" [{suspect.observed}]" if suspect.observed else ""
        supported = "; this run's recording supports it" if suspect.supported else ""
        lines.append(f"{place}. {suspect.cause}{evidence}{supported}")
        lines.append(f"check: {suspect.check}")
    if left := len(finding.causes[_CAUSES:]):
        lines.append(f"{count(left, 'further cause')} in the report")
    return lines + [f"ruled out: {cause.cause} [{cause.observed}]" for cause in finding.ruled_out]


_MARKS = {Severity.HIGH: "!!", Severity.MEDIUM: "!", Severity.INFO: "i", Severity.GOOD: "ok"}


def marked(severity: Severity | None) -> str:
    """Return sign and word of a severity, such as "!! high"."""
    return f"{_MARKS[severity]} {severity}" if severity else ""


_SEGMENTS = 12
"""Most segments of each run that are listed."""
_CELLS = 40
"""Most conditions of each replay that are listed; a fleet's replicas are the worst first."""


def render(analysis: Analysis) -> RenderableType:
    """Return losses, the first screen, the findings in brief, and one column per run."""
    # The titles of the findings that the first screen does not tell, by severity; the report
    # has their figures.
    several = len(analysis.runs) + len(analysis.senders) > 1
    first_words = " ".join(text for _, texts in analysis.screen.lines for text in texts).lower()
    lines: list[RenderableType] = []
    for severity in Severity:
        titles: dict[str, list[str]] = {}
        for finding in analysis.other_findings:
            if finding.severity is severity and finding.title.lower() not in first_words:
                titles.setdefault(finding.title, []).extend(finding.runs)
        named = [f"{t} ({listed(runs)})" if several else t for t, runs in titles.items()]
        lines += [Text(shown(f"{marked(severity)}: {'; '.join(named)}."))] if named else []
    versus = head_of(VERSUS_COLUMNS), rows_of(VERSUS_COLUMNS, analysis.versus)
    return Group(
        *(Text(shown(f"missing: {loss.line}"), style="bold red") for loss in analysis.losses),
        *first_screen(analysis),
        "",
        *([*lines, ""] if lines else []),
        *((_runs(analysis),) if analysis.runs else ()),
        *(("", _segments(analysis)) if any(len(r.segments) > 1 for r in analysis.runs) else ()),
        *((_senders(analysis), "") if analysis.senders else ()),
        *((_table(*versus, words=3), "") if analysis.versus else ()),
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> Table:
    """Return a table whose first `words` columns are text and the rest numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(head):
        table.add_column(Text(shown(name)), justify="left" if place < words else "right")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def _runs(analysis: Analysis) -> Table:
    """Return the figures of the runs, one column per run; of a single one without those that the
    first screen tells."""
    head = ["", *(f"{run.label} ({ks_of(run.ks)})" for run in analysis.runs)]
    hidden = (ROUNDS, LENGTH_NAME, TIME) if len(analysis.runs) == 1 else ()
    return _table(head, [row for row in figure_rows(analysis.runs) if row[0] not in hidden])


def _segments(analysis: Analysis) -> Table:
    """Return the segments of each run, by the requested criterion, the first rows of each."""
    runs = [run for run in analysis.runs if len(run.segments) > 1]
    columns = ((f"by {runs[0].segments[0].by}", lambda s: s.label), *SEGMENT_COLUMNS)
    rows = _first_rows([(run.label, rows_of(columns, run.segments)) for run in runs], _SEGMENTS)
    head, several = ["run", *head_of(columns)], len(analysis.runs) > 1
    if not several:
        return _table(head[1:], [row[1:] for row in rows])
    return _table(head, rows, words=2)


def _first_rows(tables: Sequence[tuple[str, list[list[str]]]], most: int) -> list[list[str]]:
    """Return the first rows of each table after its name, and how many are left out."""
    lines = []
    for name, rows in tables:
        lines += [[name, *row] for row in rows[:most]]
        lines += [[name, f"and {len(rows) - most:,} more in the report"]] * (len(rows) > most)
    return lines


def _senders(analysis: Analysis) -> Table:
    """Return the replays, one row per condition and load."""
    of_fleets = any(run.rollups for run in analysis.senders)
    head = [h.replace("baseline", "the others") if of_fleets else h for h in head_of(CELL_COLUMNS)]
    senders = [(run.label, rows_of(CELL_COLUMNS, run.cells)) for run in analysis.senders]
    return _table(["replay", *head], _first_rows(senders, _CELLS), words=2)


_COMPARISON_WIDTH = 80
"""Width in columns when the output is not a terminal and COLUMNS is not set."""
_ROWS_SHOWN = 20
"""Most figures that are shown without --all: the screen of a terminal with the sentences."""
_LONGEST = 8
"""Longest label that heads a column; columns of longer ones are called A and B."""
_SEGMENT = 14
"""Longest name of a workload label in a row."""


def show_comparison(comparison: Comparison, *, everything: bool = False) -> None:
    """Print the comparison to stdout: the verdict, then the figures that differ first; those for
    which no difference is shown are counted unless `everything` is wanted."""
    console = output_console(_COMPARISON_WIDTH)
    if comparison.where:
        console.print(f"Of both runs only --where {shown(comparison.where)}.", soft_wrap=True)
    console.print(f"{verdict(comparison)}.")
    if comparison.pairing == UNPAIRED:
        mine, theirs = comparison.requests
        words = (
            f"Unpaired: {mine:,} against {count(theirs, 'request')}; the "
            "runs did not answer the same prompts."
        )
        pairing = f"{words} {shown(mix_words(comparison))}".rstrip()
    else:
        alone = f"; {comparison.alone:,} without a counterpart left out" if comparison.alone else ""
        how = "Assumed to be the same prompts, paired by" if comparison.assumed else "Paired by"
        pairing = f"{how} {comparison.pairing}: {count(comparison.pairs, 'pair')}{alone}."
    console.print(pairing)
    if settle := comparison.comparability.settle(comparison.claim):
        console.print(Lines(text=f"To know: {shown(settle)}"), crop=False)
    elif warning := comparison.comparability.warning:
        console.print(f"Note: {shown(warning)}.")
    labels = (comparison.first, comparison.second)
    if max(map(len, labels)) > _LONGEST:
        console.print(f"A is {shown(labels[0])}, B is {shown(labels[1])}.", soft_wrap=True)
        labels = ("A", "B")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for name in (*map(shown, labels), "difference (95% interval)"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("", no_wrap=True)
    rows = comparison_rows(comparison)
    first = rows if everything else [row for row in rows if stands_out(row)][:_ROWS_SHOWN]
    for row in first:
        table.add_row(*map(shown, comparison_cells(row, longest=_SEGMENT)))
    console.print(table)
    if any(is_unsure(row) for row in first):
        console.print(f"{UNSURE} Among {len(rows)} figures, an interval without 0 may be chance.")
    if left := len(rows) - len(first):
        console.print(f"{count(left, 'other figure')}: --all shows them.")
    if sentence := mass_sentence(comparison.masses):
        console.print(shown(sentence))


_ADVICE_WIDTH = 160
"""Width in columns when the output is not a terminal and COLUMNS is not set."""
_BATCHES_SHOWN = 12
"""Most rows of the table; more are thinned out, but the first and the last are always shown."""


def show_advice(advice: Advice) -> None:
    """Print the setting to choose or the K to measure, the table, and what was not measured."""
    console = output_console(_ADVICE_WIDTH)
    for line in _choice(advice):
        console.print(Text(shown(line), style="bold"), soft_wrap=True)
    if advice.tells_nothing:
        return
    title = (
        "time per output token in ms by batch size and K: measured with 95% interval (*), "
        "otherwise a guess between bounds"
    )
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("batch", justify="right")
    for k in range(len(advice.overall.tpot_s)):
        table.add_column(f"K = {k}{' *' if k in advice.measured_k else ''}", justify="right")
    step = max(1, -(-len(advice.by_batch) // _BATCHES_SHOWN))
    batches = advice.by_batch[::step]
    if batches[-1] is not advice.by_batch[-1]:
        batches = (*batches, advice.by_batch[-1])
    for at in (*batches, advice.overall):
        best = at.best_k if advice.doubt is None and at.best_k in advice.measured_k else None
        cells = [_cell(e, best=k == best) for k, e in enumerate(at.tpot_s)]
        table.add_row(str(at.batch) if at.batch else "as served", *cells)
    console.print(table)
    largest = max(at.batch for at in advice.by_batch)
    console.print(f"not served: batches above {largest}, at which fewer draft tokens may be faster")
    if any(time.interval is None for at in advice.by_batch for time in at.tpot_s):
        console.print(f"{NOTHING}: uncertain by more than a factor of {WIDEST:g}")
    if words := threshold_words(advice.policies, advice.held_out):
        console.print(f"{words[:1].upper()}{words[1:]}.")
        console.print(_table(head_of(POLICY_COLUMNS), rows_of(POLICY_COLUMNS, advice.policies)))
    for name, at in advice.by_context if advice.doubt is None else ():
        if at.best_k in advice.measured_k and at.gain.surely_above(0.0):
            console.print(f"contexts of {name}: K = {at.best_k} is {_gain(at.gain)}")
    for warning in advice.warnings:
        console.print(Text(f"warning: {shown(warning)}"))
    for sentence in advice.assumed:
        console.print(Text(f"not measured: {sentence}"))
    scatter = f", and step times scatter by {percent(advice.misfit)}" if advice.misfit else ""
    console.print(
        "every interval includes that two starts of one server differ by "
        f"{percent(advice.run_effect)}{scatter}"
    )


def _choice(advice: Advice) -> tuple[str, ...]:
    """Return the setting to choose, its gain and what to measure."""
    head = f"{advice.run}: "
    if advice.useless:
        why = "next to nothing is accepted: every K costs time and gives nothing"
        if advice.least_gain is not None:
            why += f"; without the drafter it is at least {percent(advice.least_gain)} faster"
        return f"{head}K = 0: {advice.command}", why
    measure = to_measure(advice)
    further = () if measure is None else (measure, f"to do so: {advice.measure_command}")
    if advice.schedule_worth_it:
        other = advice.served.words if advice.served.mixed else "the best single K"
        extra = f"{_gain(advice.schedule_gain)} than {other}"
        return (f"{head}{advice.command}", extra, *further)
    if advice.worth_it:
        return (f"{head}{advice.command}", faster(advice), *further)
    slower = (
        f"until then {advice.command}: K = 0 is at least {percent(advice.least_gain)} faster than "
        f"K = {advice.ran_k}, because drafting takes more time than the accepted tokens save"
    )
    words = answer(advice)
    return (
        f"{head}{words}",
        *((slower,) if advice.surely_slower else ()),
        *(line for line in further if line != words),
    )


def show_dead(run: RunSummary) -> None:
    """Print the advice on a dead drafter of which too few steps are known for a table."""
    why = f"{none_accepted(run)}: {DEAD}"
    sys.stdout.write(f"{shown(run.label)}: K = 0: {NO_SPECULATION}\n{why[:1].upper()}{why[1:]}\n")


def _gain(gain: Estimate) -> str:
    if gain.interval is None:
        return "faster, not known by how much"
    return f"{percent(gain.value)} faster{between_percent(gain.interval)}"


def _cell(time: Estimate, *, best: bool) -> Text:
    """Return a time with its interval, or a dash if the steps leave it open."""
    if time.interval is None:
        return Text(NOTHING)
    ends = f"[{1000 * time.interval.low:.1f}, {1000 * time.interval.high:.1f}]"
    value = milliseconds(time.value).removesuffix(" ms")
    return Text(f"{value} {ends}", style="bold green" if best else "")
