"""Runs in the formats of other tools, against the published fields and counts from the rows."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import assert_fails, run_command
from support.runs import Spec, write_run
from support.simulate import Cost, Truth, simulate

from driftscope.errors import EXIT_USAGE, NoDataError
from driftscope.interchange import write_as
from driftscope.trace.manifest import MANIFEST
from driftscope.trace.reader import Trace, read_trace
from driftscope.vocabulary import Interchange

PROFILE_FIELDS = {
    "schema_version": str,
    "measured": bool,
    "method": str,
    "draft_checkpoint": dict,
    "target_model": dict,
    "num_speculative_tokens": int,
    "block_size": type(None),
    "max_supported_k": int,
    "verification_method": str,
    "conditional_accept_rates": list,
    "marginal_accept_rates": list,
    "mean_accept_length": float,
    "mean_accept_length_per_request": float,
    "accept_length_model": str,
    "accept_length_by_k": dict,
    "acceptance_length_histogram": dict,
    "per_category": dict,
    "measurement_conditions": dict,
    "validation": dict,
}
"""Fields of specdec_bench's `build_profile`, schema version 1.0, in its order."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("interchange") / "run"
    return write_run(path, Spec(labels=("chat", "code"), undrafted=("k_zero",)))


@pytest.fixture(scope="module")
def trace(run: Path) -> Trace:
    return read_trace(run)


def _accepted(trace: Trace) -> list[int]:
    rows = trace.verify.select(["verified", "accepted"]).to_pylist()
    return [row["accepted"] for row in rows if row["verified"]]


def _profile(run: Path, folder: Path) -> dict[str, Any]:
    write_as(Interchange.SPECULATION_PROFILE, run, folder / "profile.json")
    found = json.loads((folder / "profile.json").read_text())
    assert isinstance(found, dict)
    return found


def test_a_profile_has_the_published_fields_and_the_runs_counts(
    run: Path, trace: Trace, tmp_path: Path
) -> None:
    found, accepted = _profile(run, tmp_path), _accepted(trace)
    assert list(found) == list(PROFILE_FIELDS)
    assert all(isinstance(found[name], kind) for name, kind in PROFILE_FIELDS.items())
    rounds, k = len(accepted), trace.manifest.k
    marginal = [sum(n >= depth for n in accepted) / rounds for depth in range(1, k + 1)]
    assert found["marginal_accept_rates"] == pytest.approx(marginal, abs=1e-6)
    conditional = [b / a for a, b in zip([1.0, *marginal], marginal, strict=False)]
    assert found["conditional_accept_rates"] == pytest.approx(conditional, abs=1e-6)
    assert found["mean_accept_length"] == pytest.approx(1 + sum(accepted) / rounds, abs=1e-6)
    histogram = {str(n + 1): times for n, times in Counter(accepted).items()}
    assert found["acceptance_length_histogram"] == histogram
    assert set(found["per_category"]) == {"chat", "code"}
    assert found["validation"]["mean_consistency"]["passed"] is True
    assert found["num_speculative_tokens"] == k and found["accept_length_model"] == "chain_analytic"
    assert found["draft_checkpoint"]["name"].count("/") <= 1, "no folder of the machine"
    assert str(run.parent) not in json.dumps(found)


def test_a_run_of_several_k_has_no_profile_and_one_k_of_it_has(tmp_path: Path) -> None:
    truth = Truth(requests=60, rounds=30, batches=(1, 8), k_by_batch=((2, 7), (8, 3)))
    run = simulate(tmp_path / "run", truth)
    with pytest.raises(NoDataError, match=r"describes one K.*--where 'k = 7'"):
        write_as(Interchange.SPECULATION_PROFILE, run, tmp_path / "p.json")
    write_as(Interchange.SPECULATION_PROFILE, run, tmp_path / "p.json", where="k = 7")
    assert json.loads((tmp_path / "p.json").read_text())["num_speculative_tokens"] == 7


def test_the_command_says_where_the_file_is(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    base = ("export", run, "--format", "speculation-profile")
    done = run_command(*base, "-o", file)
    assert done.returncode == 0 and f"written: {file}" in done.stderr
    assert json.loads(run_command(*base, "-o", "-").stdout) == json.loads(file.read_text())
    assert_fails(run_command(*base, "-o", "-", "--json"), EXIT_USAGE, "stdout")


_SPS = Path("sglang/srt/speculative/dspark_components/dspark_sps.py")


def test_sglang_reads_the_costs_of_its_steps(tmp_path: Path) -> None:
    truth = Truth(k=3, requests=60, rounds=30, batches=(2, 6), cost=Cost(noise=0.01))
    run = simulate(tmp_path / "run", truth)
    with pytest.raises(NoDataError, match="record the SGLang server"):
        write_as(Interchange.SPS_TABLE, run, tmp_path / "table.json")
    manifest = run / MANIFEST
    manifest.write_text(manifest.read_text().replace('"vllm"', '"sglang"', 1))
    write_as(Interchange.SPS_TABLE, run, tmp_path / "table.json")
    text = (tmp_path / "table.json").read_text()
    table = json.loads(text)
    sizes, cost = np.array(table["sample_batch_tokens"]), truth.cost
    batch = sizes // 4
    step_s = cost.verify_s(batch, sizes) + cost.drafting_s(batch, np.full_like(batch, 3))
    assert {8, 24} <= set(sizes.tolist()) and table["max_batch_tokens"] == sizes[-1]
    assert np.array(table["sample_steps_per_sec"]) == pytest.approx(1 / step_s, rel=0.03)
    (place,) = [*Path(sys.prefix).glob(f"sglang-*/lib/python3*/site-packages/{_SPS}")] or [None]
    if place is None:
        pytest.skip("SGLang is not installed")
    spec = importlib.util.spec_from_file_location("dspark_sps", place)
    assert spec is not None and spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    loaded = reader.load_sps_table_from_path(str(tmp_path / "table.json"))
    assert not reader.is_uninitialized_sps_table(loaded)
    assert loaded.lookup(24) == table["sample_steps_per_sec"][sizes.tolist().index(24)]
