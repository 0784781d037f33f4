"""How much data there is, and notes on it: reasons to trust some of the figures less."""

from __future__ import annotations

from collections.abc import Iterator

from driftscope.analysis.figures.run_sums import Cohort, longer
from driftscope.analysis.number_words import count, ks_of, lasted, listed, number, percent
from driftscope.analysis.replays import ReplaySummary
from driftscope.analysis.statistics.ratio import FEW_REQUESTS
from driftscope.analysis.summary.run_summary import (
    ENOUGH_CLUSTERS,
    BaselineRun,
    RunSummary,
    first_token_differs,
    tokens_are_wrong,
    warmest,
)
from driftscope.analysis.validity import LOOPS_MOST
from driftscope.findings.case import Case, Need, ReplayCase, Threshold, entry, question
from driftscope.findings.finding import (
    Answer,
    Finding,
    Headline,
    Severity,
    Topic,
    Trust,
    capital,
    note,
)
from driftscope.findings.rules_compare import FEWEST_REQUESTS
from driftscope.trace.manifest import GREEDY, WAS_SIMULATED
from driftscope.vocabulary import CHOOSES_LENGTH, UndraftedReason

SOME_CUT = 0.01
"""Share of the drafts that were cut from which it is said."""
MANY_UNCOUNTED = 0.05
"""Steps without a draft, as a share of the rounds, from which the engine's own counters may
differ."""


def notes_on(run: RunSummary) -> list[Finding]:
    """Return every note on a run's data, those about data missing from its files first."""
    return [
        *_recorded(run, "run"),
        *_about_recording(run),
        *_about_requests(run),
        *_about_rounds(run),
        *_about_chains(run),
    ]


def notes_on_replay(run: ReplaySummary) -> list[Finding]:
    """Return every note on a replay's data."""
    simulated = [
        note(WAS_SIMULATED, run.label, name="simulated", affects="senders")
        for _ in range(run.manifest.is_simulated)
    ]
    return [*simulated, *_recorded(run, "senders")]


def notes_on_plain(run: BaselineRun) -> list[Finding]:
    """Return every note on the data of a run without speculation."""
    return _recorded(run, "run")


def _recorded(run: RunSummary | BaselineRun | ReplaySummary, affects: str) -> list[Finding]:
    """Return what is missing, the answer to whether everything was recorded, and what the recorder
    noted."""
    lost = [
        note(problem, run.label, name="loss", affects=affects, answer=Answer.NO)
        for problem in run.problems
    ]
    noted = [note(words, run.label, name="note", affects=affects) for words in run.manifest.notes]
    return [*lost, *noted]


def _about_recording(run: RunSummary) -> Iterator[Finding]:
    """Yield which requests the recording shows in part."""
    cohort, begun = run.cohort, run.recording.begun_before
    if cohort is not None and not cohort.enough:
        yield note(
            f"cannot tell means and trends: {_edges(cohort)}, and less than half of the rounds are "
            f"of other requests. All {cohort.served.rounds:,} rounds are shown, without intervals; "
            f"{longer(cohort)}",
            run.label,
            name="unfinished",
            affects="acceptance",
        )
    elif cohort is not None:
        yield note(
            f"{count(cohort.left_out, 'round')} of {cohort.served.rounds:,} are left out of means "
            f"and trends: {_edges(cohort)}. With them, as vLLM counts, rounds yield "
            f"{number(cohort.served.mean_length)} tokens instead of "
            f"{number(run.acceptance.mean_length)}",
            run.label,
            name="unfinished",
            affects="acceptance",
        )
    if begun:
        yield note(
            f"the first rounds of {begun:,} of {count(run.requests, 'request')} are missing: the "
            "recording began in the middle of them, or rows were lost. Late rounds of an answer "
            "may accept more or less than early ones; leave such requests out with --since, or "
            "record before requests come",
            run.label,
            name="begun_before",
            affects="acceptance",
        )


def _about_requests(run: RunSummary) -> Iterator[Finding]:
    """Yield what is to be known of the requests: too few, or alike."""
    known = run.independence
    if run.clusters < FEW_REQUESTS:
        counted = count(run.clusters, run.noun)
        if run.noun == "request" and run.clusters < run.requests:
            counted = f"{run.clusters} of {count(run.requests, run.noun)} have rounds that count"
        yield note(
            f"only {counted}: no finding that rests on an interval is certain; "
            f"record {FEW_REQUESTS} or more {run.noun}s",
            run.label,
            name="few_requests",
            affects="run",
        )
    if run.unseen:
        yield note(
            "repeated prompts cannot be seen in this trace: if prompts repeat, intervals are "
            "narrower than they should be, so no finding that rests on one is called high or "
            "certain. Record without DRIFTSCOPE_PROMPT_DIGESTS=off, or name the column that holds "
            "the sessions with --cluster",
            run.label,
            name="repeats_unseen",
            affects="acceptance",
        )
    if run.requests > 1 and run.acceptance.mean_length_interval is None:
        words = (
            "one request has more than half of the rounds, so the acceptance has no 95% interval: "
            f"it describes mostly that request; record {FEW_REQUESTS} or more requests of similar "
            "length"
        )
        if known is not None and known.even:
            words = (
                f"{count(run.clusters, run.noun)}, which are too few for a 95% interval of the "
                f"acceptance; record {FEW_REQUESTS} or more {run.noun}s"
            )
        yield note(words, run.label, name="one_request_decides", affects="run")
    if known is not None and known.length_correlation is not None and known.length_goes_with_ease:
        yield note(
            f"{known.noun}s with more rounds also yield more tokens per round (correlation "
            f"{known.length_correlation:.2f} over {count(known.clusters, known.noun)}), so the 95% "
            f"interval of the acceptance length is too narrow. Record {ENOUGH_CLUSTERS} "
            f"{known.noun}s or more. Averaged over requests instead of rounds, the acceptance "
            f"length is {number(run.acceptance.mean_length_by_request)} instead of "
            f"{number(run.acceptance.mean_length)}",
            run.label,
            name="length_goes_with_ease",
            affects="acceptance",
        )


def _edges(cohort: Cohort) -> str:
    """Return in words which requests the ends of the recording cut off."""
    edges = []
    if cohort.early_requests:
        began = count(cohort.early_requests, "request")
        edges.append(f"{began} had begun before the cut ({count(cohort.early_rounds, 'round')})")
    if cohort.late_requests:
        began, last = count(cohort.late_requests, "request"), "too late"
        if cohort.duration_s is not None:
            last = (
                f"in the last {lasted(cohort.duration_s)}, within which 95% of the requests finish"
            )
        edges.append(
            f"{cohort.running:,} had not finished when the recording was read, so {began} that "
            f"began {last} are not seen whole ({count(cohort.late_rounds, 'round')})"
        )
    return listed(edges)


def _about_rounds(run: RunSummary) -> Iterator[Finding]:
    """Yield what is to be known of the rounds: how they were drafted, cut and counted."""
    warm, counts = warmest(run), run.fallback
    if warm and run.manifest.draft_sampling == GREEDY and not tokens_are_wrong(run):
        yield note(
            f"requests were sampled (temperature up to {warm:g}), but the drafter drafts greedily, "
            "as it does on vLLM's V1 runner: acceptance is lower than with a drafter that samples, "
            "and lower than at temperature 0; compare it only with runs at the same temperature "
            "and on the same runner",
            run.label,
            name="greedy_drafts",
            affects="acceptance",
        )
    short = run.recording.short_rounds / run.rounds
    if short and run.manifest.method in CHOOSES_LENGTH:
        yield note(
            f"the length of a draft is chosen by the drafter ({run.manifest.method}): "
            f"{percent(short)} of the rounds drafted fewer than K tokens. Rates by depth count "
            "only the rounds that drafted that depth and were accepted up to it; they hold for "
            "drafts that this drafter makes that long, while vLLM's counters divide by all rounds",
            run.label,
            name="short_rounds",
            affects="acceptance",
        )
    if counts.cut_share >= SOME_CUT:
        reasons = [
            f"{name.replace('_', ' ')} {percent(n / counts.drafts)}"
            for name, n in sorted(counts.cut.items(), key=lambda cut: -cut[1])
        ]
        yield note(
            f"{percent(counts.cut_share)} of the drafts were cut before verification "
            f"({listed(reasons)}): rates by depth count only the tokens that were verified, while "
            "vLLM's counters call the others rejected",
            run.label,
            name="cut_drafts",
            affects="acceptance",
        )
    if counts.counted > MANY_UNCOUNTED * run.rounds:
        reasons = [
            f"{name.replace('_', ' ')} {n:,}"
            for name, n in counts.by_reason.items()
            if name in UndraftedReason.COUNTED
        ]
        accepted = (run.acceptance.mean_length - 1.0) * run.rounds
        least = 1.0 + accepted / (run.rounds + counts.counted)
        yield note(
            f"{count(counts.counted, 'decode step')} had no draft ({listed(reasons)}) and are not "
            "rounds here; vLLM may verify padding or an emptied draft instead and count it as "
            "rejected, so its own counters may show an acceptance length down to "
            f"{number(least)} instead of {number(run.acceptance.mean_length)}",
            run.label,
            name="counted_undrafted",
            affects="acceptance",
        )


def _about_chains(run: RunSummary) -> Iterator[Finding]:
    """Yield what is to be known of several K, and of the recorded chains."""
    recording = run.recording
    if run.mixed:
        differs = first_token_differs(run)
        yield note(
            f"rounds drafted {ks_of(run.ks)}: the acceptance length is as served, rates by depth "
            "count only the rounds that drafted that depth, and segments of the run are compared "
            f"at the run's mix of K{f'; {differs}' if differs else ''}",
            run.label,
            name="several_k",
            affects="acceptance",
        )
    if run.mixed and recording.chains:
        yield note(
            f"attention, hidden state and confidence by depth cover the chains of K = {run.depths} "
            "or more, so that every depth is compared over the same chains; `--by k` shows each K "
            "separately",
            run.label,
            name="several_k",
            affects="masses",
        )
    if not recording.chains:
        yield note(
            "no chain was recorded: the report shows acceptance, but nothing measured inside the "
            "drafter",
            run.label,
            name="no_chains",
            affects="masses",
        )
    if recording.broken_chains:
        yield note(
            f"{count(recording.broken_chains, 'recorded chain')} with values that are not finite; "
            "the means leave those values out",
            run.label,
            name="broken_chains",
            affects="masses",
        )
    if recording.chunked_chains and run.manifest.runner == "v1":
        yield note(
            f"{recording.chunked_chains:,} of {count(recording.chains, 'recorded chain')} belong "
            "to requests whose drafter cache may be wrong. This happens with vLLM's V1 runner at "
            "the ends of prompt chunks, near a context limit and, through the prefix cache, in "
            "later requests. These chains are flagged in the trace and included in the means",
            run.label,
            name="chunked_prefill",
            affects="masses",
        )


MOST_LOST = 0.05
"""Share of lost rows above which nothing is concluded: the lost ones may differ from the others."""


@question("Is there enough data to conclude anything?", Topic.GROUND)
def enough_data(case: Case) -> Finding:
    """Return whether there is enough data to conclude anything."""
    run = case.run
    rows = case.run.rounds + case.run.recording.chains + case.run.requests
    lost = case.run.recording.dropped / max(rows + case.run.recording.dropped, 1)
    record = ""
    if run.clusters < FEWEST_REQUESTS:
        record = (
            f"Record {FEW_REQUESTS} or more requests of different prompts."
            if run.noun == "request"
            else f"Record requests of {FEW_REQUESTS} or more {run.noun}s."
        )
    elif lost > MOST_LOST:
        record = "Record again on a disk and machine that keep up."
    elif run.cohort is not None and not run.cohort.enough:
        record = f"{capital(longer(run.cohort))}."
    loss = "rows may be missing" if run.problems else "no rows lost"
    if run.recording.dropped:
        loss = f"{count(run.recording.dropped, 'row')} lost ({percent(lost)})"
    in_part = ""
    if run.cohort is not None and run.cohort.enough:
        share = run.cohort.left_out / max(run.cohort.served.rounds, 1)
        in_part = f"; {percent(share)} of the rounds left out, of requests seen only in part"
    elif run.cohort is not None:
        in_part = "; most requests are seen only in part"
    return Finding(
        answer=Answer.NO if record else Answer.YES,
        headline=Headline.TOO_LITTLE_DATA if record else Headline.NEVER,
        statement=f"{requests_of(run)}, {count(run.rounds, 'round')}, "
        f"{ks_of(run.ks)}, {loss}{in_part}",
        estimate=float(run.requests),
        advice=record,
    )


@entry(
    about=ReplayCase,
    title="The measurement is not content-valid",
    topic=Topic.GROUND,
    thresholds=(
        Threshold(
            name="LOOPS_MOST",
            value=LOOPS_MOST,
            means="share of the answers that surely end in a repetition loop",
            source="driftscope: at K = 4 a fifth of loops makes a length of 2.5 one of 3.0",
        ),
    ),
    need=Need(
        words="prompts and stops that are recorded",
        met=lambda case: case.run.validity.content_valid is not None,
    ),
)
def not_content_valid(case: ReplayCase) -> Finding | None:
    """Its prompts are random tokens, its answers go on after their end, or too many of them are
    repetition loops. Acceptance and speed of such requests hold for no traffic."""
    validity = case.run.validity
    if validity.content_valid is not False:
        return None
    return Finding(
        severity=Severity.MEDIUM,
        answer=Answer.NO,
        statement="; ".join(validity.reasons),
        evidence={"looping": validity.looping, "answers": validity.answers},
        confidence=Trust.HIGH,
        because="the sender knows what it asked",
        advice="Ask again with prompts as users send them, without ignore_eos and with enough "
        "max_tokens: `driftscope pays MODEL --prompts my.jsonl`, or `driftscope replay URL "
        "--prompts my.jsonl`.",
    )


@question("Is this measurement valid?", Topic.GROUND, ReplayCase)
def valid_measurement(case: ReplayCase) -> Finding:
    """Return what a measurement is of, and the smallest change that it can show."""
    validity = case.run.validity
    return Finding(
        answer={True: Answer.YES, False: Answer.NO}.get(validity.content_valid),  # type: ignore[arg-type]
        statement=validity.words,
        estimate=validity.smallest_length_change,
    )


def requests_of(run: RunSummary) -> str:
    """Return the number of requests and, if some are not independent of each other, of how many
    independent groups."""
    requests, known = count(run.requests, "request"), run.independence
    if known is None or not known.repeated:
        return requests
    prompts = f" and {count(known.crossed, 'prompt')}" if known.crossed else ""
    return f"{requests} of {count(known.clusters, known.noun)}{prompts}"
