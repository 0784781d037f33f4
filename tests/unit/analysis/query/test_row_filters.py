"""Views of records and filters of rows, on both query engines."""

from __future__ import annotations

import functools
import shutil
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.analyses import assert_same, written
from support.runs import Spec, write_run
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis import closeup
from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.query.row_filters import BY_LABEL, Filter, since_s
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.errors import DamagedTraceError, NoDataError, UsageError
from driftscope.json_report import to_json
from driftscope.pipeline import conclude, summarise
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Language, Region

pytestmark = pytest.mark.slow

TRUTH = Truth(
    requests=80,
    rounds=20,
    batches=(2, 6),
    replicas=2,
    mode="full graphs",
    eager_above=4,
    prompts=(
        Prompts(label="short", tokens=(100, 120), temperature=0.0, structured="json"),
        Prompts(label="long", tokens=(2000, 2020), temperature=0.5, shift=-1.0),
    ),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("filtered") / "run", TRUTH)


@functools.cache
def _summary(run: Path, where: str | None = None, by: str = BY_LABEL) -> RunSummary:
    """Return a summary of a run that no test changes."""
    return summarise(open_run(run), "run", only=Filter(where=where), by=by)


@pytest.mark.parametrize(
    "where",
    [
        "label = 'long'",
        "prompt_tokens > 1000",
        "temperature > 0",
        "context >= 2000",
        "structured = 'none' AND runner = 'v2'",
    ],
)
def test_a_condition_keeps_some_requests(run: Path, where: str) -> None:
    whole = _summary(run)
    (expected,) = (segment for segment in whole.segments if segment.label == "long")
    some = _summary(run, where)
    assert (some.requests, some.rounds) == (expected.requests, expected.rounds)
    assert some.acceptance.mean_length == pytest.approx(expected.mean_length)
    assert some.hidden.growth == pytest.approx(expected.growth)
    assert [segment.label for segment in some.segments] == ["long"]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("label", ["long", "short"]),
        ("prompt", ["64 to 127 tokens", "1,024 to 2,047 tokens"]),
        ("temperature", ["0.0", "0.5"]),
        ("replica", ["0", "1"]),
        ("structured", ["json", "none"]),
        ("runner", ["v2"]),
        ("mode", ["full graphs"]),
        ("hour", ["hour 1"]),
        ("finish", ["length"]),
    ],
)
def test_segments_hold_all_rounds_once(run: Path, by: str, names: list[str]) -> None:
    found = _summary(run, by=by)
    assert [segment.label for segment in found.segments] == names
    assert sum(segment.rounds for segment in found.segments) == found.rounds
    assert all(segment.growth and segment.self_mass for segment in found.segments)
    assert {segment.by for segment in found.segments} == {by}


@pytest.mark.parametrize("by", ["context", "batch", "execution", "2s"])
def test_rounds_of_one_request_may_be_in_several_segments(run: Path, by: str) -> None:
    found = _summary(run, by=by)
    assert len(found.segments) > 1
    assert sum(segment.rounds for segment in found.segments) == found.rounds
    assert sum(segment.requests for segment in found.segments) > found.requests
    assert all(segment.growth is not None for segment in found.segments)


def test_a_segment_says_what_the_run_cut_down_to_it_says(run: Path) -> None:
    for segment in _summary(run, by="execution").segments:
        where = f"execution = '{segment.label}'"
        some = _summary(run, where)
        assert some.rounds == segment.rounds
        assert some.requests >= segment.requests  # some have chains there that were never verified
        assert some.acceptance.mean_length == pytest.approx(segment.mean_length)
        assert some.acceptance.mean_length_interval == segment.mean_length_interval
        assert some.hidden.growth == pytest.approx(segment.growth)
        assert some.attention.self_mass[-1] == pytest.approx(segment.self_mass)


def test_steps_are_narrowed_by_what_they_have(run: Path) -> None:
    def batches(where: str) -> set[int]:
        some = _summary(run, where)
        return {cell.batch for cell in some.cells}

    assert max(batches("mode <> 'context' and batch <= 4")) <= 4, "no column but a word in a text"
    assert min(batches("execution = 'eager'")) > 4
    assert batches("label = 'long'") == batches("true")


def test_of_rounds_without_a_recorded_chain_the_execution_is_not_known(tmp_path: Path) -> None:
    truth = replace(TRUTH, rates=(0.3,), replicas=1)
    found = summarise(open_run(simulate(tmp_path / "run", truth)), "run", by="execution")
    by_name = {segment.label: segment for segment in found.segments}
    assert set(by_name) == {"(not recorded)", "eager", "full"}
    assert by_name["(not recorded)"].growth is None
    assert sum(segment.rounds for segment in found.segments) == found.rounds


def test_a_time_in_words() -> None:
    assert since_s("30m", 10_000.0) == 8200.0
    assert since_s("1970-01-01T01:00:00", 0.0) == 3600.0
    with pytest.raises(UsageError, match="neither a span"):
        since_s("yesterday", 0.0)


@pytest.mark.parametrize("where", ["no_such_column > 1", "label =", "accepted = 0"])
def test_a_condition_that_makes_no_sense_says_what_may_be_named(where: str) -> None:
    """Before any run is looked at."""
    with pytest.raises(UsageError, match="prompt_tokens"):
        Filter(where=where)


def test_the_end_of_a_run_without_rounds_is_no_data(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", Spec(requests=0))
    with pytest.raises(NoDataError):
        summarise(open_run(path), "run", only=Filter(since="1h"))


@pytest.mark.parametrize("by", ["9" * 400 + "d", "0s", "0.0001s", "colour"])
def test_what_is_neither_a_column_nor_a_span_is_refused(run: Path, by: str) -> None:
    with pytest.raises(UsageError, match="not one of label"):
        _summary(run, by=by)
    with pytest.raises(UsageError, match="neither a span"):
        since_s("9" * 400 + "d", 0.0)


def test_a_run_is_cut_into_as_many_spans_as_there_are(run: Path) -> None:
    found = _summary(run, by="0.001s")
    names = [segment.label for segment in found.segments]
    assert len(names) == len(set(names)) > 100
    assert sum(segment.rounds for segment in found.segments) == found.rounds


WITH_REGIONS = Truth(
    k=4,
    requests=30,
    rounds=20,
    conditional=(0.8, 0.7, 0.6, 0.5),
    replicas=2,
    regions={"prose": (0.5, 0.0), "json": (0.3, -1.0), "code": (0.2, 0.5)},
    boundary=-1.0,
)


@pytest.fixture(scope="module")
def of_regions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("regions") / "run", WITH_REGIONS)


def by_hand(of_regions: Path) -> list[tuple[str, int | None, str]]:
    """Return the region of each round, the distance to the last boundary, and the language."""
    trace = read_trace(of_regions)
    requests = {(row["replica"], row["request"]): row for row in trace.request.to_pylist()}
    found = []
    for row in trace.verify.to_pylist():
        mine = requests[row["replica"], row["request"]]
        token = row["position"] + 2 - mine["prompt_tokens"]
        at = bisect_right(mine["region_starts"], token) - 1
        before = bisect_right(mine["region_boundaries"], token)
        since = token - mine["region_boundaries"][before - 1] if before else None
        if row["verified"]:
            language = Language.ALL[mine["region_languages"][at]]
            found.append((Region.ALL[mine["region_codes"][at]], since, language))
    return found


def _distance(since: int | None) -> str:
    if since is None:
        return "none before"
    near = "0 to 3" if since < 4 else "4 to 15" if since < 16 else "16 and more"
    return f"{near} tokens after a boundary"


@pytest.mark.parametrize("by", ["region", "boundary", "language"])
def test_rounds_are_split_by_the_place_of_their_first_drafted_token(
    of_regions: Path, by: str
) -> None:
    rounds = [
        {"region": region, "boundary": _distance(since), "language": language}
        for region, since, language in by_hand(of_regions)
    ]
    found = {segment.label: segment.rounds for segment in _summary(of_regions, by=by).segments}
    assert found == Counter(row[by] for row in rounds)
    of_code = {row["language"] for row in rounds if row["region"] == "code"}
    assert of_code == {"python", "rust"}


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("region = 'json'", lambda region, *_: region == "json"),
        (
            "region in ('json', 'code') and boundary < 4",
            lambda region, since, _: region != "prose" and since is not None and since < 4,
        ),
        ("language = 'rust' or language = 'python'", lambda region, *_: region == "code"),
        ("boundary is null", lambda _region, since, _: since is None),
        ("copied = 0", lambda *_: True),
    ],
)
def test_a_condition_may_name_them(of_regions: Path, where: str, kept) -> None:  # type: ignore[no-untyped-def]
    some = _summary(of_regions, where)
    assert some.rounds == sum(kept(*row) for row in by_hand(of_regions))


def test_a_run_without_regions_says_not_recorded(tmp_path: Path) -> None:
    plain = simulate(tmp_path / "run", replace(WITH_REGIONS, regions={}, boundary=0.0))
    found = summarise(open_run(plain), "run", by="region")
    assert [segment.label for segment in found.segments] == ["(not recorded)"]
    assert found.groups.region == ()
    with pytest.raises(NoDataError, match="no round in it meets"):
        summarise(open_run(plain), "run", only=Filter(where="region = 'json'"))


def test_the_summary_compares_regions_inside_each_request(of_regions: Path) -> None:
    groups = _summary(of_regions).groups
    rounds = Counter(region for region, *_ in by_hand(of_regions))
    assert {group.name: group.rounds for group in groups.region} == rounds
    kept = {pair.second: pair.kept for pair in groups.regions_within_request}
    assert kept["json"] < 0.8 < 1.0 < kept["code"]
    assert groups.boundary_within_request.kept < 0.9


ALIKE = 1e-6
"""Float32's own precision: masses that follow from others are restored in float64."""


def _both(path: Path) -> tuple[RunSummary, RunSummary]:
    return summarise(open_run(path), "run"), summarise(read_trace(path), "run")


@pytest.mark.parametrize(
    "world",
    [
        Spec(labels=("chat", None), undrafted=("k_zero", "no_draft"), chunked=2),
        Spec(layers=2, windowed=(1,), sink=(0.4, 0.3), norm_output=True, every=3),
        Spec(tensor_parallel=2, data_parallel=2, requests=6),
        Spec(heads=0),
        Truth(requests=60, replicas=2, layers=2),
    ],
    ids=["plain", "windowed", "ranks", "no attention", "replicas"],
)
def test_files_give_the_same_figures_as_rows_in_memory(tmp_path: Path, world: Spec | Truth) -> None:
    assert_same(*_both(written(tmp_path / "run", world)), ALIKE)


def test_no_figure_depends_on_what_a_folder_is_called(tmp_path: Path) -> None:
    """Not on names like a partition's, nor on one that as a pattern would match another run's."""
    plain = write_run(tmp_path / "plain", Spec(requests=6, labels=("a", "b")))
    inner = Path("accepted=8", "replica=3", "time_s=1", "\udcff")
    other = write_run(tmp_path / "other", Spec(requests=4, growth=1.0))
    shutil.copytree(other, tmp_path / "aXb" / inner)
    named = shutil.copytree(plain, tmp_path / "a[X]b" / inner)
    ours, wanted = (to_json(conclude([summarise(path, "run")])) for path in (named, plain))
    assert ours == wanted


def test_columns_that_differ_in_case_only_are_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", Spec(requests=4))
    file = next(path.glob("verify-*.parquet"))
    table = pq.read_table(file)
    more = table.append_column("Accepted", table.column("verified"))
    pq.write_table(more.replace_schema_metadata(table.schema.metadata), file)
    with pytest.raises(DamagedTraceError, match=f"{file.name}: has 2 columns named 'accepted'"):
        open_run(path)


def test_a_run_that_goes_on_is_read_to_its_last_batch(tmp_path: Path) -> None:
    there, read = _both(simulate(tmp_path / "run", Truth(requests=20), sealed=False))
    assert_same(there, read, ALIKE)
    assert there.problems


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    file = next(path.glob("verify-*.parquet"))
    file.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DamagedTraceError, match=file.name):
        open_run(path)


def test_requests_are_opened_alike_in_a_run_of_many_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There they are looked for one by one, where their steps are."""
    path = simulate(tmp_path / "run", Truth(requests=40, rounds=12))
    usual = summarise(open_run(path), "run").closeup
    monkeypatch.setattr(closeup, "ONE_BY_ONE", 0)
    assert summarise(open_run(path), "run").closeup == usual


def _without_values(run: Path, *names: str) -> Path:
    """Empty columns of the run's chains, as a mutation of its file did; return the run."""
    file = next(run.glob("draft-*.parquet"))
    table = pq.read_table(file)
    for name in {*names} & {*table.column_names}:
        at = table.column_names.index(name)
        column = pa.nulls(len(table), table.schema.field(at).type)
        table = table.set_column(at, table.schema.field(at), column)
    pq.write_table(table, file)
    for status in run.glob("status-*"):
        status.unlink()  # it has the checksum of the file as it was
    return run


def test_chains_without_the_masses_that_others_are_made_from_are_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    _without_values(run, "sink_mass", "prompt_mass", "self_mass", "null_mass")
    with pytest.raises(DamagedTraceError, match="lacks columns that others are made from"):
        summarise(open_run(run), "run")
