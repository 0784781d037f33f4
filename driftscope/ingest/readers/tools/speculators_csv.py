"""`acceptance.csv` of speculators' scripts/evaluate (0.9): one row per subset.

acceptance_length is 0 where nothing was drafted, and acceptance_at_pos_0 is the rate at depth 1.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.boundary.bounds import MAX_K
from driftscope.ingest.fields import BadFigureError, count, length, share
from driftscope.ingest.figures import Figures
from driftscope.ingest.reader import Reader
from driftscope.ingest.result_file import ResultFile

_HEAD = "subset,num_drafts"
_POSITION = re.compile(r"acceptance_at_pos_([0-9]{1,4})")


def _recognises(file: ResultFile) -> bool:
    return file.text.lstrip("\ufeff").startswith(_HEAD)


def _read(file: ResultFile) -> Iterator[Figures]:
    try:
        rows = list(csv.DictReader(io.StringIO(file.text.lstrip("\ufeff"))))
    except csv.Error as error:
        raise BadFigureError(f"not a table of commas ({error})") from error
    for row in rows:
        fields = {name: _value(name, text) for name, text in row.items() if name}
        accepted = length(fields, "acceptance_length")
        marginal = _marginal(fields)
        yield Figures(
            part=str(row.get("subset") or ""),
            k=len(marginal) or None,
            rounds=count(fields, "num_drafts"),
            drafted=count(fields, "num_draft_tokens"),
            accepted=count(fields, "num_accepted_tokens"),
            length=accepted or None,
            marginal=marginal or None,
        )


def _value(name: str, text: Any) -> Any:
    if name == "subset" or not text:
        return None
    try:
        return float(text)
    except (TypeError, ValueError) as error:
        raise BadFigureError(f"{name} is {str(text)[:40]!r}, not a number") from error


def _marginal(fields: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the rates by position, as far as they follow one another."""
    by_position = {}
    for name in fields:
        if match := _POSITION.fullmatch(name):
            by_position[int(match[1])] = share(fields, name)
    rates: list[float] = []
    for at in range(MAX_K):
        rate = by_position.get(at)
        if rate is None:
            break
        rates.append(rate)
    return tuple(rates)


READER = Reader(
    name="speculators",
    title="speculators acceptance.csv (0.9)",
    gives="acceptance length, rates by position and tokens of each subset",
    lacks="times, intervals",
    recognises=_recognises,
    read=_read,
)
