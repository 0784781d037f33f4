"""Effects of interventions from matches that are known, in words that fit them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from driftscope.ablate.intervention import AS_SERVED, FACTORIAL, INTERVENTIONS
from driftscope.ablate.result import Ablation, Drafts, Matches, ablation_of, coverage_of, to_json

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
