"""Sums along the chains of a prompt equal those of the chains that the reference replays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.checkpoints import TARGET
from support.inspections import inside_sums

from driftscope.analysis.statistics.drift import Answer
from driftscope.inspect.reference.chain import Chain, replay
from driftscope.inspect.reference.drafter import load_drafter, load_target
from driftscope.inspect.trial.drafting import draft
from driftscope.inspect.trial.result import Inside, InsideSums, inside_of
from driftscope.inspect.trial.target import Passage
from driftscope.trace.records import edges_of
from driftscope.vocabulary import Growth
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


def _answers(found: Inside) -> tuple[Answer | None, Growth]:
    return found.attention_drift.answer if found.attention_drift else None, found.grows


def test_a_drafter_that_keeps_still_is_said_to() -> None:
    found = inside_of(inside_sums(24))
    assert _answers(found) == (Answer.NO_DRIFT, Growth.KEEPS_ITS_SIZE)
    assert found.lines[0].startswith("attention does not drift over depth")
    assert "keeps its size" in found.lines[1]


def test_drift_and_growth_are_said() -> None:
    found = inside_of(inside_sums(24, shift=0.15, growth=2.0))
    assert _answers(found) == (Answer.DRIFT, Growth.GROWS)
    assert found.lines[0].startswith("attention drifts over depth")
    assert "grows: 2.0" in found.lines[1]


def test_few_prompts_and_values_between_the_thresholds_cannot_tell() -> None:
    found = inside_of(inside_sums(8, shift=0.15, growth=1.12))
    assert _answers(found) == (Answer.CANNOT_TELL, Growth.CANNOT_TELL)
    assert "at least 10 prompts" in found.lines[0]
    assert "cannot be told" in found.lines[1]


def test_a_depth_that_no_draft_reaches_has_no_rate() -> None:
    confidence = inside_of(inside_sums(24)).confidence
    assert confidence.sure == pytest.approx([0.8, 0.8, 0.8, None])
    assert [each and each.value for each in confidence.right] == [0.5, 0.5, 0.5, None]
    line = inside_of(inside_sums(24)).lines[-1]
    assert "80% sure of its first token, which is right in 50%" in line


def test_one_depth_has_nothing_that_could_change() -> None:
    found = inside_of(inside_sums(12, k=1))
    assert found.attention_drift is None and found.growth is None
    assert len(found.lines) == 1


@pytest.mark.parametrize("seed", range(5))
def test_rates_of_wrong_answers(seed: int) -> None:
    """40 drafters that keep still: none is said to drift or to grow."""
    for at in range(8):
        found = inside_of(inside_sums(12, seed=100 * seed + at))
        assert Answer.DRIFT is not (found.attention_drift and found.attention_drift.answer)
        assert found.grows is not Growth.GROWS
