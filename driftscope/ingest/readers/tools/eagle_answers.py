"""Answers of the EAGLE repository's evaluation: one JSON line per question.

Source: SafeAILab/EAGLE, eagle/evaluation. idxs is the index of the last round, so that a turn has
idxs + 1 rounds, which yield new_tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.ingest.fields import BadFigureError, numbers, objects
from driftscope.ingest.figures import Figures
from driftscope.ingest.histogram import RequestCounts
from driftscope.ingest.reader import Reader
from driftscope.ingest.request_figures import over_requests
from driftscope.ingest.result_file import ResultFile


def _choices(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = fields.get("choices")
    return list(objects(fields, "choices")) if isinstance(found, list) else []


def _recognises(file: ResultFile) -> bool:
    choices = [choice for each in file.objects[:10] for choice in _choices(each)]
    return any("idxs" in each and "new_tokens" in each for each in choices)


def _read(file: ResultFile) -> Iterator[Figures]:
    yield over_requests(
        [_counts(choice) for each in file.objects for choice in _choices(each)[:1]],
        assumptions=("a turn has idxs + 1 rounds; only the first answer of a question counts",),
    )


def _counts(choice: Mapping[str, Any]) -> RequestCounts:
    last, tokens = (numbers(choice.get(name), name) for name in ("idxs", "new_tokens"))
    if len(last) != len(tokens):
        raise BadFigureError("idxs and new_tokens have different numbers of turns")
    rounds = sum(int(each) + 1 for each in last)
    # A cut end has fewer tokens than rounds would yield; a round yields at least one.
    return RequestCounts(rounds=rounds, accepted=max(int(sum(tokens)) - rounds, 0))


READER = Reader(
    name="eagle-answers",
    title="answers of the EAGLE repository's evaluation",
    gives="acceptance length with interval over questions",
    lacks="rates by depth, drafted tokens",
    recognises=_recognises,
    read=_read,
)
