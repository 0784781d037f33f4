"""Units of a run: which of its requests count as independent of each other.

A request's unit is the first of these that the recording knows: session, conversation, question of
a replay, prompt; otherwise it is the request itself. A workload label is never a unit unless
`--cluster label` asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from driftscope.analysis.query.column_arrays import Codes
from driftscope.analysis.statistics.clusters import nested
from driftscope.errors import UsageError

SESSION, CONVERSATION, PAIR, PROMPT = "session", "conversation", "pair", "prompt_digest"
COLUMNS = (SESSION, CONVERSATION, PAIR, PROMPT, "label", "request")
"""Columns of a request that may be chosen as its unit."""
NOUNS = {
    SESSION: "session",
    CONVERSATION: "conversation",
    PAIR: "question",
    PROMPT: "prompt",
    "label": "label",
    "request": "request",
}
"""Word for one unit, by the column that it comes from."""
MIXED = "request group"
"""Word for units that come from several columns."""
SUSPECTED = "likely prompt"
Names = NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """Unit of each request of a run."""

    unit: Codes
    """Number of each request's unit, from 0, [requests]."""
    crossed: Codes | None = None
    """Number of each request's prompt, if prompts and units cross; None if one is nested in the
    other."""
    noun: str = NOUNS["request"]
    """Word for one unit."""
    seen: bool = False
    """Whether repeated prompts can be seen: the recording has digests, or a column was chosen."""
    suspected: bool = False
    """Whether units are groups of requests that only look alike."""
    in_time: Codes | None = None
    """Session or conversation of each request; None if the recording knows none."""
    prompt: Codes | None = None
    """Number of each request's prompt, -1 if not known; None if no prompt is known to repeat."""

    def __len__(self) -> int:
        return len(self.unit)


def own_units(requests: int) -> Units:
    """Return units of which each is one request."""
    return Units(unit=np.arange(requests))


def units_of(finished: pa.Table, at: Codes, requests: int, column: str | None = None) -> Units:
    """Return the units of `requests` requests.

    `finished` has the rows of those that ended, which are at the indices `at`. `column` is the
    column that the user chose as unit. Raises UsageError for an unknown one.
    """
    if column is not None and column not in COLUMNS:
        raise UsageError(f"--cluster {column!r}: give one of {', '.join(COLUMNS)}")
    names = {name: _names(finished, name, at, requests) for name in COLUMNS}
    if column is not None:
        return Units(unit=_codes(names[column], column), noun=NOUNS[column], seen=True)
    names[CONVERSATION] = _continued(names[CONVERSATION], names[PROMPT])
    seen = any(each is not None for each in names[PROMPT])
    if not any(_known(names[name]) for name in (SESSION, CONVERSATION, PAIR, PROMPT)):
        return own_units(requests)
    return _joined(names, seen)


def _joined(names: dict[str, Names], seen: bool) -> Units:
    """Return the units by sessions and conversations, by prompts, or by both where they cross."""
    alone = np.array([None] * len(names[PROMPT]), dtype=object)
    of_time, of_prompt = (
        _first(names, columns, alone) for columns in ((SESSION, CONVERSATION), (PAIR, PROMPT))
    )
    timed, prompts = _codes(of_time[0]), _codes(of_prompt[0])
    in_time = timed if _known(of_time[0]) else None
    prompt = _repeated(names[PROMPT])
    plain = Units(unit=prompts, noun=_noun(of_prompt[1]), seen=seen, in_time=in_time, prompt=prompt)
    if in_time is None:
        return plain
    unit, kinds = _combined(of_time, of_prompt)
    if nested(unit, prompts):
        return plain
    crossed = None if nested(prompts, unit) else prompts
    return replace(plain, unit=unit, crossed=crossed, noun=_noun(kinds))


_Found = tuple[Names, Names]
"""Name of the unit of each request, None if it has none, and the column that it comes from."""


def _first(names: dict[str, Names], columns: tuple[str, ...], alone: Names) -> _Found:
    """Return the first of these columns that each request has."""
    found, kind = alone.copy(), alone.copy()
    for column in reversed(columns):
        there = np.array([each is not None for each in names[column]], dtype=np.bool_)
        found[there] = _objects([(column, each) for each in names[column][there]])
        kind[there] = NOUNS[column]
    return found, kind


def _combined(first: _Found, second: _Found) -> tuple[Codes, Names]:
    """Return the units by the first kind of name, or by the second where a request has no first."""
    has = np.array([each is not None for each in first[0]], dtype=np.bool_)
    names, kinds = first[0].copy(), first[1].copy()
    names[~has], kinds[~has] = second[0][~has], second[1][~has]
    return _codes(names), kinds


def _names(finished: pa.Table, column: str, at: Codes, requests: int) -> Names:
    out = np.full(requests, None, dtype=object)
    recorded = finished.column(column) if column in finished.column_names else None
    if recorded is not None and recorded.null_count < len(recorded):
        out[at] = recorded.to_pylist()
    return out


def _continued(conversation: Names, prompt: Names) -> Names:
    """Return the conversations that have a later turn; a prompt alone is none."""
    pairs = zip(conversation, prompt, strict=True)
    going_on = {root for root, own in pairs if root is not None and root != own}
    kept = [each if each in going_on else None for each in conversation]
    return _objects(kept)


def _repeated(prompt: Names) -> Codes | None:
    codes = _codes(prompt)
    known = np.array([each is not None for each in prompt], dtype=np.bool_)
    if not known.any() or len(np.unique(codes[known])) == known.sum():
        return None
    return np.where(known, codes, -1)


def _known(names: Names) -> bool:
    return any(each is not None for each in names)


def _codes(names: Names, column: str = "") -> Codes:
    """Return a number for each name, in order of its first request; a request without a name has a
    number of its own, or shares one if the `column` is the user's choice."""
    if not _known(names) and column in ("", PROMPT):
        return np.arange(len(names))
    code, kinds = pd.factorize(names)
    nameless = code < 0
    code[nameless] = len(kinds)
    if column in ("", PROMPT):
        code[nameless] += np.arange(nameless.sum())
    _, first, rank = np.unique(code, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[rank])


def _noun(kinds: Names) -> str:
    words = {each or NOUNS["request"] for each in kinds.tolist()}
    if len(words) > 1:
        words -= {NOUNS["request"]}
    return words.pop() if len(words) == 1 else MIXED


def _objects(values: Sequence[object]) -> Names:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
