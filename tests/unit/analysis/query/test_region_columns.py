"""Regions of rounds, looked up by queries and by hand."""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.simulate import Truth, simulate

from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.query.row_filters import Filter
from driftscope.errors import NoDataError
from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Language, Region

pytestmark = pytest.mark.slow

TRUTH = Truth(
    k=4,
    requests=30,
    rounds=20,
    conditional=(0.8, 0.7, 0.6, 0.5),
    replicas=2,
    regions={"prose": (0.5, 0.0), "json": (0.3, -1.0), "code": (0.2, 0.5)},
    boundary=-1.0,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("regions") / "run", TRUTH)


def by_hand(run: Path) -> list[tuple[str, int | None]]:
    """Return the region and the distance to the last boundary of each round."""
    trace = read_trace(run)
    requests = {(row["replica"], row["request"]): row for row in trace.request.to_pylist()}
    found = []
    for row in trace.verify.to_pylist():
        mine = requests[row["replica"], row["request"]]
        token = row["position"] + 2 - mine["prompt_tokens"]
        code = mine["region_codes"][bisect_right(mine["region_starts"], token) - 1]
        before = bisect_right(mine["region_boundaries"], token)
        since = token - mine["region_boundaries"][before - 1] if before else None
        if row["drafted"]:
            found.append((Region.ALL[code], since))
    return found


def languages_by_hand(run: Path) -> list[str]:
    """Return the language of each round."""
    trace = read_trace(run)
    requests = {(row["replica"], row["request"]): row for row in trace.request.to_pylist()}
    found = []
    for row in trace.verify.to_pylist():
        mine = requests[row["replica"], row["request"]]
        token = row["position"] + 2 - mine["prompt_tokens"]
        if row["drafted"]:
            at = bisect_right(mine["region_starts"], token) - 1
            found.append(Language.ALL[mine["region_languages"][at]])
    return found


def test_rounds_are_split_by_the_region_of_their_first_drafted_token(run: Path) -> None:
    wanted = Counter(region for region, _ in by_hand(run))
    found = summarise(open_run(run), "run", by="region").segments
    assert {each.label: each.rounds for each in found} == wanted


def test_rounds_of_code_are_split_by_the_language_of_their_fence(run: Path) -> None:
    found = {
        each.label: each.rounds for each in summarise(open_run(run), "run", by="language").segments
    }
    assert found == Counter(languages_by_hand(run))
    assert set(found) == {"python", "rust", "no fence"}
    code = sum(region == "code" for region, _ in by_hand(run))
    assert found["python"] + found["rust"] == code


def test_languages_of_an_older_run_are_not_recorded(run: Path, tmp_path: Path) -> None:
    """Its regions are."""
    older = tmp_path / "older"
    shutil.copytree(run, older)
    files = sorted(older.glob("request*.parquet"))
    for path in files:
        table = pq.read_table(path, partitioning=None)
        pq.write_table(table.drop_columns("region_languages"), path)
    assert files
    found = summarise(open_run(older), "run", by="language").segments
    assert [each.label for each in found] == ["(not recorded)"]
    by_region = [summarise(open_run(each), "run", by="region").segments for each in (run, older)]
    assert by_region[0] == by_region[1]


def test_rounds_are_split_by_the_distance_to_the_last_boundary(run: Path) -> None:
    def name(since: int | None) -> str:
        if since is None:
            return "none before"
        near = "0 to 3" if since < 4 else "4 to 15" if since < 16 else "16 and more"
        return f"{near} tokens after a boundary"

    found = summarise(open_run(run), "run", by="boundary").segments
    assert {e.label: e.rounds for e in found} == Counter(name(since) for _, since in by_hand(run))


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("region = 'json'", lambda region, _: region == "json"),
        (
            "region in ('json', 'code') and boundary < 4",
            lambda region, since: region != "prose" and since is not None and since < 4,
        ),
        ("language = 'rust' or language = 'python'", lambda region, _: region == "code"),
        ("boundary is null", lambda _, since: since is None),
        ("copied = 0", lambda *_: True),
    ],
)
def test_a_condition_may_name_them(run: Path, where: str, kept) -> None:  # type: ignore[no-untyped-def]
    some = summarise(open_run(run), "run", only=Filter(where=where))
    assert some.rounds == sum(kept(*each) for each in by_hand(run))


def test_a_run_without_regions_says_not_recorded(tmp_path: Path) -> None:
    plain = simulate(tmp_path / "run", replace(TRUTH, regions={}, boundary=0.0))
    found = summarise(open_run(plain), "run", by="region")
    assert [each.label for each in found.segments] == ["(not recorded)"]
    assert found.groups.region == ()
    with pytest.raises(NoDataError):
        summarise(open_run(plain), "run", only=Filter(where="region = 'json'"))


def test_the_summary_compares_regions_inside_each_request(run: Path) -> None:
    groups = summarise(open_run(run), "run").groups
    rounds = Counter(region for region, _ in by_hand(run))
    assert {each.name: each.rounds for each in groups.region} == rounds
    kept = {each.second: each.kept for each in groups.regions_within_request}
    assert kept["json"] < 0.8 < 1.0 < kept["code"]
    assert groups.boundary_within_request is not None
    assert groups.boundary_within_request.kept < 0.9
