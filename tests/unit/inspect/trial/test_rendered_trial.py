"""Prompts that are written as no model was trained with them are named by the trial."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.checkpoints import TARGET, changed

from driftscope.cli.trial_run import TrialOptions, load_bench
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.checks.result import CheckResult
from driftscope.inspect.trial.drafting import as_served
from driftscope.inspect.trial.result import (
    Change,
    Trial,
    rendering_results,
)
from driftscope.inspect.trial.trial import (
    LEAST_PASSAGES,
    Bench,
    Rendering,
    Runner,
    run_trial,
    try_renderings,
)
from driftscope_lab.trio import encode, load_prompts, trio_path

pytestmark = pytest.mark.slow
K = 5
SETTINGS = "tokenizer_config.json"


def _trial(drafter: Path, bench: Bench) -> Trial:
    return run_trial(open_drafter(str(drafter)), bench.facts.layers, lambda: bench, K)


def _found(trial: Trial) -> list[CheckResult]:
    return list(rendering_results(trial))


def _encoded(begin: int) -> Bench:
    prompts = {each.id: encode(each.in_distribution)[begin:] for each in load_prompts()[:32]}
    return Bench(open_target(str(TARGET)), lambda _: prompts)


def test_prompts_as_trained_give_nothing() -> None:
    trial = _trial(trio_path() / "eagle31", _encoded(0))
    assert [each.rendering.id for each in trial.renderings] == ["first_token_off"]
    assert not _found(trial)


def test_prompts_without_the_first_token_are_tried_with_it() -> None:
    trial = _trial(trio_path() / "eagle31", _encoded(1))
    assert [each.rendering.id for each in trial.renderings] == ["first_token_on"]


def test_a_target_with_another_template_than_the_drafter_is_named(tmp_path: Path) -> None:
    target, drafter = tmp_path / "target", changed(tmp_path / "drafter")
    shutil.copytree(TARGET, target)
    settings = json.loads((target / SETTINGS).read_text())
    (drafter / "chat_template.jinja").write_text(settings["chat_template"])
    settings["chat_template"] = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    (target / SETTINGS).write_text(json.dumps(settings))
    bench = load_bench(open_target(str(target)), TrialOptions(prompts="trio", k=K, most_prompts=32))
    trial = _trial(drafter, bench)
    assert "accepts_more_with.drafters_template" in [each.id for each in _found(trial)]
    assert not trial.not_applicable


def test_a_rendering_whose_answers_are_too_short_is_not_applicable() -> None:
    bench = _encoded(0)
    passages = bench.passages(set(open_drafter(str(trio_path() / "eagle31")).aux_layers or ()), K)
    base = as_served(open_drafter(str(trio_path() / "eagle31")), bench.facts.layers)
    change = Change(id="other", change="other prompts", mistake="none")
    few = dict(list(bench.prompts.items())[: LEAST_PASSAGES - 1])
    made = [Rendering(change=change, prompts=few)]
    runner = Runner(bench.teacher, passages, K)
    found = try_renderings(runner, base, made, runner.run(base, ()))
    assert not found.renderings
    assert [each.id for each in found.not_applicable] == ["other"]
