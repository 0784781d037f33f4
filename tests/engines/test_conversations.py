"""A real vLLM's requests have equal digests for equal prompts; a second turn is recognised."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.engine_process.conversations_main import PROMPTS
from support.engine_process.job import CORES, ENGINE_TIMEOUT_S, HERE, Job, environment, forks

from driftscope.pipeline import summarise
from driftscope.regions import text_regions
from driftscope.trace.reader import read_trace
from driftscope.vocabulary import Language, Region
from driftscope_lab.trio.prompts import SPECIAL_TOKENS

pytestmark = pytest.mark.vllm


def _run(
    folder: Path, runner: str, core: str, **probe: str
) -> tuple[Path, list[list[dict[str, Any]]]]:
    """Return the run, and the rows of the requests: first prompts, the same again, second turns."""
    job = Job(drafter="eagle31", runner=runner, probe={"EVERY": "1", **probe})
    folder.mkdir()
    log, said = folder / "log.txt", folder / "said.json"
    code = forks(runner).run(
        HERE / "conversations_main.py",
        [str(said)],
        environment(job, folder, core),
        log,
        ENGINE_TIMEOUT_S,
    )
    assert code == 0, log.read_text(errors="replace")[-4000:]
    trace = read_trace(folder / "run")
    assert not [error for status in trace.statuses for error in status.errors]
    rows = {_given(row["request"]): row for row in trace.request.to_pylist()}
    return folder / "run", [
        [{**rows[_given(name)], "text": text} for name, text in outputs]
        for outputs in json.loads(said.read_text())
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
        salted = _run(folder / f"{SALTED}-{runner}", runner, core, PROMPT_SALT="of both runs")
        return {
            (SALTED, runner): salted,
            (PLAIN, runner): _run(folder / f"{PLAIN}-{runner}", runner, core),
        }

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


@pytest.mark.parametrize("runner", RUNNERS)
def test_digests_of_two_engines_are_equal_with_the_same_salt_and_only_then(
    runs: dict[tuple[str, str], Run], runner: str
) -> None:
    def digests(kind: str, of: str) -> list[str]:
        _, (first, *_) = runs[kind, of]
        return [row["prompt_digest"] for row in first]

    (other,) = set(RUNNERS) - {runner}
    assert digests(SALTED, runner) == digests(SALTED, other)
    assert not set(digests(PLAIN, runner)) & {*digests(SALTED, runner), *digests(PLAIN, other)}


@pytest.mark.parametrize("runner", RUNNERS)
def test_regions_are_those_of_the_text_that_the_client_sees(
    runs: dict[tuple[str, str], Run], runner: str
) -> None:
    _, every = runs[PLAIN, runner]
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    for row in (row for rows in every for row in rows):
        found = text_regions(row["text"], [each.span() for each in special.finditer(row["text"])])
        assert [Region.ALL[code] for code in row["region_codes"]] == [e.region for e in found]
        languages = [Language.ALL[code] for code in row["region_languages"]]
        assert languages == [each.language for each in found]
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
