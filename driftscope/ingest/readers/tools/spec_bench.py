"""Spec-Bench's answers: one JSON line per question.

Source: Spec-Bench, evaluation/eval.py. accept_lengths hold a length per round, with the target's
own token; the file of a baseline holds ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.boundary.bounds import MAX_K
from driftscope.ingest.fields import BadFigureError, numbers, objects
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import Histogram, RequestCounts
from driftscope.ingest.reader import Reader
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile

_LENGTHS = "accept_lengths"


def _choices(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = fields.get("choices")
    return list(objects(fields, "choices")) if isinstance(found, list) else []


def _recognises(file: ResultFile) -> bool:
    return any(_LENGTHS in choice for each in file.objects[:10] for choice in _choices(each))


def _read(file: ResultFile) -> Iterator[Figures]:
    yield over_requests(
        [_counts(each, choice) for each in file.objects for choice in _choices(each)[:1]],
        assumptions=("only the first answer of a question counts",),
    )


def _counts(question: Mapping[str, Any], choice: Mapping[str, Any]) -> RequestCounts:
    lengths = numbers(choice.get(_LENGTHS), _LENGTHS, MAX_K + 1)
    if any(each < 1 or each != int(each) for each in lengths):
        raise BadFigureError(f"{_LENGTHS} holds a value that is no number of tokens of a round")
    accepted = [int(each) - 1 for each in lengths]
    histogram: Histogram = tuple(accepted.count(at) for at in range(max(accepted, default=0) + 1))
    name = question.get("question_id")
    return RequestCounts(
        rounds=len(accepted),
        accepted=sum(accepted),
        histogram=histogram,
        question=None if name is None else f"question {str(name)[:100]}",
    )


READER = Reader(
    name="spec-bench",
    title="Spec-Bench answers",
    gives="acceptance length with interval over questions, rates by depth",
    lacks="drafted tokens, times to the first token",
    recognises=_recognises,
    read=_read,
)
