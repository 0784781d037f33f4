"""The close-up and the queries find the kind of text of a round separately, and agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ibis
import numpy as np
import pyarrow as pa
import pytest
from support.runs import Spec, manifest, rows

from driftscope.analysis.closeup import MAX_ROUNDS, OPENED_EACH, OpenedRequest, regions_of
from driftscope.analysis.query.record_views import IN_BUCKETS, cut, open_run
from driftscope.analysis.query.row_filters import Bucket
from driftscope.pipeline import summarise
from driftscope.trace.records import RequestRow
from driftscope.trace.writer import TraceWriter
from driftscope.trace.writer_files import create_run
from driftscope.vocabulary import Region

SPEC = Spec(requests=2 * OPENED_EACH, rounds=40)
UNKNOWN = 3
"""Number of requests without regions."""
Kind = tuple[str, bool] | None


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose answers change their kind of text, and are copied, at any token."""
    folder = tmp_path_factory.mktemp("agree") / "run"
    create_run(folder, manifest(SPEC))
    writer, random, number = TraceWriter(folder, source="engine0-1"), np.random.default_rng(7), 0
    for row in rows(SPEC):
        if isinstance(row, RequestRow):
            number += 1
            row = replace(row, **_regions(random, row.output_tokens)) if number > UNKNOWN else row
        writer.put(row)
    writer.close()
    return folder


def _regions(random: np.random.Generator, tokens: int) -> dict[str, Any]:
    starts = [0, *_places(random, tokens, tokens // 3)]
    copies = _places(random, tokens, 2 * (tokens // 9))
    return {
        "region_starts": starts,
        "region_codes": random.integers(len(Region.ALL), size=len(starts)).tolist(),
        "region_boundaries": starts[1::2],
        "region_copies": copies,
    }


def _places(random: np.random.Generator, tokens: int, number: int) -> list[int]:
    return sorted((1 + random.choice(tokens - 1, size=number, replace=False)).tolist())


def queried(run: Path) -> dict[tuple[str, int], Kind]:
    """Return the region of each round and whether it is copied, by request and position."""
    tables = open_run(run)
    names = frozenset(("region", "copied"))
    cut(tables, "verify", "verify", Bucket(sql="region || '|' || copied", names=names))
    schema = {"request": "string", "position": "int64", "bucket": "string"}
    found: pa.Table = tables.engine.rows(ibis.table(schema, name=f"verify_{IN_BUCKETS}"))
    tables.close()
    kinds: dict[tuple[str, int], Kind] = {}
    for row in found.to_pylist():
        region, _, copied = (row["bucket"] or "").partition("|")
        kinds[row["request"], row["position"]] = (region, copied == "1") if region else None
    return kinds


def shown(opened: OpenedRequest) -> list[Kind]:
    """Return the same of the rounds of a request, as its close-up shows them."""
    if not opened.region:
        return [None] * len(opened.position)
    return list(zip(opened.region, opened.copied, strict=True))


def test_each_round_of_each_opened_request_has_the_same_kind(run: Path) -> None:
    opened, wanted = summarise(open_run(run), "run").closeup.opened, queried(run)
    assert len(opened) == SPEC.requests
    seen: list[Kind] = []
    for each in opened:
        assert each.steps <= MAX_ROUNDS
        kinds = shown(each)
        assert kinds == [wanted[each.request, position] for position in each.position]
        seen += kinds
    assert len(seen) == len(wanted)
    assert {kind[0] for kind in seen if kind} == set(Region.ALL)
    assert {kind[1] for kind in seen if kind} == {True, False}
    assert seen.count(None) == UNKNOWN * SPEC.rounds


PROMPT = 100
ANSWER: dict[str, Any] = {
    "prompt_tokens": PROMPT,
    "region_starts": [0, 10, 20],
    "region_codes": [Region.ALL.index(name) for name in ("prose", "json", "prose")],
    "region_boundaries": [10, 20],
    "region_copies": [5, 13],
}


def at(*tokens: int) -> list[int]:
    """Return the positions of rounds that draft from these tokens of the answer on."""
    return [PROMPT + token - 2 for token in tokens]


def test_a_round_has_the_region_of_the_first_token_that_it_drafts() -> None:
    regions, copied = regions_of(at(1, 9, 10, 19, 20, 99), ANSWER)
    assert regions == ("prose", "prose", "json", "json", "prose", "prose")
    assert copied == (False, True, True, False, False, False)


def test_nothing_is_known_of_a_request_without_regions_or_without_a_row() -> None:
    assert regions_of(at(1), None) == ((), ())
    assert regions_of(at(1), {**ANSWER, "region_starts": None}) == ((), ())
    assert regions_of(at(1), {**ANSWER, "region_starts": []}) == ((), ())


def test_a_region_of_a_later_version_is_not_known() -> None:
    later = {**ANSWER, "region_codes": [0, len(Region.ALL), 0]}
    assert regions_of(at(1, 12), later) == ((), ())
    assert regions_of(at(1, 20), later)[0] == ("prose", "prose")
