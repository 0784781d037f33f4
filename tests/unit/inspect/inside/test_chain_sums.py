"""Sums along the chains of a prompt equal those of the chains that the reference replays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.checkpoints import TARGET

from driftscope.inspect.inside import InsideSums
from driftscope.inspect.reference.chain import Chain, replay
from driftscope.inspect.reference.drafter import load_drafter, load_target
from driftscope.inspect.trial.drafting import draft
from driftscope.inspect.trial.target import Passage
from driftscope.trace.records import edges_of
from driftscope_lab.trio import encode, load_prompts, trio_path

K, PROMPT_TOKENS = 5, 40


@pytest.fixture(scope="module")
def both() -> tuple[InsideSums, list[Chain], torch.Tensor]:
    target = load_target(TARGET, torch.float64)
    drafter = load_drafter(trio_path() / "eagle3", torch.float64)
    ids = torch.tensor(encode(load_prompts()[0].in_distribution)[:90])
    aux = drafter.config.aux_layers
    with torch.no_grad():
        states = target(ids[None, :-1], aux_layers=aux).aux
    passage = Passage(
        key="0", ids=ids, prompt_tokens=PROMPT_TOKENS, states=dict(zip(aux, states, strict=True))
    )
    found = draft(drafter, target, passage, K, measured=True).inside
    assert found is not None
    anchors = passage.anchors(K).tolist()
    chains = replay(target, drafter, ids.tolist(), PROMPT_TOKENS, anchors, K)
    return found, chains, ids


def test_masses_by_distance_on_the_sink_and_on_the_chain(
    both: tuple[InsideSums, list[Chain], torch.Tensor],
) -> None:
    found, chains, _ = both
    bins = sum(np.array(each.distance_mass).reshape(K, -1) for each in chains)
    assert found.chains == len(chains)
    assert found.bins.shape == (K, len(edges_of(K)))
    assert found.bins == pytest.approx(bins, abs=1e-6)
    for ours, name in ((found.sink, "sink_mass"), (found.own, "self_mass"), (found.fed, "fed_rms")):
        wanted = np.sum([getattr(each, name) for each in chains], axis=0)
        assert ours == pytest.approx(wanted, abs=1e-5)


def test_a_depth_counts_the_drafts_that_are_accepted_so_far(
    both: tuple[InsideSums, list[Chain], torch.Tensor],
) -> None:
    found, chains, ids = both
    reached, right, sure = np.zeros(K), np.zeros(K), np.zeros(K)
    for each in chains:
        for depth in range(K):
            reached[depth] += 1
            sure[depth] += each.top1[depth]
            hit = each.token_ids[depth] == int(ids[each.position + 2 + depth])
            right[depth] += hit
            if not hit:
                break
    assert found.reached == pytest.approx(reached)
    assert found.right == pytest.approx(right)
    assert found.sure == pytest.approx(sure, abs=1e-4)
    assert 0 < right[-1] < reached[0], "otherwise the test shows little"


def test_an_even_sink_is_the_share_of_its_slots(
    both: tuple[InsideSums, list[Chain], torch.Tensor],
) -> None:
    found, chains, _ = both
    assert found.even == pytest.approx(sum(4 / (each.position + 1) for each in chains))
