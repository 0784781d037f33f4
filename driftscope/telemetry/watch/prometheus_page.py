"""Read driftscope's metrics from a page in Prometheus' text format, as points.

The page comes from another process. Every sample of a driftscope metric is checked, and one that
cannot be right makes the whole page unusable, because the rest would be incomplete. Other metrics
are skipped.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from driftscope.boundary.bounds import (
    MAX_COUNT,
    MAX_K,
    MAX_LABEL_CHARS,
    MAX_METRIC_LINE_CHARS,
    MAX_METRIC_SAMPLES,
)
from driftscope.telemetry.collect.instruments import (
    CONFIGURED_K,
    COUNTER,
    HISTOGRAM,
    INSTRUMENTS,
    Instrument,
)
from driftscope.telemetry.collect.tally import Key, Point, attributes
from driftscope.telemetry.export.scrape import label_name, metric_name

_LABEL = r'[a-zA-Z_]\w*="(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rf"(?P<name>[a-zA-Z_:][\w:]*)(?:\{{(?P<labels>(?:{_LABEL},?)*)\}})?[ \t]+(?P<value>\S+)"
)
_PAIR = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_BUCKET, _SUM = "_bucket", "_sum"
_LAST = "+Inf"
"""Bucket that counts every observation; the other buckets are not used here."""


class BadPageError(ValueError):
    """A page that cannot be used; the message says which sample and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """Instrument and part to which a sample name on a page belongs."""

    instrument: Instrument
    part: str = ""
    """Part of a histogram, _BUCKET or _SUM."""

    def key(self, labels: Mapping[str, str]) -> Key:
        """Return the series key; raise BadPageError for a label that no driftscope series has."""
        own = {name: labels.get(label_name(name), "") for name in self.instrument.attributes}
        if any(len(value) > MAX_LABEL_CHARS for value in own.values()):
            raise BadPageError(f"a label of more than {MAX_LABEL_CHARS} characters")
        return self.instrument.name, attributes({k: v for k, v in own.items() if v})


def points_on(text: str) -> dict[Key, Point]:
    """Return every driftscope series on a page; raises BadPageError."""
    values: dict[Key, float] = {}
    counts: dict[Key, float] = {}
    for number, line in enumerate(_own_lines(text)):
        if number == MAX_METRIC_SAMPLES:
            raise BadPageError(f"more than {MAX_METRIC_SAMPLES:,} samples")
        series, labels, value = _sample(line)
        if series.part == _BUCKET:
            if labels.get("le") == _LAST:
                counts[series.key(labels)] = value
        else:
            values[series.key(labels)] = value
    return {
        key: Point(name=key[0], attributes=key[1], value=value, buckets=_buckets(key, counts))
        for key, value in values.items()
    }


def _buckets(key: Key, counts: Mapping[Key, float]) -> tuple[int, ...]:
    """Return one bucket that holds every observation; () for a counter or gauge."""
    if INSTRUMENTS[key[0]].kind != HISTOGRAM:
        return ()
    if key not in counts:
        raise BadPageError(f'{key[0]}: a histogram without a bucket le="{_LAST}"')
    return (int(counts[key]),)


def _own_lines(text: str) -> Iterator[str]:
    for line in io.StringIO(text):
        first = line[: _LONGEST_NAME + 1].partition("{")[0].split(None, 1)
        name = first[0] if first else ""
        if name not in _SERIES:
            continue
        if len(line) > MAX_METRIC_LINE_CHARS:
            raise BadPageError(f"{name}: a line of more than {MAX_METRIC_LINE_CHARS} characters")
        yield line


def _sample(line: str) -> tuple[_Series, Mapping[str, str], float]:
    sample = _LINE.match(line)
    if sample is None:
        raise BadPageError(f"a line that is not a sample: {line.strip()[:80]}")
    name, series = sample["name"], _SERIES[sample["name"]]
    labels = {k: _ESCAPE.sub(_unescaped, v) for k, v in _PAIR.findall(sample["labels"] or "")}
    return series, labels, _checked(name, series, sample["value"])


def _checked(name: str, series: _Series, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise BadPageError(f"{name}: {text[:40]}, not a number") from error
    if not math.isfinite(value) or abs(value) > MAX_COUNT:
        raise BadPageError(f"{name}: {text[:40]}, not a finite number up to {MAX_COUNT:.1e}")
    if value < 0 and (series.part == _BUCKET or series.instrument.kind == COUNTER):
        raise BadPageError(f"{name}: {text[:40]}, and a count is 0 or more")
    if series.instrument is CONFIGURED_K and not (value <= MAX_K and value == int(value) >= 0):
        raise BadPageError(f"{name}: {text[:40]}, not a number of tokens from 0 to {MAX_K}")
    return value


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]


def _named() -> Iterator[tuple[str, _Series]]:
    for instrument in INSTRUMENTS.values():
        name = metric_name(instrument)
        if instrument.kind == HISTOGRAM:
            for part in (_BUCKET, _SUM):
                yield name + part, _Series(instrument=instrument, part=part)
        else:
            suffix = "_total" if instrument.kind == COUNTER else ""
            yield name + suffix, _Series(instrument=instrument)


_SERIES = dict(_named())
_LONGEST_NAME = max(map(len, _SERIES))
