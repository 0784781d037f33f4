"""Rules on engines' own metrics, evaluated by promtool."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.promtool import check_rules_with, promtool
from verification.alert_rules.promtool_play import play

from driftscope.telemetry.collect.engine_metrics import EngineName
from driftscope.telemetry.dashboards.files import write_engine_rules
from driftscope.telemetry.dashboards.rule_options import Thresholds, Times

pytestmark = pytest.mark.prometheus

LABELS = 'job="serving",instance="a:8000",model_name="m"'
NAMES = {
    EngineName.VLLM: (
        f"vllm:spec_decode_num_drafts_total{{{LABELS}}}",
        f"vllm:spec_decode_num_accepted_tokens_total{{{LABELS}}}",
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="0"}}',
    ),
    EngineName.TRTLLM: (
        f'trtllm_spec_decode_drafted_tokens_total{{{LABELS},token_position="0"}}',
        f"trtllm_spec_decode_num_accepted_tokens_total{{{LABELS}}}",
        f'trtllm_spec_decode_accepted_tokens_total{{{LABELS},token_position="0"}}',
    ),
    EngineName.LLAMACPP: (
        'llamacpp:spec_decode_num_drafts_total{instance="a:8000"}',
        'llamacpp:spec_decode_num_accepted_tokens_total{instance="a:8000"}',
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{instance="a:8000",position="0"}',
    ),
}
"""Counters of rounds, of accepted tokens and of rounds that accepted the first position."""


def _rules(folder: Path, engine: EngineName) -> Path:
    return write_engine_rules(folder, engine, Times(past="1d"), Thresholds())[0]


@pytest.mark.parametrize("engine", EngineName)
def test_promtool_accepts_the_rules(tmp_path: Path, engine: EngineName) -> None:
    promtool("check", "rules", _rules(tmp_path, engine))


@pytest.mark.parametrize("engine", NAMES)
def test_counters_give_the_length_and_the_first_depth(tmp_path: Path, engine: EngineName) -> None:
    rounds, accepted, first = NAMES[engine]
    series = [
        {"series": rounds, "values": "0+600x20"},
        {"series": accepted, "values": "0+900x20"},
        {"series": first, "values": "0+450x20"},
    ]
    labels = 'gen_ai_request_model="m",instance="a:8000",job="serving"'
    labels = 'instance="a:8000"' if engine is EngineName.LLAMACPP else labels
    position = "token_position" if engine is EngineName.TRTLLM else "position"
    check_rules_with(
        tmp_path,
        _rules(tmp_path, engine),
        series,
        [
            _expected("engine:driftscope_acceptance_length:mean", f"{{{labels}}}", 2.5),
            _expected(
                "engine_depth:driftscope_acceptance_marginal:ratio",
                f'{{{labels},{position}="0"}}',
                0.75,
            ),
        ],
    )


def test_sglang_has_tokens_and_verifications(tmp_path: Path) -> None:
    """60 rounds, 2 requests and 182 tokens a minute, of which 2 come from prompts: 180 / 60."""
    series = [
        {"series": f"sglang:spec_verify_calls_total{{{LABELS}}}", "values": "0+60x20"},
        {"series": f"sglang:generation_tokens_total{{{LABELS}}}", "values": "0+182x20"},
        {"series": f"sglang:num_requests_total{{{LABELS}}}", "values": "0+2x20"},
    ]
    name = "engine:driftscope_acceptance_length:mean"
    labels = '{gen_ai_request_model="m",instance="a:8000",job="serving"}'
    rules = _rules(tmp_path, EngineName.SGLANG)
    check_rules_with(tmp_path, rules, series, [_expected(name, labels, 3.0)])


@pytest.mark.parametrize("falls", [True, False])
def test_an_alert_fires_when_acceptance_falls_and_only_then(tmp_path: Path, falls: bool) -> None:
    """A day at 3 tokens per round, then 12 hours at 2, or at 2.9."""
    rounds, accepted, first = NAMES[EngineName.VLLM]
    later = 1200 if falls else 2280
    series = [
        {"series": rounds, "values": "0+1200x1440"},
        {"series": accepted, "values": f"0+2400x720 1728000+{later}x720"},
        {"series": first, "values": "0+900x1440"},
    ]
    fired = play(tmp_path, _rules(tmp_path, EngineName.VLLM), series, hours=36)
    if falls:
        assert 24 < fired["DriftscopeAcceptanceFell"].begins_h < 25
    else:
        assert "DriftscopeAcceptanceFell" not in fired


def _expected(name: str, labels: str, value: float) -> dict[str, object]:
    # Floating-point sums differ in the last digit, and promtool compares every digit.
    sample = {"labels": labels, "value": value}
    return {"expr": f"round({name}, 0.001)", "eval_time": "20m", "exp_samples": [sample]}
