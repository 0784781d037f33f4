"""Samples of a page in Prometheus' text format.

The page comes from another process. Lines of metrics that nobody asked for are skipped; a line of a
wanted metric that cannot be read makes the whole page unusable, because the rest would be
incomplete.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from driftscope.boundary.bounds import MAX_COUNT, MAX_METRIC_LINE_CHARS, MAX_METRIC_SAMPLES

_LABEL = r'[a-zA-Z_]\w*="(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rf"(?P<name>[a-zA-Z_:][\w:]*)(?:\{{(?P<labels>(?:{_LABEL},?)*)\}})?[ \t]+(?P<value>\S+)"
)
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


class BadPageError(ValueError):
    """A page that cannot be used; the message says which sample and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples_on(text: str, names: Collection[str]) -> Iterator[Sample]:
    """Yield the samples of the metrics with these `names`; raises BadPageError.

    Every value is a finite number of at most MAX_COUNT.
    """
    longest = max(map(len, names), default=0)
    number = 0
    for line in io.StringIO(text):
        first = line[: longest + 1].partition("{")[0].split(None, 1)
        name = first[0] if first else ""
        if name not in names:
            continue
        if len(line) > MAX_METRIC_LINE_CHARS:
            raise BadPageError(f"{name}: a line of more than {MAX_METRIC_LINE_CHARS} characters")
        if number == MAX_METRIC_SAMPLES:
            raise BadPageError(f"more than {MAX_METRIC_SAMPLES:,} samples")
        number += 1
        yield _sample(line)


def _sample(line: str) -> Sample:
    sample = _LINE.match(line)
    if sample is None:
        raise BadPageError(f"a line that is not a sample: {line.strip()[:80]}")
    labels = {k: _ESCAPE.sub(_unescaped, v) for k, v in _PAIR.findall(sample["labels"] or "")}
    return Sample(
        name=sample["name"], labels=labels, value=_number(sample["name"], sample["value"])
    )


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise BadPageError(f"{name}: {text[:40]}, not a number") from error
    if not math.isfinite(value) or abs(value) > MAX_COUNT:
        raise BadPageError(f"{name}: {text[:40]}, not a finite number up to {MAX_COUNT:.1e}")
    return value


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]
