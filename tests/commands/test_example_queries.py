"""The queries of examples/queries say what `driftscope analyze` says, on sealed files."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.pipeline import summarise

FOLDER = Path(__file__).parents[2] / "examples" / "queries"
TWO = (Prompts(label="chat"), Prompts(label="code", shift=-0.5))
RUNS = {
    "recorded": None,
    "post-norm, two layers, drafts missing": Truth(
        requests=20,
        rounds=10,
        layers=2,
        norm_output=True,
        prompts=TWO,
        rates=(0.5, 0.25),
        undrafted={"no_draft": 0.1, "preempted": 0.05},
    ),
}


@pytest.fixture(scope="module")
def queries() -> ModuleType:
    spec = importlib.util.spec_from_file_location("queries", FOLDER / "queries.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _expected(run: RunSummary) -> dict[str, list[object]]:
    labels = sorted(run.groups.label, key=lambda group: group.name)
    assert run.hidden.fed_rms is not None
    assert run.attention.self_mass is not None
    return {
        "acceptance": list(run.acceptance.marginal),
        "by_label": [group.mean_length for group in labels],
        "undrafted": [run.fallback.by_reason[name] for name in sorted(run.fallback.by_reason)],
        "hidden": list(run.hidden.fed_rms),
        "attention": list(run.attention.self_mass),
    }


@pytest.mark.parametrize("name", RUNS)
def test_both_answers_are_those_of_analyze(queries: ModuleType, tmp_path: Path, name: str) -> None:
    truth = RUNS[name]
    run = FOLDER / "run" if truth is None else simulate(tmp_path / "run", truth)
    expected = _expected(summarise(open_run(run), "run"))
    answers = queries.ask(run)
    assert set(answers) == set(expected)
    for question, both in answers.items():
        for answer in both:
            found = answer.iloc[:, -1].tolist()
            assert found == pytest.approx(expected[question], rel=1e-6, abs=1e-9), question
        pd.testing.assert_frame_equal(*both, check_dtype=False)


@pytest.mark.process
def test_the_script_runs_as_written(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error "$@"\n')
    (bin_ / "python3").chmod(0o755)
    environ = {**os.environ, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [str(FOLDER / "run.sh")],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DuckDB:") == done.stdout.count("pandas:") == 5
