"""A live engine's sink set, searched for by the probe, equals a float64 recomputation."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engine_process.job import Job, K, Outcome, prompts, run_job
from verification.truth import continue_greedily

from driftscope.inspect.reference.chain import ChainKeys, replay
from driftscope.inspect.reference.drafter import load_drafter, load_target
from driftscope.pipeline import Inputs, analyze
from driftscope.trace.reader import Trace, read_trace
from driftscope_lab.trio import trio_path

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]
DRAFTER = "eagle31"
REQUESTS = 40
"""Number of requests: enough that many chains follow the decision, which the writer's thread
makes."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    probe = {"EVERY": "1", "TOKEN_IDS": "1", "SINK_TOKENS": "auto"}
    return run_job(
        Job(drafter=DRAFTER, probe=probe, requests=REQUESTS), tmp_path_factory.mktemp("sinks")
    )


@functools.cache
def _models() -> tuple[Any, Any]:
    return (
        load_target(trio_path() / "target", torch.float64),
        load_drafter(trio_path() / DRAFTER, torch.float64),
    )


def _by_request(
    outcome: Outcome, rows: list[dict[str, Any]]
) -> Iterator[tuple[list[int], int, list[dict[str, Any]]]]:
    """Yield tokens, prompt length and the chains of each request, the last of which may lie past
    its end."""
    for index, (ids, output) in enumerate(zip(prompts(REQUESTS), outcome.tokens(), strict=True)):
        tokens = continue_greedily(_models()[0], (*ids, *output), K + 1)
        yield (
            tokens,
            len(ids),
            [
                row
                for row in rows
                if row["request"].partition("-")[0] == str(index)
                and row["position"] < len(tokens) - 1
            ],
        )


@torch.no_grad()
def _weights(tokens: list[int], positions: list[int]) -> list[np.ndarray]:
    """Return the weights of the depth-1 query for each p, [p + 1], mean over heads, float64."""
    target, drafter = _models()
    ids, at = torch.tensor([tokens]), torch.tensor(positions)
    fused = drafter.fuse(target(ids[:, :-1], aux_layers=drafter.config.aux_layers).aux)
    step = drafter.step(
        embedding=drafter.embed(ids[0, at + 1], target)[None],
        hidden=fused[:, at],
        depth=1,
        anchors=at,
        context=drafter.context(drafter.embed(ids[:, 1:], target), fused),
        chain_keys=ChainKeys(),
    )
    (attention,) = step.attention
    mean = attention[0].mean(0).numpy()
    return [row[: p + 1] for row, p in zip(mean, positions, strict=True)]


def _sought(trace: Trace) -> list[dict[str, Any]]:
    """Return the chains on which the decision was based: those that its note counts."""
    seen = re.search(r"searched in (\d+) chains of (\d+) requests", trace.manifest.notes[-1])
    assert seen is not None
    rows = trace.draft.to_pylist()[: int(seen[1])]
    assert len({row["request"] for row in rows}) == int(seen[2]) >= 8
    assert {row["strategy"] for row in rows} == {"none"}
    return rows


def test_what_is_found_is_what_float64_finds(outcome: Outcome) -> None:
    trace = read_trace(outcome.run)
    assert trace.problems == ()
    held: list[list[float]] = [[] for _ in range(64)]
    even: list[list[float]] = [[] for _ in range(64)]
    rows = _sought(trace)
    compared = 0
    for tokens, _, mine in _by_request(outcome, rows):
        for weights in _weights(tokens, [row["position"] for row in mine]) if mine else ():
            compared += 1
            for slot in range(min(64, len(weights) - 8)):
                held[slot].append(weights[slot])
                even[slot].append(1 / len(weights))
    assert compared == len(rows)
    mean = np.array([np.mean(each) if 2 * len(each) >= len(rows) else 0.0 for each in held])
    times = mean / np.array([np.mean(each) if each else 1.0 for each in even])
    wanted = np.flatnonzero((mean >= 0.02) & (times >= 5.0)).tolist()
    assert list(trace.manifest.sink_slots) == wanted
    assert trace.manifest.sink_source == "found"
    said = re.findall(r"slot (\d+) with ([\d.]+)% .*?\(([\d.]+) times", trace.manifest.notes[-1])
    assert [int(slot) for slot, _, _ in said] == (wanted or [int(mean.argmax())])
    for slot, share, factor in said:
        assert float(share) == pytest.approx(100 * mean[int(slot)], abs=0.06)
        assert float(factor) == pytest.approx(times[int(slot)], abs=0.06)


def test_masses_start_when_it_is_found_and_are_those_of_the_set(outcome: Outcome) -> None:
    trace = read_trace(outcome.run)
    slots = trace.manifest.sink_slots
    if slots != tuple(range(len(slots))):
        pytest.skip(f"the reference knows sink sets that are a prefix only, not {slots}")
    rows = [row for row in trace.draft.to_pylist() if row["strategy"] != "none"]
    # How many chains follow the search depends on when the writer's thread gets to it.
    assert len(rows) > 10
    target, drafter = _models()
    for tokens, prompt, mine in _by_request(outcome, rows):
        anchors = [row["position"] for row in mine]
        wanted = replay(target, drafter, tokens, prompt, anchors, K, n_sink=len(slots))
        for row, reference in zip(mine, wanted, strict=True):
            for name in ("prompt_mass", "generated_mass", "self_mass"):
                np.testing.assert_allclose(row[name], getattr(reference, name), atol=1e-4)
            assert (row["sink_mass"] is None) == (not slots)
    early = [row for row in trace.draft.to_pylist() if row["strategy"] == "none"]
    assert all(row["prompt_mass"] is row["self_mass"] is None for row in early)
    assert all(row["fed_rms"] is not None for row in early)


def test_the_report_says_so(outcome: Outcome, tmp_path: Path) -> None:
    trace = read_trace(outcome.run)
    found = analyze(Inputs(sources=[trace], labels=["run"]))
    told = [finding.statement for finding in found.findings if finding.id == "no_sink"]
    if not trace.manifest.sink_slots:
        assert told == [trace.manifest.notes[-1]]
        assert told[0].startswith("no sink found")
    assert found.runs[0].attention.self_mass is not None
