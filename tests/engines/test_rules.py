"""The rule by which vLLM verifies drafts, and what commands say of one that asks no target."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.command import run_command
from support.engine_process.job import Job, K, Outcome, engine, run_jobs
from verification.truth import V2

from driftscope.trace.manifest import BLOCK, EXACT, SIMULATED, WAS_SIMULATED
from driftscope.trace.reader import read_trace

pytestmark = pytest.mark.vllm
RATES = [0.95, 0.9, 0.85, 0.8, 0.8, 0.8, 0.8, 0.8]


def _job(rule: str, **more: Any) -> Job:
    job = Job(
        drafter="eagle31", requests=4, sampling={"max_tokens": 24}, probe={"EVERY": "1"}, **more
    )
    drawn = {"synthetic_acceptance_rates": RATES} if rule == "synthetic" else {}
    speculation = {**engine(job)["speculative_config"], "rejection_sample_method": rule, **drawn}
    return replace(job, llm={"speculative_config": speculation})


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder: Path = tmp_path_factory.mktemp("rules")
    v2 = {rule: _job(rule, **V2) for rule in ("synthetic", "block")}  # vLLM's V1 has none on a CPU
    return run_jobs({"standard": _job("standard"), **v2}, folder)


def test_the_rule_is_in_the_manifest(rules: dict[str, Outcome]) -> None:
    found = {name: read_trace(rules[name].run).manifest.verification for name in rules}
    assert found == {"standard": EXACT, "synthetic": SIMULATED, "block": BLOCK}


def test_commands_say_that_acceptance_was_simulated(
    rules: dict[str, Outcome], tmp_path: Path
) -> None:
    run, other = rules["synthetic"].run, rules["standard"].run
    rounds = [row for row in read_trace(run).verify.to_pylist() if row["verified"]]
    assert sum(row["accepted"] for row in rounds) > 0.5 * K * len(rounds), "as drawn"
    analyzed = run_command("analyze", run, "-o", tmp_path / "report.html")
    assert WAS_SIMULATED in analyzed.stdout.lower() and analyzed.returncode == 0
    assert "tokens (" not in analyzed.stdout, "no answer about acceptance"
    checked = run_command("check", run, "--fail-on", "high", "--require", "k = 8")
    assert (checked.returncode, checked.stdout.count(WAS_SIMULATED)) == (4, 2)
    compared = run_command("compare", other, run)
    assert compared.returncode == 4 and WAS_SIMULATED in compared.stderr
    other_rule = run_command("compare", other, rules["block"].run)
    assert "rule of verification (exact against block)" in " ".join(other_rule.stdout.split())


@pytest.mark.filterwarnings("ignore")  # of what vLLM imports
def test_the_drafts_that_vllm_admits_are_those_that_the_scheduler_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 12 draft tokens of three requests vLLM admits the 6 likeliest. A server with adaptive
    verification needs a GPU; what it computes for a step does not."""
    import torch
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive

    from driftscope_probes.vllm.runner_v2 import admitted_drafts

    monkeypatch.setattr(
        adaptive, "_assign_draft_token_budget_compiled", adaptive._assign_draft_token_budget
    )
    manager = object.__new__(adaptive.AdaptiveVerificationManager)
    starts, capacity = torch.zeros(4, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
    manager.num_speculative_steps, manager.num_bonus_tokens = 4, 1
    manager.query_start_loc, manager._cu_num_logits = starts, torch.empty_like(starts)
    manager._batch_draft_capacity, manager._num_non_draft_tokens = capacity, capacity.clone()
    manager._confidence_probs = torch.tensor([[0.9] * 4, [0.2] * 4, [0.9, 0.9, 0.1, 0.1]])
    manager._batch_budget = dict.fromkeys("abc", 4), dict.fromkeys("abc", 1), 6
    ends, _, _ = manager.reallocate_drafts([*"abc"], torch.arange(3))
    state = SimpleNamespace(num_new_sampled_tokens_per_step=1)
    runner = SimpleNamespace(adaptive_verification=manager, model_state=state)
    batch = SimpleNamespace(cu_num_logits=ends, num_reqs=3)
    told = admitted_drafts(runner, batch)
    assert told is not None and told.tolist() == [4, 0, 2]
    runner.adaptive_verification = None
    assert admitted_drafts(runner, batch) is None
