"""Read driftscope's metrics from a page in Prometheus' text format, as points.

The page comes from another process. Every sample of a driftscope metric is checked, and one that
cannot be right makes the whole page unusable, because the rest would be incomplete. Other metrics
are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from driftscope.boundary.bounds import MAX_K, MAX_LABEL_CHARS
from driftscope.telemetry.collect.instruments import (
    CONFIGURED_K,
    COUNTER,
    HISTOGRAM,
    INSTRUMENTS,
    Instrument,
)
from driftscope.telemetry.collect.tally import Key, Point, attributes
from driftscope.telemetry.export.scrape import label_name, metric_name
from driftscope.telemetry.watch.page_samples import BadPageError, Sample, samples_on

_BUCKET, _SUM = "_bucket", "_sum"
_LAST = "+Inf"
"""Bucket that counts every observation; the other buckets are not used here."""


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
    for sample in samples_on(text, _SERIES):
        series, labels = _SERIES[sample.name], sample.labels
        value = _checked(sample, series)
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


def _checked(sample: Sample, series: _Series) -> float:
    name, value = sample.name, sample.value
    if value < 0 and (series.part == _BUCKET or series.instrument.kind == COUNTER):
        raise BadPageError(f"{name}: {value:g}, and a count is 0 or more")
    if series.instrument is CONFIGURED_K and not (value <= MAX_K and value == int(value) >= 0):
        raise BadPageError(f"{name}: {value:g}, not a number of tokens from 0 to {MAX_K}")
    return value


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
