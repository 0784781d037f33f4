"""Whether clients measured what users send and get, and how small a change they can see.

A measurement is content-valid if its prompts are text, its answers end where the model ends them,
and few of them are repetition loops. Random tokens are accepted less often than text, what comes
after the end of an answer and loops more often: figures of such a run hold for no traffic.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from driftscope.analysis.number_words import count, percent
from driftscope.analysis.statistics.intervals import (
    FOR_POWER,
    Z95,
    Interval,
    poisson_upper_tail,
    share_interval,
)

TEXT, RANDOM, SERVED = "text", "random tokens", "what a server was asked"
PROMPT_TEXT, IGNORES_STOP = "prompt_text", "ignores_stop"
"""Keys below `Manifest.workload`, or below its "ingested": what the prompts are made of, and
whether requests told the server to go on after the end of an answer."""
LOOPS_MOST = 0.2
"""Share of the answers that end in a repetition loop above which figures are those of loops. This
is driftscope's own bound: at K = 4 a loop yields 5 tokens per round, so that a fifth of loops
makes a length of 2.5 one of 3.0."""
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
TEXT_LEAST, RANDOM_MOST = 0.0015, 0.001
"""Share of the pairs of words of one prompt that are equal: text has more than the first, random
tokens fewer than the second. Prose, code, JSON and chats have 0.010 or more, Finnish and Turkish
about 0.002, tokens drawn from vocabularies of 1,024 and of 49,152 have 0.0008 and 0.00001
(`make calibration`)."""
FIRST_WORDS = 200
_DOUBT = 0.01
"""Largest chance at which the other kind has so many equal pairs."""
RUN_EFFECT = 0.05
"""Relative standard deviation of a step's time from one run to the next, until two runs of one K
show it. driftscope's own choice: the same engine started again differs by about 1 % on a GPU under
CUDA graphs and by 8 to 13 % on a busy CPU (benchmarks/results, overhead). It counts like one pair
of runs beside those that are measured, because one pair may agree by chance."""


def kind_of_text(texts: Iterable[str]) -> str | None:
    """Return whether prompts are TEXT or RANDOM tokens; None if they have too few words to tell.

    Words of a text come again, because a few of them are frequent (Zipf's law); tokens that are
    drawn from a vocabulary nearly never do. Only pairs within the first words of one prompt count,
    so that prompts that are sent again, and single long lists, change nothing.
    """
    equal = pairs = 0
    for text in set(texts):
        words = Counter(match[0] for match in islice(_WORD.finditer(text), FIRST_WORDS))
        equal += sum(n * (n - 1) // 2 for n in words.values())
        pairs += words.total() * (words.total() - 1) // 2
    if equal and poisson_upper_tail(equal, RANDOM_MOST * pairs) < _DOUBT:
        return TEXT
    as_few = 1.0 - poisson_upper_tail(equal + 1, TEXT_LEAST * pairs)
    return RANDOM if as_few < _DOUBT else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Content of a measurement, and the smallest change that it can show."""

    content_valid: bool | None
    """Whether its figures hold for requests as users send them; None if that cannot be told."""
    reasons: tuple[str, ...]
    """Why it is not content-valid, or what is not known."""
    prompts: str | None
    """Content of the prompts: "text" or "random tokens"; None if that is not known."""
    ignores_stop: bool | None
    """Whether answers went on after their end; None if that is not known."""
    cut: int | None
    """Answers that ended at their largest number of tokens; None if that is not known."""
    looping: int | None
    """Answers that end in a repetition loop; None if none was checked."""
    answers: int | None
    questions: int | None
    """Number of different prompts; None for sums of another tool's file."""
    same_answers: int | None
    """Answers that repeat the answer to another prompt word for word."""
    warmup: int | None
    """Warm-up requests that no figure counts; None if the file does not say it."""
    smallest_length_change: float | None
    """Relative change of the acceptance length that a second measurement of other prompts shows in
    80 % of cases; with the same prompts a smaller one. None without an interval, or if it tells of
    none."""
    smallest_tpot_change: float | None
    """Likewise of the time per output token, with what a restart of the server changes."""

    @property
    def words(self) -> str:
        """The block as one sentence, without a full stop."""
        head = {True: "content-valid", False: "not content-valid"}.get(
            self.content_valid,  # type: ignore[arg-type]
            "cannot tell whether it is content-valid",
        )
        known = [*self.reasons, *(() if self.content_valid is False else self._facts())]
        sizes = [
            f"{percent(size) if size < 1 else 'more than 100%'} in {name}"
            for size, name in (
                (self.smallest_length_change, "the acceptance length"),
                (self.smallest_tpot_change, "the time per token"),
            )
            if size is not None
        ]
        least = [f"the smallest change that it can show is {' and '.join(sizes)}"] if sizes else []
        return f"{head}: {'; '.join([*known, *least])}"

    def _facts(self) -> list[str]:
        facts = ["real text" if self.prompts == TEXT else self.prompts] if self.prompts else []
        if self.cut and self.answers:
            facts.append(f"{self.cut:,} of {self.answers:,} answers cut at max_tokens")
        elif self.ignores_stop is False:
            facts.append("answers end where the model ends them")
        if self.looping and self.answers:
            facts.append(f"{self.looping:,} of {self.answers:,} end in a repetition loop")
        if self.questions and self.answers:
            times = self.answers / self.questions
            asked = "" if times == 1 else f", each asked {times:.3g} times"
            facts.append(f"{count(self.questions, 'different prompt')}{asked}")
        if self.same_answers:
            facts.append(f"{self.same_answers:,} answers repeat that to another prompt")
        if self.warmup is not None:
            left = count(self.warmup, "warm-up request")
            facts.append(f"{left} left out" if self.warmup else "no warm-up was left out")
        return facts


def validity_of(
    workload: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    warmup: int | None,
    length: tuple[float | None, Interval | None],
    tpot: Sequence[float],
    starts: int = 1,
) -> Validity:
    """Return what a replay, or another tool's file, is of. `rows` are its answered requests without
    warm-up, `length` the acceptance length of its first condition with the interval, `tpot` the
    times per token of that condition, one per prompt."""
    about = {**workload, **(workload.get("ingested") or {})}
    prompts, ignores = about.get(PROMPT_TEXT), about.get(IGNORES_STOP)
    checked = [row["looping"] for row in rows if row["looping"] is not None]
    looping = sum(checked) if checked else None
    ended = [row["finish_reason"] == "length" for row in rows if row["finish_reason"] is not None]
    answers: dict[str, set[str]] = {}
    for row in rows:
        if row["digest"] is not None:
            answers.setdefault(row["digest"], set()).add(row["pair"])
    wrong, unknown = content_of(prompts, ignores)
    if looping and share_interval(looping, len(checked)).low > LOOPS_MOST:
        share = percent(looping / len(checked))
        wrong = (
            *wrong,
            f"{share} of the answers end in a repetition loop, which is accepted whole",
        )
    return Validity(
        content_valid=False if wrong else None if unknown else True,
        reasons=wrong or unknown,
        prompts=prompts,
        ignores_stop=ignores,
        cut=sum(ended) if ended else None,
        looping=looping,
        answers=len(rows) or None,
        questions=len({row["pair"] for row in rows}) or None,
        same_answers=sum(
            digest is not None and len(answers[digest]) > 1
            for digest in (row["digest"] for row in rows)
        )
        if answers
        else None,
        warmup=warmup,
        smallest_length_change=smallest_change(*length),
        smallest_tpot_change=_smallest_time(tpot, starts),
    )


def content_of(
    prompts: str | None, ignores_stop: bool | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return why requests of this kind are none that users send, and what is not known of them."""
    wrong, unknown = [], []
    if prompts == SERVED:
        return (), ()
    if prompts == RANDOM:
        wrong.append("the prompts are random tokens, which are accepted less often than text")
    elif prompts is None:
        unknown.append("what the prompts are made of is not recorded")
    if ignores_stop:
        wrong.append(
            "answers go on after their end (ignore_eos): what comes then is no answer, and often a "
            "loop that is accepted whole"
        )
    elif ignores_stop is None:
        unknown.append("whether answers stopped at their end is not recorded")
    return tuple(wrong), tuple(unknown)


def smallest_change(value: float | None, interval: Interval | None) -> float | None:
    """Return the relative increase that a second measurement like this one decides in 80 % of
    cases, from half the width of its interval."""
    if not value or interval is None:
        return None
    return _decided((interval.high - interval.low) / 2.0 / value)


def _decided(half: float) -> float | None:
    """Return the increase for half of a relative interval of one measurement; that of the other
    grows with what it measures. None if none is decided."""
    half, change = math.sqrt(FOR_POWER) * half, 0.0
    for _ in range(100):
        change = half * math.hypot(1.0, 1.0 + change)
    return change if half < 1.0 else None


def _smallest_time(times: Sequence[float], starts: int) -> float | None:
    """Return the same of the mean of these times, each server started `starts` times."""
    if len(times) < 2 or not (mean := math.fsum(times) / len(times)):
        return None
    square = math.fsum((one - mean) ** 2 for one in times) / (len(times) - 1) / len(times)
    return _decided(Z95 * math.hypot(math.sqrt(square) / mean, RUN_EFFECT / math.sqrt(starts)))
