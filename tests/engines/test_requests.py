"""A real vLLM's requests: over several turns, cut off by its end, and on other weights."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import TARGET, changed, write_adapter
from support.engine_process.job import CORES, Job, Outcome
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
from driftscope.regions import TextRegion, text_regions
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Language, Region

pytestmark = pytest.mark.vllm
SPECIAL = re.compile(re.escape("<s>") + r"|<\|(system|user|assistant|end)\|>|<pad>")
EVERY = {"EVERY": "1"}
Rows = list[dict[str, Any]]


def _rows(run: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of the requests by their ids, without what vLLM's engine adds to them."""
    trace = read_trace(run)
    assert not [error for status in trace.statuses for error in status.errors]
    return {row["request"].partition("-")[0]: row for row in trace.request.to_pylist()}


def _regions(text: str) -> list[TextRegion]:
    return text_regions(text, [match.span() for match in SPECIAL.finditer(text)])


RUNNERS = ("v1", "v2")


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Rows, ...]]:
    """Rows of first prompts, the same again and second turns, by runner."""
    folder: Path = tmp_path_factory.mktemp("conversations")

    def run(runner: str, core: str) -> tuple[Rows, ...]:
        probe = {**EVERY, "PROMPT_SALT": "of both runs"}
        job = Job(drafter="eagle31", runner=runner, probe=probe)
        told = run_scene("conversations", job, folder / runner, core=core)
        rows = _rows(folder / runner / "run")
        known = summarise(folder / runner / "run", "run").independence
        assert known is not None and known.seen
        return tuple(
            [{**rows[name.partition("-")[0]], "text": text} for name, text in outputs]
            for outputs in told
        )

    with ThreadPoolExecutor(len(RUNNERS)) as pool:
        return dict(zip(RUNNERS, pool.map(run, RUNNERS, CORES), strict=True))


@pytest.mark.parametrize("runner", RUNNERS)
def test_equal_prompts_and_conversations_are_recognised(
    conversations: dict[str, tuple[Rows, ...]], runner: str
) -> None:
    first, again, second = conversations[runner]
    digests = [row["prompt_digest"] for row in first]
    assert len(set(digests)) == PROMPTS
    assert [row["prompt_digest"] for row in again] == digests
    assert [row["conversation"] for row in first] == digests
    assert [row["conversation"] for row in second] == digests
    assert not {row["prompt_digest"] for row in second} & set(digests)
    assert {row["session"] for row in (*first, *second)} == {"a"}
    assert {row["session"] for row in again} == {"b"}
    assert [row["pair"] for row in again] == [f"question {n}" for n in range(PROMPTS)]


def test_digests_of_two_engines_are_equal_with_the_same_salt_and_only_then(
    conversations: dict[str, tuple[Rows, ...]], outcomes: dict[str, Outcome]
) -> None:
    """`test_sampler.py` has two starts without a salt."""
    v1, v2 = ({row["prompt_digest"] for row in conversations[name][0]} for name in RUNNERS)
    plain = {row["prompt_digest"] for row in _rows(outcomes["v1-eager eagle31"].run).values()}
    assert v1 == v2
    assert len(plain) > PROMPTS and not plain & v1


@pytest.mark.parametrize("runner", RUNNERS)
def test_regions_are_those_of_the_text_that_the_client_sees(
    conversations: dict[str, tuple[Rows, ...]], runner: str
) -> None:
    for row in (row for rows in conversations[runner] for row in rows):
        found = _regions(row["text"])
        assert [Region.ALL[code] for code in row["region_codes"]] == [e.region for e in found]
        languages = [Language.ALL[code] for code in row["region_languages"]]
        assert languages == [region.language for region in found]
        starts = row["region_starts"]
        assert starts[0] == 0 and max(starts) < row["output_tokens"]
        begun = zip(starts, found, strict=True)
        assert row["region_boundaries"] == [start for start, region in begun if region.boundary]


Said = dict[str, tuple[list[int], str]]


def _run_stopped(folder: Path, way: str) -> tuple[Path, Said]:
    job = Job(drafter="eagle31", probe=EVERY, processes=way == SIGTERM)
    return folder / "run", run_scene("stopped", job, folder, way, survives=way != KILLED)


@pytest.mark.parametrize("way", [SHUTDOWN, pytest.param(SIGTERM, marks=pytest.mark.nightly), EXIT])
def test_aborted_and_running_requests_have_regions(tmp_path: Path, way: str) -> None:
    run, said = _run_stopped(tmp_path / "run", way)
    rows = _rows(run)
    reasons = {name: row["finish_reason"] for name, row in rows.items()}
    assert reasons == {WHOLE: "length", ABORTED: "abort", RUNNING: "abort"}
    for name, row in rows.items():
        ids, text = said[name]
        found = [Region.ALL[code] for code in row["region_codes"]]
        wanted = [region.region for region in _regions(text)]
        if way == SIGTERM and name != WHOLE:  # the engine core goes on until it hears of the end
            assert row["output_tokens"] >= len(ids)
            assert found[: len(wanted)] == wanted
        else:
            assert (row["output_tokens"], found) == (len(ids), wanted)
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


def _negate_last_layer(state: dict[str, Any]) -> None:
    for name in state:
        if ".layers.2." in name and "norm" not in name:
            state[name] = -state[name]


@pytest.fixture(scope="module")
def unprobed(weights: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Answers without the probe, which are the same on both runners."""
    return run_scene("weights", Job(drafter="eagle31"), tmp_path_factory.mktemp("off"), *weights)


@pytest.mark.parametrize("runner", ["v1", pytest.param("v2", marks=pytest.mark.nightly)])
def test_adapters_and_updates_are_recorded(
    weights: tuple[Path, Path], unprobed: Any, tmp_path: Path, runner: str
) -> None:
    job = Job(drafter="eagle31", runner=runner, probe=EVERY)
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

    adapters = summarise(run, "run", by="adapter").segments
    assert {part.label: part.requests for part in adapters} == {
        "(no adapter)": 3 * REQUESTS,
        ADAPTER: REQUESTS,
    }
    summary = summarise(run, "run", by="weights")
    assert {part.label: part.requests for part in summary.segments} == {
        "as started": 2 * REQUESTS,
        f"after update 1 ({VERSION})": 2 * REQUESTS,
    }
    assert [update.models for update in summary.updates] == [("target",)]
