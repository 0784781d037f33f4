"""Whether speculation pays, and which of two servers is faster: one answer for every output."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from driftscope.analysis.advice import (
    NO_SPECULATION,
    Advice,
    pays_command,
    pays_words,
    speculative_config,
)
from driftscope.analysis.comparability import Claim
from driftscope.analysis.number_words import between_percent, count, listed, milliseconds, percent
from driftscope.analysis.replays import AGAIN, SPECULATION, ReplaySummary, load_words
from driftscope.analysis.speed import (
    AT_ONCE,
    CLOCKS_APART,
    LEFT_OF_GAIN,
    MARGIN,
    TPOT,
    WHOLE,
    SpeedAtLoad,
    is_faster,
    speed_by_means,
)
from driftscope.analysis.statistics.intervals import Interval
from driftscope.analysis.statistics.ratio import FEW_REQUESTS
from driftscope.analysis.summary.run_summary import BaselineRun
from driftscope.analysis.validity import RUN_EFFECT
from driftscope.findings.case import Case, Deciding, Need, ReplayCase, Threshold, entry, question
from driftscope.findings.causes import NOTHING_BELOW
from driftscope.findings.finding import (
    Answer,
    Finding,
    Headline,
    Severity,
    Topic,
    Trust,
    figure,
    judged,
)
from driftscope.findings.rules_speed import BOUNDED, WORTH, k_evidence, times_words

_NONE = (
    "Serve without speculation, or with a smaller K or a better drafter: drafting costs more time "
    "than the accepted tokens save."
)
_VLLM, _SGLANG = "vllm", "sglang"
_SERVED_AT = {_VLLM: "http://localhost:8000", _SGLANG: "http://localhost:30000"}
"""Address at which an engine serves unless it is told another one."""
_PARTLY = (
    "Leave drafts out at the loads at which they cost time: "
    "num_speculative_tokens_per_batch_size, a list of [first batch size, last, K], with K = 0."
)
_RUN_EFFECT = Threshold(
    name="RUN_EFFECT",
    value=RUN_EFFECT,
    means="relative standard deviation of one server's speed from one start to the next, which the "
    "interval of every ratio of two runs includes; servers that were started in turn several times "
    "show it",
    source="driftscope: 1 % on a GPU under CUDA graphs, 8 to 13 % on a busy CPU",
)
MORE_ROUNDS = 4
"""Rounds that are proposed to know more surely: twice the default of `driftscope pays`."""
_MARGIN = Threshold(
    name="MARGIN",
    value=MARGIN,
    means="relative difference in speed below which neither is called faster",
    source="driftscope: nobody changes a server for less",
)
_CLOCKS = Threshold(
    name="CLOCKS_APART",
    value=CLOCKS_APART,
    means="relative difference of the speedup by the server's clock from that by its clients'",
    source="driftscope: twice RUN_EFFECT, which both clocks share",
)
_WAITS = Threshold(
    name="LEFT_OF_GAIN",
    value=LEFT_OF_GAIN,
    means="share of what faster or slower tokens change that must be left when an answer is whole, "
    "after the wait for its first token",
    source="driftscope: with less, the wait decides as much",
)
NOT_KNOWN = "whether speculation pays is not known, because there is no run without it"
_WORDS = {
    Answer.YES: "speculation pays",
    Answer.NO: "speculation costs time",
    Answer.CANNOT_TELL: "whether speculation pays cannot be told",
}
_PLACES_COMPARED = {Answer.NO: Headline.COSTS_TIME, Answer.YES: Headline.FASTER}


def _speed_that_decides(case: Case | ReplayCase) -> Deciding:
    """Return the speed with speculation over that without; open if it cannot be told whether that
    pays."""
    found = _measured_at_loads(case) if isinstance(case, ReplayCase) else does_it_pay(case)
    value = found.estimate or 0.0
    interval = found.interval or Interval.between(value, value)
    known = found.answer is not Answer.CANNOT_TELL
    return Deciding(value=value, interval=interval if known else None, bound=1.0)


@entry(
    title="Serving is slower with speculation than without",
    topic=Topic.PAYS,
    thresholds=(_RUN_EFFECT, _MARGIN, _CLOCKS, _WAITS, WORTH),
    need=Need[Case](
        words="a run without speculation, or step times of 20 comparable steps with a draft",
        met=lambda case: bool(case.advice or case.plain or case.replayed),
    ),
    deciding=_speed_that_decides,
)
def slower_than_none(case: Case) -> Finding | None:
    """The time per output token is longer with speculation than without: measured on the same
    prompts at the same load, or else bounded by step times: what the drafter takes, or what steps
    with more tokens take. The finding states which."""
    found = does_it_pay(case)
    return found if found.answer is Answer.NO else None


def does_it_pay(case: Case) -> Finding:
    """Return whether speculation pays, as every command answers it: measured on the same prompts by
    their senders, else against a run without speculation, else bounded by step times. A no is a
    finding, and has a severity."""
    if case.replayed is not None:
        return _measured_at_loads(case.replayed, case)
    if case.plain is not None and case.speedup is not None:
        return _measured_as_served(case, case.plain, *case.speedup)
    return _by_model(case)


def _measured_as_served(
    case: Case, plain: BaselineRun, speedup: float, interval: Interval
) -> Finding:
    """Return the answer by a run without speculation, over all that both served."""
    a, b, comparable = case.run.latency, plain.latency, case.plain_comparability
    decides = comparable.decides(Claim.SPEED)
    speedup, interval, taken_off = _without_probe(case, speedup, interval)
    answer = _answer(speedup, interval) if decides else Answer.CANNOT_TELL
    trust, because = _judged(min(case.run.requests, plain.requests), interval, answer)
    return Finding(
        **_measured(answer),
        statement=f"{_WORDS[answer]}: {speedup:.2f}× as fast as without ({interval.low:.2f}× to "
        f"{interval.high:.2f}×, measured: {milliseconds(a.tpot_s)} per token, "
        f"{milliseconds(b.tpot_s)} without{taken_off}){comparable.doubt(Claim.SPEED)}",
        estimate=speedup,
        interval=interval,
        evidence={
            **figure("tpot_s", a.tpot_s, a.tpot_s_interval),
            **figure("baseline_tpot_s", b.tpot_s, b.tpot_s_interval),
            **figure("speedup", speedup, interval),
        },
        confidence=trust,
        because=f"by a baseline run; {because}",
        advice=_to_do(answer, case),
        option=NO_SPECULATION if answer is Answer.NO else None,
        cost_tps=case.cost_of_gain(1.0 / speedup - 1.0) if answer is Answer.NO else None,
    )


def _means_alone(replay: ReplayCase) -> str:
    """Return the times per token of two files that hold sums only, or why there are no pairs."""
    rows = replay.run.rows, replay.reference.rows if replay.reference else ()
    mine, theirs = (list(dict.fromkeys(map(load_words, some))) for some in rows)
    if mine and theirs and not {*mine} & {*theirs}:
        return f"with it at loads of {listed(mine)}, without it at {listed(theirs)}"
    times = [
        next((cell.tpot_s for cell in run.cells if cell.totals is not None), None)
        for run in (replay.run, replay.reference)
        if run is not None
    ]
    if len(times) < 2 or None in times:
        return "too few prompts were answered both with and without speculation, and timed"
    with_it, without = map(milliseconds, times)
    return f"{with_it} per token with it and {without} without, means whose spread is in no file"


def _measured_at_loads(replay: ReplayCase, case: Case | None = None) -> Finding:
    """Return the answer by the senders of the same prompts, at each load."""
    if not replay.speeds:
        return Finding(
            **_measured(Answer.CANNOT_TELL),
            statement=f"{_WORDS[Answer.CANNOT_TELL]}: {_means_alone(replay)}",
            advice=_to_do(Answer.CANNOT_TELL, case or replay),
        )
    by_answer: dict[Answer, list[SpeedAtLoad]] = {answer: [] for answer in Answer}
    speeds, taken_off = replay.speeds, ""
    if case is not None and case.run.manifest.run_id in replay.run.server_ids:
        eased = [_without_probe(case, one.decisive.value, one.decisive.interval) for one in speeds]
        taken_off = eased[0][2]
        speeds = tuple(
            replace(one, decisive=replace(one.decisive, value=value, interval=interval))
            for one, (value, interval, _) in zip(speeds, eased, strict=True)
        )
    comparable = replay.comparability.and_also(
        found for one in speeds for found in one.answers.differences
    )
    doubt, settle = comparable.doubt(Claim.SPEED), comparable.settle(Claim.SPEED)
    wrong = replay.run.validity.reasons if replay.run.validity.content_valid is False else ()
    if wrong:
        doubt, settle = f"{doubt}; not content-valid: {listed(wrong)}", f"{settle} {_VALID}".strip()
    for at_load in speeds:
        same = not wrong and replay.comparability.decides(Claim.SPEED)
        decides = same and at_load.answers.decides(Claim.SPEED)
        answer = _answer(at_load.decisive.value, at_load.decisive.interval)
        by_answer[answer if decides else Answer.CANNOT_TELL].append(at_load)
    slower, unknown, faster = (by_answer[answer] for answer in Answer)
    answer = Answer.NO if slower else Answer.YES if faster else Answer.CANNOT_TELL
    several = len(speeds) > 1
    parts = [
        f"{_WORDS[about]}{f' at {_loads(some)}' if several else ''}: "
        f"{listed([_speed_words(one) for one in some])}"
        for about, some in (
            (Answer.YES, faster),
            (Answer.NO, slower),
            (Answer.CANNOT_TELL, unknown),
        )
        if some
    ]
    speed = min((one.decisive for one in by_answer[answer]), key=lambda one: one.value)
    pairs = min(one.pairs for one in speeds)
    trust, because = _judged(pairs, speed.interval, answer)
    partly = answer is Answer.NO and len(slower) < len(speeds)
    return Finding(
        **_measured(answer),
        statement="; ".join(["; ".join(parts) + doubt, *_unsteady(speeds), *_disagreements(speeds)])
        + taken_off,
        estimate=speed.value,
        interval=speed.interval,
        evidence=_evidence_at_loads(speeds),
        confidence=trust,
        because=f"by replays of the same {count(pairs, 'prompt')}; {because}",
        advice=_PARTLY
        if partly
        else _to_do(answer, case or replay)
        if answer is not Answer.CANNOT_TELL
        else settle or _to_do(answer, case or replay),
        option=NO_SPECULATION if answer is Answer.NO and not partly else None,
        cost_tps=case.cost_of_gain(1.0 / speed.value - 1.0)
        if case is not None and answer is Answer.NO
        else None,
    )


_VALID = (
    "Ask both servers with prompts as users send them, without ignore_eos (`--prompts my.jsonl`)."
)


def _without_probe(case: Case, speedup: float, interval: Interval) -> tuple[float, Interval, str]:
    """Return the speedup without the probe's own time, which a recording of every draft step makes
    long, with an interval that holds either way, and a clause that says so; unchanged if the probe
    took less than MARGIN."""
    share = case.run.recording.overhead_fraction or 0.0
    if share <= MARGIN:
        return speedup, interval, ""
    return (
        speedup / (1.0 - share),
        Interval.between(interval.low, interval.high / (1.0 - share), interval.clusters)
        or interval,
        f"; the probe's own time, {percent(share)} of it, taken off the first",
    )


def _measured(answer: Answer) -> dict[str, Any]:
    """Return what a measured answer is; only a no is a finding."""
    if answer is Answer.NO:
        return {
            "answer": answer,
            "severity": Severity.HIGH,
            "headline": Headline.MEASURED_LOSS,
        }
    return {"answer": answer, "headline": Headline.MEASURED}


def _judged(requests: int, interval: Interval, answer: Answer) -> tuple[Trust, str]:
    if answer is Answer.NO:
        return judged(requests, interval, below=1.0)
    return judged(requests, interval, above=1.0)


def _to_do(answer: Answer, case: Case | ReplayCase) -> str:
    """Return what to do about a measured answer."""
    if answer is not Answer.CANNOT_TELL:
        return _NONE if answer is Answer.NO else ""
    replay = case if isinstance(case, ReplayCase) else case.replayed
    asked = 1 if replay is None else 1 + max((row["round"] for row in replay.run.rows), default=0)
    if isinstance(case, ReplayCase) and _is_one_server(case):
        return (
            f"To know more surely, run `{to_tell(case)}` once more with and once more without its "
            "drafter: what was recorded counts, too."
        )
    return f"To know more surely, run `{to_tell(case)} --rounds {max(2 * asked, MORE_ROUNDS)}`."


def to_tell(case: Case | ReplayCase) -> str:
    """Return the command that measures whether speculation pays on the same server. It is one for
    all runs of a page that serve one target."""
    replay = case if isinstance(case, ReplayCase) else case.replayed
    again = None if replay is None else replay.run.manifest.workload.get(AGAIN)
    if isinstance(again, list) and again:
        return f"driftscope pays {shlex.join(map(str, again))}"
    if isinstance(case, ReplayCase):
        # The command that asks the servers of a replay again. A server that was started
        # for it is started again.
        manifest = case.run.manifest
        speculation = manifest.workload.get(SPECULATION)
        if isinstance(speculation, Mapping):
            return pays_words(manifest.target.name, speculative_config(speculation))
        if case.reference is None or _is_one_server(case):
            return pays_words(_url(case.run))
        return pays_words(_url(case.run), "--without", shlex.quote(_url(case.reference)))
    if case.run.manifest.engine == _SGLANG:
        return pays_words(_SERVED_AT[_SGLANG])
    together = [
        run
        for run in case.others
        if (run.manifest.engine, run.manifest.target) == (_VLLM, case.run.manifest.target)
    ]
    return pays_command(*sorted([case.run, *together], key=lambda run: run.label))


def _is_one_server(case: ReplayCase) -> bool:
    """Whether a replay and its reference asked one address, before and after a restart."""
    return case.reference is not None and _url(case.run) == _url(case.reference)


def _ask_both(case: Case) -> str:
    """Return what to run where nothing was measured."""
    return f"To know, serve the same prompts with and without it: `{to_tell(case)}`."


def _url(replay: ReplaySummary) -> str:
    return replay.url or _SERVED_AT[_VLLM]


def _loads(speeds: Sequence[SpeedAtLoad]) -> str:
    """Return the loads in words: "1 and 4 at once"."""
    closed = [one.load.removesuffix(AT_ONCE) for one in speeds]
    if all(one.load.endswith(AT_ONCE) for one in speeds):
        return f"{listed(closed)}{AT_ONCE}"
    return listed([one.load for one in speeds])


def _speed_words(at_load: SpeedAtLoad) -> str:
    speed = at_load.decisive
    return (
        f"{speed.value:.2f}× as fast as without ({speed.interval.low:.2f}× to "
        f"{speed.interval.high:.2f}×; {milliseconds(speed.own)} per token, "
        f"{milliseconds(speed.other)} without)"
    )


def _unsteady(speeds: Sequence[SpeedAtLoad]) -> list[str]:
    """Return in words at which loads times include the wait for the first token, and where a part
    of a replay took another time than the rest of it."""
    whole = [one for one in speeds if WHOLE in one.by_client]
    odd = [one for one in speeds if one.decisive.odd]
    words = []
    if whole:
        words.append(
            f"at {_loads(whole)} times include the wait for the first token, because many answers "
            "came in one piece"
        )
    if odd:
        words.append(
            f"at {_loads(odd)} {listed([f'{one.decisive.odd}' for one in odd])} answers in a row "
            "took another time than those before and after, as if something else used the machine "
            "for a while: the interval holds the speed without them, too"
        )
    return words


def _disagreements(speeds: Sequence[SpeedAtLoad]) -> list[str]:
    """Return in words where the servers' own clocks show another speedup than the clients'."""
    return [
        f"at {one.load} the server alone is {one.by_server[TPOT].value:.2f}× as fast, but its "
        f"clients get {one.client.value:.2f}×: the difference arises outside the engine, "
        "in its front end, the network or the sender"
        for one in speeds
        if one.disagree and one.client
    ]


def _evidence_at_loads(speeds: Sequence[SpeedAtLoad]) -> dict[str, float | int | None]:
    return {
        name: value
        for one in speeds
        for clock, by_quantity in (("client", one.by_client), ("server", one.by_server))
        for quantity, speed in by_quantity.items()
        for name, value in figure(
            f"{clock}_{quantity.removesuffix('_s')}_speed_{one.load.replace(' ', '_')}",
            speed.value,
            speed.interval,
        ).items()
    }


def _by_model(case: Case) -> Finding:
    advice = case.advice
    bounds = None if advice is None else model_ratio(advice)
    if advice is not None and advice.none_is_faster:
        drafter = advice.useless or advice.surely_slower
        trust, because = (_by_drafter if drafter else _by_bounds)(case.run.requests, advice)
        gain = advice.least_gain if drafter else advice.gains[0].value
        least, words = _without(advice)
        return Finding(
            severity=Severity.HIGH,
            answer=Answer.NO,
            headline=Headline.COSTS_TIME,
            statement=words,
            estimate=None if least is None else 1 / (1 + least),
            evidence=k_evidence(case, advice, 0, advice.gains[0]),
            confidence=trust,
            because=because,
            advice=_NONE,
            assumed=advice.assumed,
            option=NO_SPECULATION,
            cost_tps=None if gain is None else case.cost_of_gain(gain),
        )
    if bounds is None or not bounds[1].low > 1:
        return Finding(
            answer=Answer.CANNOT_TELL,
            statement=NOT_KNOWN,
            advice=_ask_both(case),
        )
    return Finding(
        answer=Answer.YES,
        headline=Headline.PAYS,
        statement=f"speculation pays: at least {bounds[1].low:.2f}× as fast as without (at most "
        f"{bounds[1].high:.2f}×, bounded by step times)",
        estimate=bounds[0],
        interval=bounds[1],
    )


def _by_drafter(requests: int, advice: Advice) -> tuple[Trust, str]:
    """Return trust and reason from the drafter's measured time alone, whatever verification
    costs."""
    enough = advice.useless or requests >= FEW_REQUESTS
    because = (
        "the drafter's measured time, and the acceptance length at the upper end of its 95% "
        f"interval, of {count(requests, 'request')}"
    )
    return Trust.HIGH if enough else Trust.LOW, because


def _by_bounds(requests: int, advice: Advice) -> tuple[Trust, str]:
    measured, gain = 0 in advice.measured_k, advice.gains[0]
    trust, because = judged(
        requests, gain.interval, above=0.0, assumed=[] if measured else [BOUNDED]
    )
    how = "step times were measured without speculation" if measured else "by bounds of step times"
    return trust, (
        f"by step times, because no baseline was given ({how}: {times_words(advice, 0)}; "
        f"{percent(gain.value)} more tokens per second without speculation"
        f"{between_percent(gain.interval)}); {because}"
    )


@question("Does the run serve faster than the run that it is compared with?", Topic.PAYS)
def faster_than_reference(case: Case) -> Finding | None:
    """Return whether a run serves faster than the run that it is compared with; None if it is not
    compared, or if the two do not serve the same target."""
    other = case.reference
    if other is None or other.manifest.target != case.run.manifest.target:
        return None
    compared = speed_by_means(other.latency, case.run.latency, len(case.others))
    if compared is None:
        return None
    value, interval = compared
    comparable = case.comparability
    sure = comparable.decides(Claim.SPEED)
    answer = _answer(value, interval) if sure else Answer.CANNOT_TELL
    words = {
        Answer.YES: f"serves {_change(value)} faster than {other.label}",
        Answer.NO: f"serves {_change(1 / value)} slower than {other.label}",
        Answer.CANNOT_TELL: f"whether it serves faster than {other.label} cannot be told",
    }[answer]
    low, high = interval.low, interval.high
    if answer is Answer.NO:
        low, high = 1 / high, 1 / low
    return Finding(
        answer=answer,
        headline=_PLACES_COMPARED.get(answer, Headline.NEVER),
        statement=f"{words} ({_change(low)} to {_change(high)}; "
        f"{milliseconds(case.run.latency.tpot_s)} per token, compared with "
        f"{milliseconds(other.latency.tpot_s)}){comparable.doubt(Claim.SPEED)}",
        estimate=value,
        interval=interval,
        reference=other.label,
        advice=""
        if answer is not Answer.CANNOT_TELL
        else _ask_both(case)
        if case.replayed is None
        else _to_do(answer, case),
    )


@question("Does speculation serve faster than no speculation?", Topic.PAYS)
def pays(case: Case) -> Finding | None:
    """Return whether speculation pays; None if a rule found that it does not."""
    return None if case.is_answered(Topic.PAYS) else does_it_pay(case)


@entry(
    about=ReplayCase,
    title="Clients are served slower with speculation than without",
    topic=Topic.PAYS,
    thresholds=(_RUN_EFFECT, _MARGIN, _CLOCKS, _WAITS),
    need=Need(
        words="a second replay of the same prompts, of a server without speculation",
        met=lambda case: case.with_and_without,
    ),
    deciding=_speed_that_decides,
)
def slower_for_clients(case: ReplayCase) -> Finding | None:
    """The time per output token as clients see it is longer with speculation than without, on the
    same prompts at the same load, and nothing else explains it: no machine, cache, other answers,
    failed requests or wait for the first token."""
    found = _measured_at_loads(case) if case.with_and_without else None
    return found if found is not None and found.answer is Answer.NO else None


@question("Does speculation serve faster than no speculation?", Topic.PAYS, ReplayCase)
def pays_for_clients(case: ReplayCase) -> Finding | None:
    """Return whether speculation pays for the senders of the same prompts; None if a rule found
    that it does not, or if nothing is accepted."""
    if case.with_and_without:
        found = _measured_at_loads(case)
        return None if found.answer is Answer.NO else found
    accepts = any((cell.mean_length or 0) > 1 + NOTHING_BELOW.value for cell in case.run.cells)
    if case.reference is not None or not case.run.speculates or not accepts:
        return None
    command = to_tell(case)
    return Finding(
        topic=Topic.PAYS,
        answer=Answer.CANNOT_TELL,
        statement=NOT_KNOWN,
        advice=f"To know, run `{command}`"
        + (", restart the server without its drafter, and repeat." if "://" in command else "."),
    )


def _without(advice: Advice) -> tuple[float | None, str]:
    """Return the least gain of serving without speculation, and what it costs in words."""
    drafter = advice.useless or advice.surely_slower
    interval = advice.gains[0].interval
    gain = advice.least_gain if drafter else None if interval is None else interval.low
    how = "from the drafter's measured time" if drafter else "from step times"
    return gain, (
        f"speculation costs time: without it serving is at least {percent(gain)} faster ({how})"
    )


def model_ratio(advice: Advice) -> tuple[float, Interval] | None:
    """Return the time per token without speculation over that of the run, with its bounds; None if
    it is not known, or if the bounds rest on more than measured times: steps of one K say nothing
    about what few tokens cost."""
    none = advice.gains[0]
    if advice.assumed or advice.doubt is not None or none.interval is None:
        return None
    interval = Interval.between(1 / (1 + none.interval.high), 1 / (1 + none.interval.low))
    return None if interval is None else (1 / (1 + none.value), interval)


def _answer(speed: float, interval: Interval) -> Answer:
    faster = is_faster(speed, interval)
    return Answer.CANNOT_TELL if faster is None else Answer.YES if faster else Answer.NO


def _change(speed: float) -> str:
    return f"{100 * (speed - 1):.0f}%"


def without_speculation(run: BaselineRun) -> Finding:
    """Return the speed of a run without speculation, and what tells whether speculation pays."""
    latency, interval = run.latency, run.latency.tpot_s_interval
    ends = ""
    if interval is not None:
        ends = f" ({milliseconds(interval.low)} to {milliseconds(interval.high)})"
    measure = pays_words(_SERVED_AT.get(run.manifest.engine, _SERVED_AT[_VLLM]))
    return Finding(
        topic=Topic.PAYS,
        answer=Answer.CANNOT_TELL,
        statement=f"without speculation an output token takes {milliseconds(latency.tpot_s)}{ends} "
        f"and the first one {milliseconds(latency.ttft_s)}, over {run.requests:,} requests",
        advice=f"To know whether speculation pays, run `{measure}`, restart the server with a "
        "drafter, and run it again. Or record the same prompts with a drafter, and analyze that "
        "recording with this one as its --baseline.",
    )
