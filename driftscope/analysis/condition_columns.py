"""Columns that a condition on rows may name; without the parser, which help and completion do not
need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ValueType(StrEnum):
    """Type of the value that an expression yields."""

    NUMBER = "a number"
    TEXT = "a text"
    TRUTH = "true or false"
    FIGURE = "a figure"
    """A number or a text, which only the run shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One documented column."""

    type: str
    """Type of the column, as Ibis names it."""
    meaning: str

    @property
    def kind(self) -> ValueType:
        """Kind of value in the column."""
        return ValueType.TEXT if self.type == "string" else ValueType.NUMBER


def _column(type_: str, meaning: str) -> Column:
    return Column(type=type_, meaning=meaning)


_OF_ROWS = {
    "time_s": _column("float64", "Unix time in seconds"),
    "position": _column("int64", "index of the last verified token in its request, from 0"),
    "context": _column("int64", "length of the context in tokens, position + 1"),
    "batch": _column("int64", "requests in the round's engine step"),
    "k": _column("int64", "draft tokens that the round verified, or that the chain has"),
    "replica": _column("int64", "data-parallel rank"),
    "request": _column("string", "the request's id"),
    "execution": _column("string", "how the drafter of a recorded chain ran, such as eager"),
}
_OF_REQUESTS = {
    "label": _column("string", "workload label, else the LoRA adapter"),
    "adapter": _column("string", "LoRA adapter with which the target served the request"),
    "prompt_tokens": _column("int64", "tokens of the prompt"),
    "output_tokens": _column("int64", "tokens of the answer"),
    "temperature": _column("float64", "sampling temperature"),
    "finish_reason": _column("string", "why the request ended, such as stop or length"),
    "structured": _column("string", "kind of structured output, such as json, or none"),
}
WEIGHTS = "weights"
_OF_RUNS = {
    WEIGHTS: _column("int64", "updates of the served weights before the row, 0: as started"),
    "runner": _column("string", "vLLM's model runner, such as v2"),
    "mode": _column("string", "how the engine runs its models, such as full graphs"),
}
_OF_REGIONS = {
    "region": _column("string", "kind of text that the round drafts, such as code or json"),
    "language": _column(
        "string", "class of the language that the fence of the text names, or no fence"
    ),
    "boundary": _column("int64", "tokens since a block of text last began, null before the first"),
    "copied": _column("int64", "1 if the drafted text repeats an earlier passage, else 0"),
}
OF_REQUESTS = tuple(_OF_REQUESTS)
"""Columns of requests; null in rows of a request that has not finished."""
OF_RUNS = tuple(_OF_RUNS)
"""Columns that follow from the run, and from the time of the row."""
OF_REGIONS = tuple(_OF_REGIONS)
"""Columns of the text at a round's first drafted token, see `driftscope.regions`; null in rows of a
request that has not finished, and where regions were not recorded."""
COLUMNS: Mapping[str, Column] = {**_OF_ROWS, **_OF_REQUESTS, **_OF_REGIONS, **_OF_RUNS}
"""All columns by name. `execution` is null in a round without a recorded chain, unless all chains
of the run ran in the same way."""
OF_STEPS = ("time_s", "batch", "k", "replica", "execution", *OF_RUNS)
"""Columns that a worker's step has, too; conditions on other columns do not restrict steps."""

Names = frozenset[str]
