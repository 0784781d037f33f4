"""Names, units and words of the metrics."""

from __future__ import annotations

import re
from itertools import pairwise

from driftscope.metrics.catalogue import DEFINITIONS
from driftscope.telemetry.instruments import COUNTER, GAUGE, HISTOGRAM, INSTRUMENTS


def test_every_instrument_says_all_it_must() -> None:
    for name, one in INSTRUMENTS.items():
        assert one.name == name and re.fullmatch(r"(driftscope|gen_ai)(\.[a-z0-9_]+)+", name)
        assert one.kind in (COUNTER, GAUGE, HISTOGRAM)
        assert re.fullmatch(r"1|s|nat|\{[a-z]+\}", one.unit), name
        assert one.description.endswith("."), name
        assert all(low < high for low, high in pairwise(one.bounds)), name
        assert not one.bounds or one.bounds[0] >= 0, "Prometheus then has no sum"


def test_words_are_those_of_the_definitions() -> None:
    meanings = [definition.meaning for definition in DEFINITIONS.values()]
    defined = [
        one
        for one in INSTRUMENTS.values()
        if any(meaning in one.description for meaning in meanings)
    ]
    assert len(defined) >= 11


def test_a_counter_is_described_by_what_it_counts() -> None:
    for one in INSTRUMENTS.values():
        if one.kind == COUNTER:
            assert not re.match(r"(Share|Ratio|Mean|Average)\b", one.description), one.name
            counted = one.unit.strip("{}")
            if counted in ("round", "step", "request", "chain", "row", "span", "token"):
                assert f"{counted}s" in one.description.partition(".")[0].lower(), one.name
