"""What two runs have in common, and what differs between them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.runs import Spec, manifest
from support.simulate import Prompts, Truth, simulate
from support.simulate.sums import side
from typer.testing import CliRunner

from driftscope.analysis.comparability import (
    BY_DIGEST,
    DRAFTER,
    Pairing,
    comparability_of,
    models_differ,
)
from driftscope.analysis.figures.rounds import Side
from driftscope.cli.app import app
from driftscope.pipeline import conclude, summarise
from driftscope.trace.manifest import Manifest
from driftscope.trace.reader import read_trace

TRUTH = Truth(requests=40, rounds=10, k=4)
WARM = (Prompts(temperature=0.7),)


def _pair(folder: Path, other: Truth) -> tuple[Path, Path]:
    return simulate(folder / "a", TRUTH), simulate(folder / "b", replace(other, seed=9))


def _said(folder: Path, other: Truth) -> list[str]:
    runs = [summarise(read_trace(p), p.name) for p in _pair(folder, other)]
    return [w.statement for w in conclude(runs).notes if w.id == "unlike"]


@pytest.mark.parametrize("other", [replace(TRUTH, drafter="another"), replace(TRUTH, k=2)])
def test_nothing_is_said_of_the_drafter_or_k_alone(tmp_path: Path, other: Truth) -> None:
    assert _said(tmp_path, other) == []


@pytest.mark.parametrize(
    ("other", "thing"),
    [
        (replace(TRUTH, prompts=WARM), "temperature (0 against 0.7)"),
        (replace(TRUTH, runner="v1"), "runner (vllm v2 against vllm v1)"),
        (replace(TRUTH, prompts_seed=99), "prompts"),
        (replace(TRUTH, target="other-target"), "target (simulated-target against other-target)"),
    ],
)
def test_one_thing_is_named(tmp_path: Path, other: Truth, thing: str) -> None:
    (said,) = _said(tmp_path, other)
    assert said.startswith(f"these runs differ in their {thing}: that, not the drafter")


def _manifest(engine: str, config: str, weights: str | None, layers: tuple[int, ...]) -> Manifest:
    plain = manifest(Spec(runner="", aux_layers=layers))
    model = replace(plain.target, config_digest=config, weights_digest=weights)
    return replace(plain, engine=engine, engine_version="", target=model, drafter=model)


@pytest.mark.parametrize(
    ("engine", "weights", "differ"),
    [
        ("sglang", "w", False),
        ("sglang", "other", True),
        ("sglang", None, True),
        ("vllm", "w", True),
    ],
)
def test_two_engines_read_one_checkpoint(engine: str, weights: str | None, differ: bool) -> None:
    """Their configs differ, because each engine completes it; the weights tell."""
    mine, theirs = _manifest("vllm", "a", "w", ()), _manifest(engine, "b", weights, ())
    assert models_differ(mine, theirs, DRAFTER) is differ


def _names(mine: Manifest, theirs: Manifest) -> list[str]:
    none = np.empty(0, dtype=np.int64)
    pairing = Pairing(how=BY_DIGEST, first=none, second=none, alone=0)
    found = comparability_of((SIDE, SIDE), (mine, theirs), pairing)
    return [difference.words for difference in found.differences]


def test_a_layer_shift_between_engines_is_named() -> None:
    mine, theirs = _manifest("vllm", "a", "w", (1, 2, 3)), _manifest("sglang", "b", "w", (2, 3, 4))
    assert _names(mine, theirs) == [
        "runner (vllm  against sglang )",
        "captured layers (1, 2, 3 against 2, 3, 4)",
    ]


def _with_mimos_head(engine: str) -> Manifest:
    plain = _manifest(engine, engine, "w", ())
    named = {"vllm": "MiMoMTPModel", "sglang": "MiMoMTP"}[engine]
    return replace(plain, drafter=replace(plain.drafter, architecture=named))


def test_engines_give_mimos_head_other_states_of_the_target() -> None:
    vllm, sglang = _with_mimos_head("vllm"), _with_mimos_head("sglang")
    assert (
        "the target's state that MiMo's head reads (before its final norm against after its final "
        "norm)"
    ) in _names(vllm, sglang)
    assert _names(vllm, _with_mimos_head("vllm")) == []


def test_another_drafter_may_capture_other_layers() -> None:
    mine, theirs = _manifest("vllm", "a", "w", (1, 2)), _manifest("vllm", "a", "v", (3, 4))
    assert not any(name.startswith("captured") for name in _names(mine, theirs))


SIDE: Side = side(Truth(requests=8, rounds=4, k=2))


@pytest.mark.slow
def test_several_things_are_listed_by_every_command(tmp_path: Path) -> None:
    other = replace(TRUTH, prompts=WARM, k=2, drafter="another-drafter")
    a, b = map(str, _pair(tmp_path, other))
    words = "they differ in temperature (0 against 0.7)"
    warning = (
        "these runs differ in more than one thing: K (4 against 2), drafter (simulated-drafter "
        "against another-drafter) and temperature (0 against 0.7)"
    )
    run = CliRunner()
    compared = run.invoke(app, ["compare", a, b])
    assert words in " ".join(compared.output.split())
    assert json.loads(run.invoke(app, ["compare", a, b, "--json"]).output)["warning"].startswith(
        warning
    )
    assert (
        warning in run.invoke(app, ["check", b, "--baseline", a, "--fail-on", "runs_part"]).stderr
    )
    report = run.invoke(app, ["analyze", a, b, "-o", str(tmp_path / "r.html")])
    assert warning in " ".join(report.output.split())


def _warnings(folder: Path, truth: Truth, **changed: str | None) -> set[str]:
    run = summarise(read_trace(simulate(folder / "run", truth)), "run")
    run = replace(run, manifest=replace(run.manifest, **changed))
    return {warning.id for warning in conclude([run]).notes}


def test_greedy_drafts_for_sampled_requests_are_said(tmp_path: Path) -> None:
    sampled = replace(TRUTH, prompts=WARM)
    assert "greedy_drafts" in _warnings(tmp_path / "1", replace(sampled, runner="v1"))
    assert "greedy_drafts" not in _warnings(tmp_path / "2", replace(TRUTH, runner="v1"))
    assert "greedy_drafts" not in _warnings(tmp_path / "3", sampled), "V2 samples its drafts"
    assert "greedy_drafts" in _warnings(tmp_path / "4", sampled, draft_sampling="greedy")
    assert "greedy_drafts" not in _warnings(
        tmp_path / "5", replace(sampled, runner="v1"), draft_sampling="probabilistic"
    )
