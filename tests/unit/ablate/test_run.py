"""Ablation runs: the order of the work, the results, and their place in a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import constructed_drafter as constructed
from support.checkpoints import TARGET, added, changed

from driftscope.ablate.intervention import AS_SERVED, FACTORIAL, INTERVENTIONS
from driftscope.ablate.result import (
    Ablation,
    Matches,
    ablation_of,
    coverage_of,
    to_json,
)
from driftscope.ablate.run import (
    LEAST_NGRAM,
    MOST_NGRAM,
    DraftVocabulary,
    ServedDrafter,
    ablated_draft,
    better_of,
    looked_up,
)
from driftscope.inspect.checkpoints import open_drafter, open_target
from driftscope.inspect.trial.drafting import Prefix, as_served
from driftscope.inspect.trial.target import Passage
from driftscope.inspect.trial.trial import served_dtype
from driftscope_lab.trio import trio_path

PROMPT = "Q: "
CODE = "```py\nx{}\n```\n"


class Characters:
    """A tokenizer whose tokens are the characters of ASCII."""

    all_special_ids = (0,)

    def decode(self, ids: list[int], **_: bool) -> str:
        return "".join(map(chr, ids))

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [chr(token) for token in ids]


def _drafter(known: list[int] | None) -> Any:
    if known is None:
        return SimpleNamespace(config=SimpleNamespace(draft_vocab_size=None))
    d2t = torch.tensor(known) - torch.arange(len(known))
    return SimpleNamespace(
        config=SimpleNamespace(draft_vocab_size=len(known)),
        d2t=d2t,
        target_ids=lambda ids: ids + d2t[ids],
    )


def _passage(answer: str) -> Passage:
    ids = torch.tensor([ord(token) for token in PROMPT + answer])
    return Passage(key="a", ids=ids, prompt_tokens=len(PROMPT), states={})


class Silent(Characters):
    """A tokenizer whose tokens are no text."""

    def decode(self, _ids: list[int], **_: bool) -> str:
        return ""


@pytest.mark.parametrize(
    ("known", "tokenizer", "answer", "counted"),
    [
        (
            [token for token in range(128) if chr(token) not in "{}"],
            Characters(),
            f"see}} it\n{CODE}",
            {"prose": (8, 1), "code": (len(CODE), 2)},
        ),
        (None, Characters(), "a {} b", {"prose": (6, 0)}),
        (None, Silent(), "ab", {"template": (2, 0)}),
    ],
    ids=["lacking", "whole", "no text"],
)
def test_lacking_tokens_are_counted_in_their_region(
    known: list[int] | None, tokenizer: Characters, answer: str, counted: dict[str, Any]
) -> None:
    assert DraftVocabulary(_drafter(known), tokenizer).count(_passage(answer)) == counted


@pytest.mark.parametrize(
    ("targets", "drafters", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, {"torch_dtype": "float16"}, torch.bfloat16),
        ({"dtype": "torch.float16"}, {}, torch.float16),
        ({}, {"torch_dtype": "bfloat16"}, torch.bfloat16),
        ({"torch_dtype": "float32"}, {"torch_dtype": "bfloat16"}, torch.float32),
        ({}, {"torch_dtype": 16}, torch.float32),
    ],
)
def test_the_targets_config_decides_then_the_drafters(
    targets: dict[str, Any], drafters: dict[str, Any], dtype: torch.dtype
) -> None:
    target = replace(open_target(str(TARGET)), raw=targets, fields=targets)
    drafter = replace(open_drafter(str(trio_path() / "eagle3")), raw=drafters, fields=drafters)
    assert served_dtype(target, drafter) is dtype


def test_weights_states_and_embeddings_are_rounded_and_the_original_is_not(tmp_path: Path) -> None:
    third = torch.tensor(1 / 3).bfloat16()
    folder = changed(tmp_path / "d", weights=added("fc.weight", torch.full((256, 768), 1 / 3)))
    drafter = as_served(open_drafter(str(folder)), 4).build("cpu")

    class Target:
        def embed(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.full((*ids.shape, 4), 1 / 3)

    served = ServedDrafter(drafter, Target(), torch.bfloat16)
    assert served.drafter.fc.weight.dtype is torch.bfloat16
    assert bool((served.drafter.fc.weight == third).all())
    assert float(drafter.fc.weight[0, 0]) == pytest.approx(1 / 3, abs=1e-7)
    assert bool((served.embed(torch.tensor([1])) == third).all())
    states = {1: torch.full((1, 2, 4), 1 / 3)}
    passage = Passage(key="a", ids=torch.arange(3), prompt_tokens=1, states=states)
    assert bool((served.cast(passage).states[1] == third).all())


def test_the_ends_of_chains_are_those_that_sorting_finds() -> None:
    at = torch.arange(constructed.PROMPT - 1, constructed.PROMPT + 11)
    random = torch.Generator().manual_seed(1)
    passage = replace(
        constructed.passages(3)[0],
        runner_up=torch.randint(0, 20, (16,), generator=random),
        closeness=torch.rand(16, generator=random),
    )

    def drafter() -> Any:
        made = constructed.ConstructedDrafter(constructed.KNOWN["noisy head"], 5)
        made.config.draft_vocab_size, made.target_ids = 18, lambda ids: ids + 1
        made.lm_head = lambda postnorm: postnorm[..., 1:19]
        return made

    same = drafter()
    drafted = ablated_draft(Prefix.run_over(same, same, passage), 4, INTERVENTIONS[AS_SERVED], at)
    same, wanted, over = drafter(), list[tuple[float, float]](), set[int]()
    for step, right in Prefix.run_over(same, same, passage).steps(at, 4):
        for n, token in enumerate(step.token_ids.tolist()):
            if n in over or token == right[n]:
                continue
            over.add(n)
            best = (step.logits[n].argsort(descending=True) + 1).tolist()
            rank = best.index(int(right[n])) + 1 if int(right[n]) in best else 0
            place = int(at[n]) + 1 + step.depth - constructed.PROMPT
            second = token == passage.runner_up[place]
            wanted.append((rank, float(passage.closeness[place]) if second else 0.0))
    assert drafted.rejections.tolist() == [pytest.approx(row) for row in wanted]
    assert 0 in {rank for rank, _ in wanted} and len(over) > 5


@pytest.mark.vllm
def test_lookup_drafts_what_vllms_own_lookup_drafts() -> None:
    from vllm.v1.spec_decode import ngram_proposer

    random, k, hits = np.random.default_rng(0), 4, 0
    for anchor in np.repeat(np.arange(6, 54), 8).tolist():
        ids = random.integers(0, 5, 60)
        drafted = ngram_proposer._find_longest_matched_ngram_and_propose_tokens(
            ids[: anchor + 2], LEAST_NGRAM, MOST_NGRAM, 1000, k
        )
        wanted = [n < len(drafted) and drafted[n] == ids[anchor + 2 + n] for n in range(k)]
        (found,) = looked_up(torch.tensor(ids), torch.tensor([anchor]), k).tolist()
        assert found == wanted
        hits += sum(found)
    assert hits > 50


def test_the_better_draft_is_the_one_that_is_accepted_further() -> None:
    first = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]]).bool()
    second = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1]]).bool()
    assert better_of(first, second).equal(torch.stack([second[0], first[1], first[2]]))


def test_shares_are_sums_over_the_prompts() -> None:
    with_code = {"prose": (30, 3), "code": (10, 5)}, {"prose": (20, 2), "code": (30, 9)}
    found = coverage_of([with_code[0], {"prose": (70, 1)}, with_code[1]])
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
    figures = {name: {"fed_rms": (1.0,) * K} for name in matches}
    return ablation_of(
        matches, figures, coverage_of([]), None, drafter="d", target="t", not_applicable={}
    )


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
    found = _of({AS_SERVED: matches, "hide-chain": [match.copy() for match in matches]})
    assert "no change beyond chance" in found.effects[1].words


def test_an_effect_is_rarely_seen_where_there_is_none() -> None:
    """Intervals hold for all interventions together: with five that do nothing, one is wrong in at
    most 5 of 100 runs."""
    wrong = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        rate = random.beta(8, 4, PROMPTS)
        matches = {
            name: [random.random((POSITIONS, K)) < share for share in rate]
            for name in (AS_SERVED, "hide-chain", "hide-sink", "pin-size", "normalise")
        }
        found = _of(matches)
        wrong += any(
            effect.interval is not None and effect.interval.excludes_zero()
            for effect in found.effects[1:]
        )
    assert wrong <= 8  # more are less likely than 1 in 100 at 5 %


def test_the_document_has_every_effect() -> None:
    found = _ablation(as_served=0.5, right_tokens=0.6, right_states=0.7, right_both=0.8)
    document = json.loads(to_json(found))
    assert [effect["intervention"]["id"] for effect in document["effects"]] == list(FACTORIAL)
    parts = document["decomposition"]
    total = sum(parts[name]["value"] for name in ("tokens", "states", "rest"))
    assert total == pytest.approx(parts["loss"]["value"], abs=1e-8)
    assert document["kind"] == "ablation"
