"""Shares of lacking tokens by kind of text, from counts that are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ablations import constructed_ablation

from driftscope.ablate.intervention import AS_SERVED, FACTORIAL, INTERVENTIONS
from driftscope.ablate.result import (
    Ablation,
    Drafts,
    Matches,
    ablation_of,
    coverage_of,
    read_ablation,
    to_json,
)
from driftscope.errors import UsageError


def test_shares_are_sums_over_the_prompts() -> None:
    found = coverage_of(
        [
            {"prose": (30, 3), "code": (10, 5)},
            {"prose": (70, 1)},
            {"prose": (20, 2), "code": (30, 9)},
        ]
    )
    assert found.lacking == pytest.approx(20 / 160)
    prose, code = found.by_region
    assert (prose.region, prose.tokens, prose.lacking) == ("prose", 120, pytest.approx(6 / 120))
    assert (code.region, code.tokens, code.lacking) == ("code", 40, pytest.approx(14 / 40))


def test_a_share_of_0_has_an_upper_bound_and_one_prompt_has_no_interval() -> None:
    (prose,) = coverage_of([{"prose": (50, 0)}] * 12).by_region
    assert prose.lacking == 0.0
    assert prose.interval is not None and 0.0 < prose.interval.high < 0.5
    (alone,) = coverage_of([{"prose": (50, 4)}]).by_region
    assert alone.interval is None


def test_no_answer_has_no_region() -> None:
    empty = coverage_of([])
    assert (empty.lacking, empty.by_region) == (0.0, ())


PROMPTS, POSITIONS, K = 12, 10, 3


def _matches(rate: float, seed: int) -> list[Matches]:
    random = np.random.default_rng(seed)
    return [random.random((POSITIONS, K)) < rate for _ in range(PROMPTS)]


def _ablation(**rates: float) -> Ablation:
    named = {name.replace("_", "-"): rate for name, rate in rates.items()}
    return _of({name: _matches(rate, at) for at, (name, rate) in enumerate(named.items())})


def _of(matches: Mapping[str, list[Matches]]) -> Ablation:
    drafts = [
        Drafts(
            intervention=INTERVENTIONS[name],
            matches=each,
            as_served=matches[AS_SERVED],
            figures={"fed_rms": (1.0,) * K},
        )
        for name, each in matches.items()
    ]
    return ablation_of(drafts, coverage_of([]), drafter="d", target="t", not_applicable={})


def test_lengths_rates_and_differences_are_those_of_the_matches() -> None:
    found = _ablation(as_served=0.5, hide_chain=0.9)
    served, hidden = found.effects
    by_hand = np.concatenate(_matches(0.5, 0)).cumprod(axis=1)
    assert served.acceptance.mean_length == pytest.approx(1 + by_hand.sum(axis=1).mean())
    assert served.acceptance.marginal == pytest.approx(by_hand.mean(axis=0))
    assert served.agreement == pytest.approx(np.concatenate(_matches(0.5, 0)).mean(axis=0))
    assert served.conditional[1] == pytest.approx(by_hand[:, 1].mean() / by_hand[:, 0].mean())
    assert hidden.difference == pytest.approx(
        hidden.acceptance.mean_length - served.acceptance.mean_length
    )
    assert "changes acceptance length by +" in hidden.words
    assert found.positions == PROMPTS * POSITIONS and found.decomposition is None


def test_no_change_is_called_none() -> None:
    matches = _matches(0.5, 1)
    found = _of({AS_SERVED: matches, "hide-chain": [each.copy() for each in matches]})
    assert "no change beyond chance" in found.effects[1].words


def test_an_effect_is_rarely_seen_where_there_is_none() -> None:
    """Intervals hold for all interventions together: with five that do nothing, one is wrong in at
    most 5 of 100 runs."""
    wrong = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        rate = random.beta(8, 4, PROMPTS)
        matches = {
            name: [random.random((POSITIONS, K)) < each for each in rate]
            for name in (AS_SERVED, "hide-chain", "hide-sink", "pin-size", "normalise")
        }
        found = _of(matches)
        wrong += any(
            each.interval is not None and each.interval.excludes_zero()
            for each in found.effects[1:]
        )
    assert wrong <= 8  # more are less likely than 1 in 100 at 5 %


def test_the_document_has_every_effect() -> None:
    found = _ablation(as_served=0.5, right_tokens=0.6, right_states=0.7, right_both=0.8)
    document = json.loads(to_json(found))
    assert [each["intervention"]["id"] for each in document["effects"]] == list(FACTORIAL)
    parts = document["decomposition"]
    total = sum(parts[name]["value"] for name in ("tokens", "states", "rest"))
    assert total == pytest.approx(parts["loss"]["value"], abs=1e-8)
    assert document["kind"] == "ablation"


Document = dict[str, Any]


def test_a_document_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    text = to_json(constructed_ablation())
    (tmp_path / "a.json").write_text(text)
    assert to_json(read_ablation(tmp_path / "a.json")) == text


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document.update(kind="report"),
        lambda document: document.update(schema_version=99),
        lambda document: document.update(effects=[]),
        lambda document: document.update(k=9),
        lambda document: document["effects"][0].update(agreement=[None] * 4),
        lambda document: document["effects"][0].update(interval=[1]),
        lambda document: document["decomposition"].pop("rest"),
        lambda document: document["vocabulary"].update(by_region=7),
    ],
)
def test_a_damaged_document_is_one_error(
    tmp_path: Path, damage: Callable[[Document], object]
) -> None:
    document = json.loads(to_json(constructed_ablation()))
    damage(document)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=str(path)):
        read_ablation(path)


@pytest.mark.parametrize("content", ["", "[1]", "null", '{"kind": "ablation"}'])
def test_another_file_is_one_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is no ablation"):
        read_ablation(path)
    with pytest.raises(UsageError, match="is no ablation"):
        read_ablation(tmp_path / "none.json")
