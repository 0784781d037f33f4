"""The JSON contract."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.analyses import PAIR, analysis_of, pair

import driftscope
from driftscope.json_report.report import to_dict, to_json
from driftscope.pipeline import Analysis, conclude

GOLDEN = Path(__file__).parent / "data" / "pair.json"
"""Made by `python tests/unit/json_report/test_report.py`; read the difference before committing."""

RUN_KEYS = {
    "acceptance": {
        "mean_length",
        "mean_length_interval",
        "marginal",
        "marginal_interval",
        "conditional",
        "counted",
        "by_k",
        "token_rate",
        "histogram",
        "mean_length_by_request",
        "mean_length_by_token",
        "mean_length_at_k",
    },
    "attention": {
        "sink",
        "prompt",
        "generated",
        "self",
        "sink_retention",
    },
    "hidden": {
        "in_rms",
        "prenorm_rms",
        "postnorm_rms",
        "fed_rms",
        "growth",
        "growth_interval",
        "aux_imbalance",
        "aux_norm_imbalance",
    },
    "confidence": {"top1", "entropy", "ece", "reliability"},
    "latency": {
        "tpot_s",
        "tpot_s_interval",
        "ttft_s",
        "ttft_s_interval",
        "inter_token_s",
        "draft_s",
        "verify_s",
    },
    "fallback": {
        "steps",
        "rejected_rounds",
        "rejected_share",
        "undrafted",
        "undrafted_share",
        "deliberate",
        "counted_by_engine",
        "by_reason",
        "effective_k",
    },
    "cohort": {"enough", "left_out", "served"},
    "clusters": {
        "noun",
        "clusters",
        "requests",
        "effective",
        "design_effect",
        "icc",
        "length_correlation",
        "crossed",
        "seen",
        "suspected",
        "worth",
    },
    "probe": {"engine", "runner", "mode", "sampling", "dropped", "overhead_fraction"},
}
CHANGE_KEYS = {
    "requests",
    "points",
    "levels",
    "gradual",
    "clusters",
    "keyed",
    "autocorrelation",
    "raw",
}
PLAIN_KEYS = {
    "slice",
    "label",
    "rounds",
    "requests",
    "k",
    "ks",
    "depths",
    "segments",
    "changes",
    "text",
    "problems",
    "within_request",
    "attention_drift",
}


def test_keys_are_the_contract(tmp_path: Path) -> None:
    content = to_dict(pair(tmp_path))
    assert set(content) == {
        "kind",
        "schema_version",
        "driftscope_version",
        "verdict",
        "first_screen",
        "findings",
        "warnings",
        "runs",
    }
    assert content["schema_version"] == 1
    for run in content["runs"]:
        assert set(run) == PLAIN_KEYS | set(RUN_KEYS)
        assert set(run["changes"]) == CHANGE_KEYS
        for group, keys in RUN_KEYS.items():
            assert set(run[group]) == keys


def test_lists_start_with_depth_one_and_have_k_entries(tmp_path: Path) -> None:
    run = to_dict(pair(tmp_path))["runs"][0]
    lists = [
        *run["attention"].values(),
        *(values for name, values in run["hidden"].items() if name.endswith("_rms")),
        *(run["confidence"][name] for name in ("top1", "entropy", "ece")),
        run["acceptance"]["marginal"],
        run["acceptance"]["conditional"],
    ]
    assert {len(values) for values in lists} == {run["k"]}
    assert run["attention"]["self"][0] == 0.0
    assert run["acceptance"]["marginal"][0] == max(run["acceptance"]["marginal"])


def test_the_identity_survives_rounding(tmp_path: Path) -> None:
    for run in to_dict(pair(tmp_path))["runs"]:
        acceptance = run["acceptance"]
        assert abs(1 + sum(acceptance["marginal"]) - acceptance["mean_length"]) < 1e-6


def test_probe_says_how_it_was_recorded(tmp_path: Path) -> None:
    spec = replace(PAIR["eagle3"], every=4, dropped={"queue_full": 3, "disk_error": 2})
    probe = to_dict(analysis_of(tmp_path, {"a": spec}))["runs"][0]["probe"]
    assert probe["engine"] == "vllm 0.32.0"
    assert probe["sampling"] == 0.25
    assert probe["dropped"] == 5


def test_golden(tmp_path: Path) -> None:
    content, golden = to_dict(pair(tmp_path)), json.loads(GOLDEN.read_text())
    golden["driftscope_version"] = driftscope.__version__
    _same(content, golden, "report")


@pytest.mark.slow
def test_same_runs_same_bytes(tmp_path: Path) -> None:
    assert to_json(pair(tmp_path / "a")) == to_json(pair(tmp_path / "b"))


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    run = pair(tmp_path).runs[0]
    hidden = replace(run.hidden, fed_rms=(1.0, math.nan, math.inf, 2.0), growth=None)
    odd = replace(run, hidden=hidden, attention=replace(run.attention, sink_mass=None))
    content = json.loads(to_json(conclude([odd])), parse_constant=_refuse)
    assert content["runs"][0]["hidden"]["fed_rms"] == [1.0, None, None, 2.0]
    assert content["runs"][0]["attention"]["sink"] is None


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def _same(ours: Any, golden: Any, where: str) -> None:
    """Equal, with the last digits left to the platform's floating point."""
    if isinstance(golden, dict):
        assert set(ours) == set(golden), where
        for key, value in golden.items():
            _same(ours[key], value, f"{where}.{key}")
    elif isinstance(golden, list):
        assert len(ours) == len(golden), where
        for i, value in enumerate(golden):
            _same(ours[i], value, f"{where}[{i}]")
    elif isinstance(golden, float):
        assert math.isclose(ours, golden, rel_tol=1e-6), where
    else:
        assert ours == golden, where


def _analysis() -> Analysis:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return pair(Path(folder))


if __name__ == "__main__":
    GOLDEN.write_text(to_json(_analysis()))
