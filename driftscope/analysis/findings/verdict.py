"""The verdict: a summary of the runs in a few plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.analysis.findings.acceptance_losses import steepest
from driftscope.analysis.findings.dead_drafter import accepted_once, judge, none_accepted
from driftscope.analysis.findings.finding import Finding, Severity, Trust
from driftscope.analysis.number_words import (
    count,
    largest,
    listed,
    milliseconds,
    number,
    percent,
    times,
)
from driftscope.analysis.replays.senders import ReplaySummary
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.vocabulary import Ended


def verdict_of(runs: Sequence[RunSummary], findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return sentences, the most important first; the first one alone must carry the message."""
    about = {run.label: {_name(f) for f in findings if run.label in f.runs} for run in runs}
    if len(runs) == 1 and "nothing_accepted" in about[runs[0].label]:
        return _dead_alone(runs[0])
    sentences = (
        _worse_than_baseline(runs, findings),
        _state(runs, about),
        _attention(runs, about),
        _acceptance(runs, findings),
        _speed(runs, findings),
    )
    return tuple(sentence for sentence in sentences if sentence)


MERE_GROWTH = "hidden_state_grows, for information"


def _name(finding: Finding) -> str:
    """Return the finding's id, or MERE_GROWTH for growth that needs no action."""
    grows = finding.id == "hidden_state_grows" and finding.severity is Severity.INFO
    return MERE_GROWTH if grows else finding.id


def replay_verdict(runs: Sequence[ReplaySummary]) -> tuple[str, ...]:
    """Return the verdict on replays alone, without a run of a probe."""
    return tuple(f"{run.label} {_sender(run)}." for run in runs)


def _sender(run: ReplaySummary) -> str:
    answered = run.ended.get(Ended.ANSWERED, 0)
    said = f"answered {answered:,} of {count(run.planned, 'request')}"
    if not run.cells:
        return said
    cell = run.cells[0]
    figures = [f"{milliseconds(cell.tpot_s)} per token"] if cell.tpot_s is not None else []
    if cell.mean_length is not None:
        figures.insert(0, f"{number(cell.mean_length)} tokens per round")
    return f"{said}: {', '.join(figures)} in {cell.condition}" if figures else said


_About = dict[str, set[str]]


def _state(runs: Sequence[RunSummary], about: _About) -> str:
    """Return one sentence with one clause per run."""
    return "; ".join(_state_of(run, about[run.label]) for run in runs) + "."


def _worse_than_baseline(runs: Sequence[RunSummary], findings: Sequence[Finding]) -> str:
    """Return which runs accept less than a baseline that is not one of them; "" if none does."""
    shown = {run.label for run in runs}
    said = [
        _less(found)
        for found in findings
        if found.id == "runs_part" and found.runs[0] not in shown and _loses(found)
    ]
    return f"{'; '.join(said)}." if said else ""


def _less(found: Finding) -> str:
    """Return in words how much less a run accepts than its baseline."""
    first, second = found.runs
    depth, last = (found.evidence[name] for name in ("depth", "last_depth"))
    rates = [
        percent(found.evidence[f"{where}_{which}_run"])
        for where in ("marginal", "last")
        for which in ("second", "first")
    ]
    deepest = "" if last == depth else f", at depth {last} {rates[2]} against {rates[3]}"
    return (
        f"{second} accepts less than {first}: at depth {depth} {rates[0]} of the rounds against "
        f"{rates[1]}{deepest}"
    )


def _loses(found: Finding) -> bool:
    """Whether the second run has the shorter acceptance length."""
    difference = found.evidence.get("length_difference")
    return difference is not None and difference < 0


def _dead_alone(run: RunSummary) -> tuple[str, ...]:
    """Return the verdict on one run whose drafter is dead; its internals do not matter."""
    return (f"{_dead(run)}.", "Turn speculation off now; then check what the first finding lists.")


def _dead(run: RunSummary) -> str:
    sure = judge(run)[0] is not Trust.LOW
    little = "nothing" if not accepted_once(run) else "next to nothing"
    cost = "speculation costs time and gives nothing" if sure else "too few rounds to be sure"
    return f"{run.label}: {little} is accepted: {cost} ({none_accepted(run)})"


def _fall(run: RunSummary) -> str:
    """Return in words the rate at the first depth, and the rate at the depth at which chains
    die."""
    depth = steepest(run) or run.k
    rates = percent(run.acceptance.marginal[0]), percent(run.acceptance.conditional[depth - 1])
    return (
        f"{rates[0]} of the rounds are accepted to depth 1, and of those that reach depth {depth} "
        f"{rates[1]} are"
    )


def _state_of(run: RunSummary, ids: set[str]) -> str:
    if "nothing_accepted" in ids:
        return _dead(run)
    if "acceptance_low" in ids:
        first = percent(run.acceptance.marginal[0])
        return f"{run.label} accepts little from the first depth on: {first} of the rounds"
    if "acceptance_falls" in ids:
        return f"{run.label}'s acceptance falls along the chain: {_fall(run)}"
    if run.k == 1:
        return f"{run.label} drafts a single token per round, so nothing can drift"
    if run.hidden.growth is None:
        lost = " loses its attention sink over depth" if "sink_lost" in ids else ""
        return f"{run.label}{lost or ': no hidden state was recorded'}"
    grown = f"({times(run.hidden.growth)} by depth {run.depths})"
    if "hidden_state_grows" in ids:
        return f"{run.label} drifts: the hidden state it feeds itself grows with depth {grown}"
    if "sink_lost" in ids:
        return (
            f"{run.label} drifts: it loses its attention sink over depth; its hidden state is at "
            f"{times(run.hidden.growth)} by depth {run.depths}"
        )
    if MERE_GROWTH in ids:
        return (
            f"{run.label}'s hidden state grows with depth {grown}, and no loss of acceptance shows "
            "beside it"
        )
    if "hidden_state_stable" in ids:
        return f"{run.label} holds its hidden state steady {grown}"
    return f"{run.label}'s hidden state grows a little {grown}"


def _attention(runs: Sequence[RunSummary], about: _About) -> str:
    moves = [run for run in runs if "attention_moves_to_chain" in about[run.label]]
    lost = [run for run in runs if "sink_lost" in about[run.label]]
    without = [run for run in runs if "no_sink" in about[run.label]]
    parts = []
    if moves:
        parts.append(f"attention moves to the chain's own tokens{_where(moves, runs)}")
    if lost:
        parts.append(f"the attention sink fades over depth{_where(lost, runs)}")
    if without:
        parts.append(f"{_sinkless(without, runs)}, so sink loss does not apply")
    return _sentence("; ".join(parts))


def _where(some: Sequence[RunSummary], runs: Sequence[RunSummary]) -> str:
    """Return in words which of the runs are meant; "" if there is only one run."""
    if len(runs) == 1:
        return ""
    if len(some) == len(runs):
        return " in both" if len(runs) == 2 else " in all runs"
    return f" in {listed([run.label for run in some])}"


def _sinkless(without: Sequence[RunSummary], runs: Sequence[RunSummary]) -> str:
    if len(without) < len(runs):
        return f"no attention sink shows{_where(without, runs)}"
    one = len({run.manifest.target.config_digest for run in runs}) == 1
    return f"{'this target has' if one else 'these targets have'} no attention sink"


def _acceptance(runs: Sequence[RunSummary], findings: Sequence[Finding]) -> str:
    if len(runs) == 1:
        return f"{_share(runs[0])} of the rounds are accepted to depth {runs[0].k}."
    parting = [_parting(f) for f in findings if f.id in ("runs_part", "runs_alike")]
    title = f"{parting[0]}; " if len(runs) == 2 and parting else ""
    depths = {run.k for run in runs}
    if len(depths) > 1:
        reached = [f"{_share(run)} to depth {run.k} ({run.label})" for run in runs]
        return _sentence(f"{title}rounds accepted: {listed(reached)}")
    reached = [f"{_share(run)} ({run.label})" for run in runs]
    return _sentence(f"{title}rounds accepted to depth {depths.pop()}: {listed(reached)}")


def _parting(finding: Finding) -> str:
    """Return in words where runs start to differ, or how large a difference is still possible."""
    if finding.id == "runs_part":
        return finding.title
    return f"no depth tells the runs apart ({largest(float(finding.evidence['bound'] or 0.0))})"


def _speed(runs: Sequence[RunSummary], findings: Sequence[Finding]) -> str:
    """Return in words what another K, or none, would gain according to the findings; "" if no
    finding is about it."""
    parts = []
    for found in findings:
        gain = found.evidence.get("gain")
        where = "" if len(runs) == 1 else f" ({found.runs[-1]})"
        if found.id in ("smaller_k", "larger_k") and gain is not None:
            k = found.evidence["suggested_k"]
            parts.append(f"K = {k} would serve about {percent(gain)} faster{where}")
        elif found.id == "slower_than_none":
            parts.append(f"speculation serves slower than none{where}")
    return _sentence("; ".join(parts))


def _share(run: RunSummary) -> str:
    return percent(run.acceptance.marginal[-1])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
