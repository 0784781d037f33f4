"""Near misses equal those of plain loops and of vLLM's own filter."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from driftscope_probes.engine import DraftStep, Verification
from driftscope_probes.near_misses import MOST_LOGITS, KeptLogits, _measured
from driftscope_probes.step_record import Capture

B, K, V = 4, 3, 40
NAMES = ("a", "b", "c", "d")
ORDER, VERIFIED = ("c", "new", "a", "b"), (3, 2, 3, 1)
"""Requests in the order in which they are verified, one of them without a recorded chain, and
their numbers of draft tokens; "d" has ended."""
ACCEPTED = (1, 0, 3, 0)
"""All tokens of "a" are accepted, so that nothing is measured of it."""


def _drafter(**changes: Any) -> Any:
    of = {"samples": False, "compiled": False, "max_requests": B, "device": torch.device("cpu")}
    return SimpleNamespace(**{**of, **changes})


def _capture() -> Capture:
    step = DraftStep(NAMES, bytes(B), K)
    return Capture(step, np.full(B, 5), None)


@pytest.fixture
def step() -> Verification:
    torch.manual_seed(0)
    rows = sum(VERIFIED) + len(VERIFIED)
    ends = np.cumsum(np.array(VERIFIED) + 1)
    sampled = torch.full((len(ORDER), K + 1), -1)
    for row, count in enumerate(ACCEPTED):
        sampled[row, : count + 1] = torch.randint(V, (count + 1,))
    return Verification(
        requests=ORDER,
        first_rows=(ends - np.array(VERIFIED) - 1).tolist(),
        drafted=VERIFIED,
        logits=torch.randn(rows, V),
        sampled=sampled,
        accepted=torch.tensor(ACCEPTED),
        sampling=(None, None, None),
    )


def _measure(
    step: Verification, logits: torch.Tensor, drafts: torch.Tensor, *, by_request: bool = False
) -> np.ndarray:
    near, capture = KeptLogits(_drafter()), _capture()
    near.begin(wanted=True)
    for one in [logits.transpose(0, 1).flatten(0, 1)] if by_request else logits:
        near.keep(one)
    near.drafted(capture, drafts)
    assert near.waiting
    near.verified(step)
    assert not near.waiting and capture.near_misses is not None
    return capture.near_misses.take()


@pytest.mark.parametrize("by_request", [False, True])
def test_ranks_and_closeness_are_those_of_plain_loops(step: Verification, by_request: bool) -> None:
    logits, drafts = torch.randn(K, B, V), torch.randint(V, (B, K))
    right = int(step.sampled[3, 0])
    logits[0, 1, right] = -torch.inf  # the drafter of "b" cannot draft it
    best, second = step.logits[step.first_rows[0] + 1].topk(2).indices.tolist()
    drafts[2, 1] = second  # of "c" the target's second choice was drafted
    found = _measure(step, logits, drafts, by_request=by_request)
    row = step.logits[step.first_rows[0] + 1]
    of_c = logits[1, 2].argsort(descending=True).tolist()
    assert found[2, 0] == of_c.index(int(step.sampled[0, 1])) + 1
    assert found[2, 1] == pytest.approx(float((row[second] - row[best]).exp()))
    assert found[1, 0] == 0.0
    assert np.isnan(found[[0, 3]]).all()


def test_a_device_that_is_not_waited_for_gives_the_same(step: Verification) -> None:
    heat = torch.full((len(ORDER),), 0.8)
    step = step._replace(sampling=(heat, torch.full((len(ORDER),), 6), heat))
    pairs = [(at, own, step.first_rows[at], VERIFIED[at]) for at, own in ((0, 2), (2, 0), (3, 1))]
    index = torch.tensor(pairs).unbind(1)
    logits, drafts = list(torch.randn(K, B, V)), torch.randint(V, (B, K))
    found = dict[bool, dict[int, list[float]]]()
    for waits in (True, False):
        rows, figures = _measured(step, index, drafts, logits, waits=waits)
        known = ~figures.isnan().any(1)
        found[waits] = dict(zip(rows[known].tolist(), figures[known].tolist(), strict=True))
    assert found[True] == found[False]
    assert set(found[True]) == {1, 2}


@pytest.mark.vllm
@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (V, 0.6), (8, 0.7)])
def test_what_top_k_and_top_p_exclude_is_what_vllm_masks(
    step: Verification, top_k: int, top_p: float
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    heat, logits = 0.7, torch.randn(K, B, V)
    n = len(ORDER)
    given = (torch.full((n,), heat), torch.full((n,), top_k), torch.full((n,), top_p))
    target = step.logits[step.first_rows[0] + 1]
    masked = apply_top_k_top_p_pytorch(
        (target / heat)[None].clone(), torch.tensor([top_k]), torch.tensor([top_p])
    )
    excluded = []
    for token in range(V):
        drafts = torch.full((B, K), token)
        excluded.append(_measure(step._replace(sampling=given), logits, drafts)[2, 2])
    assert 0 < sum(excluded) < V
    assert excluded == masked.isinf()[0].float().tolist()


def test_greedy_requests_exclude_nothing(step: Verification) -> None:
    n = len(ORDER)
    greedy = (torch.zeros(n), torch.ones(n), None)
    drafts = torch.randint(V, (B, K))
    found = _measure(step._replace(sampling=greedy), torch.randn(K, B, V), drafts)
    assert found[2, 2] == 0.0


def test_logits_that_change_are_copied_and_too_many_are_not_kept() -> None:
    near, logits = KeptLogits(_drafter(samples=True)), torch.zeros(B, V)
    near.begin(wanted=True)
    near.keep(logits)
    logits += 1.0
    assert not near._by_depth(B)[0].any()
    near.keep(torch.empty(1, MOST_LOGITS, device="meta"))
    near.drafted(_capture(), None)
    assert not near.waiting


def test_an_unwanted_chain_and_one_that_was_drafted_over_wait_for_nothing() -> None:
    near = KeptLogits(_drafter())
    for wanted in (False, True):
        near.begin(wanted=wanted)
        near.keep(torch.zeros(B, V))
        near.drafted(_capture(), None)
        assert near.waiting is wanted
    near.begin(wanted=False)
    assert not near.waiting
