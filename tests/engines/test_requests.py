"""A real vLLM's requests: over several turns, cut off by its end, and on other weights."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import TARGET, changed, write_adapter
from support.engine_process.job import CORES, Job
from support.engine_process.scenes import (
    ABORTED,
    ADAPTER,
    EXIT,
    KILLED,
    PROMPTS,
    REQUESTS,
    RUNNING,
    SHUTDOWN,
    SIGTERM,
    VERSION,
    WHOLE,
    run_scene,
)

from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.query.row_filters import noted_updates
from driftscope.pipeline import summarise
from driftscope.regions import text_regions
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Language, Region

pytestmark = pytest.mark.vllm
SPECIAL_TOKENS = ("<s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<pad>")


def _run(
    folder: Path, runner: str, core: str, **probe: str
) -> tuple[Path, list[list[dict[str, Any]]]]:
    """Return the run, and the rows of the requests: first prompts, the same again, second turns."""
    job = Job(drafter="eagle31", runner=runner, probe={"EVERY": "1", **probe})
    told = run_scene("conversations", job, folder, core=core)
    trace = read_trace(folder / "run")
    assert not [error for status in trace.statuses for error in status.errors]
    rows = {_given(row["request"]): row for row in trace.request.to_pylist()}
    return folder / "run", [
        [{**rows[_given(name)], "text": text} for name, text in outputs] for outputs in told
    ]


def _given(name: str) -> str:
    """Return a request's id without what vLLM's engine adds to it."""
    return name.partition("-")[0]


RUNNERS = ("v1", "v2")
SALTED, PLAIN = "salted", "plain"
Run = tuple[Path, list[list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """Run by kind of digests and runner; the engines of a runner have a core of their own."""
    folder: Path = tmp_path_factory.mktemp("conversations")

    def of(runner: str, core: str) -> dict[tuple[str, str], Run]:
        found = {(SALTED, runner): _run(folder / runner, runner, core, PROMPT_SALT="of both runs")}
        if runner == "v1":
            found[PLAIN, runner] = _run(folder / PLAIN, runner, core)
        return found

    with ThreadPoolExecutor(len(RUNNERS)) as pool:
        v1, v2 = pool.map(of, RUNNERS, CORES)
    return {**v1, **v2}


@pytest.mark.parametrize("runner", RUNNERS)
def test_equal_prompts_and_conversations_are_recognised(
    runs: dict[tuple[str, str], Run], runner: str
) -> None:
    run, (first, again, second) = runs[SALTED, runner]
    digests = [row["prompt_digest"] for row in first]
    assert len(set(digests)) == PROMPTS
    assert [row["prompt_digest"] for row in again] == digests
    assert [row["conversation"] for row in first] == digests
    assert [row["conversation"] for row in second] == digests
    assert not {row["prompt_digest"] for row in second} & set(digests)
    assert {row["session"] for row in (*first, *second)} == {"a"}
    assert {row["session"] for row in again} == {"b"}
    assert [row["pair"] for row in again] == [f"question {n}" for n in range(PROMPTS)]
    known = summarise(run, "run").independence
    assert known is not None and known.seen


def test_digests_of_two_engines_are_equal_with_the_same_salt_and_only_then(
    runs: dict[tuple[str, str], Run],
) -> None:
    """`test_sampler.py` has two starts without a salt."""
    v1, v2, plain = (
        [row["prompt_digest"] for row in runs[run][1][0]]
        for run in ((SALTED, "v1"), (SALTED, "v2"), (PLAIN, "v1"))
    )
    assert v1 == v2
    assert not set(plain) & set(v1)


@pytest.mark.parametrize("runner", RUNNERS)
def test_regions_are_those_of_the_text_that_the_client_sees(
    runs: dict[tuple[str, str], Run], runner: str
) -> None:
    _, every = runs[SALTED, runner]
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    for row in (row for rows in every for row in rows):
        found = text_regions(row["text"], [match.span() for match in special.finditer(row["text"])])
        assert [Region.ALL[code] for code in row["region_codes"]] == [e.region for e in found]
        languages = [Language.ALL[code] for code in row["region_languages"]]
        assert languages == [region.language for region in found]
        assert row["region_starts"][0] == 0
        assert max(row["region_starts"]) < row["output_tokens"]
        begun = zip(row["region_starts"], found, strict=True)
        assert row["region_boundaries"] == [start for start, region in begun if region.boundary]
    assert {code for rows in every for row in rows for code in row["region_codes"]}


def test_digests_and_regions_can_be_switched_off(tmp_path: Path) -> None:
    _, every = _run(tmp_path / "off", "v1", CORES[0], PROMPT_DIGESTS="off", REGIONS="off")
    rows = [row for rows in every for row in rows]
    assert {row["prompt_digest"] for row in rows} == {row["conversation"] for row in rows} == {None}
    assert {row["region_starts"] for row in rows} == {None}
    assert {row["session"] for row in rows} == {"a", "b"}


Said = dict[str, tuple[list[int], str]]


def _run_stopped(folder: Path, way: str) -> tuple[Path, Said]:
    job = Job(drafter="eagle31", probe={"EVERY": "1"}, processes=way == SIGTERM)
    return folder / "run", run_scene("stopped", job, folder, way, survives=way != KILLED)


def _rows(run: Path) -> dict[str, dict[str, Any]]:
    trace = read_trace(run)
    assert not [error for status in trace.statuses for error in status.errors]
    return {row["request"].partition("-")[0]: row for row in trace.request.to_pylist()}


def _names(text: str) -> list[str]:
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    return [
        text_region.region
        for text_region in text_regions(text, [m.span() for m in special.finditer(text)])
    ]


@pytest.mark.parametrize("way", [SHUTDOWN, pytest.param(SIGTERM, marks=pytest.mark.nightly), EXIT])
def test_aborted_and_running_requests_have_regions(tmp_path: Path, way: str) -> None:
    run, said = _run_stopped(tmp_path / "run", way)
    rows = _rows(run)
    assert set(rows) == {WHOLE, ABORTED, RUNNING}
    for name, row in rows.items():
        ids, text = said[name]
        found, wanted = [Region.ALL[code] for code in row["region_codes"]], _names(text)
        if way == SIGTERM and name != WHOLE:  # the engine core goes on until it hears of the end
            assert row["output_tokens"] >= len(ids)
            assert found[: len(wanted)] == wanted
        else:
            assert row["output_tokens"] == len(ids)
            assert found == wanted
    reasons = {name: row["finish_reason"] for name, row in rows.items()}
    assert reasons == {WHOLE: "length", ABORTED: "abort", RUNNING: "abort"}
    segments = summarise(open_run(run), "run", by="region").segments
    assert {segment.label for segment in segments} <= set(Region.ALL)


def test_what_a_kill_leaves_is_not_recorded(tmp_path: Path) -> None:
    """The rounds are there, and the regions of the requests that had ended."""
    run, _ = _run_stopped(tmp_path / "run", KILLED)
    assert set(_rows(run)) == {WHOLE, ABORTED}
    verify = read_trace(run).verify.to_pylist()
    lost = sum(row["request"].startswith(RUNNING) and row["verified"] > 0 for row in verify)
    assert lost > 0
    found = {e.label: e.rounds for e in summarise(open_run(run), "run", by="region").segments}
    assert found["(not recorded)"] == lost
    assert sum(found.values()) == sum(row["verified"] > 0 for row in verify)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An adapter, and other weights of the target."""
    folder: Path = tmp_path_factory.mktemp("weights")
    adapter = write_adapter(folder / "adapter", TARGET)
    return adapter, changed(folder / "other", "target", weights=_negate_last_layer)


@pytest.fixture(scope="module")
def unprobed(weights: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Answers without the probe, which are the same on both runners."""
    return run_scene("weights", Job(drafter="eagle31"), tmp_path_factory.mktemp("off"), *weights)


@pytest.mark.parametrize("runner", ["v1", pytest.param("v2", marks=pytest.mark.nightly)])
def test_adapters_and_updates_are_recorded(
    weights: tuple[Path, Path], unprobed: Any, tmp_path: Path, runner: str
) -> None:
    job = Job(drafter="eagle31", runner=runner, probe={"EVERY": "1"})
    answers = run_scene("weights", job, tmp_path, *weights)
    assert answers == unprobed
    assert answers[0] != answers[2] == answers[3]

    run = tmp_path / "run"
    trace = read_trace(run)
    assert trace.problems == ()
    rows = trace.request.to_pylist()
    assert sum(row["adapter"] == ADAPTER for row in rows) == REQUESTS
    assert {row["label"] for row in rows} == {ADAPTER, None}
    (update,) = noted_updates(trace.statuses)[0][-1:]
    assert update.version == VERSION

    by = {part.label: part for part in summarise(run, "run", by="adapter").segments}
    assert {name: part.requests for name, part in by.items()} == {
        "(no adapter)": 3 * REQUESTS,
        ADAPTER: REQUESTS,
    }
    summary = summarise(run, "run", by="weights")
    parts = {part.label: part for part in summary.segments}
    assert {name: part.requests for name, part in parts.items()} == {
        "as started": 2 * REQUESTS,
        f"after update 1 ({VERSION})": 2 * REQUESTS,
    }
    assert [update.models for update in summary.updates] == [("target",)]


def _negate_last_layer(state: dict[str, object]) -> None:
    for name in state:
        if ".layers.2." in name and "norm" not in name:
            state[name] = -state[name]  # type: ignore[operator]
