"""Interventions on the shipped drafters, outside any engine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from driftscope.ablate.chains import NEAREST_SLOTS, AblatedDraft, AttentionEdit, ablated_draft
from driftscope.ablate.intervention import INTERVENTIONS, RIGHT_BOTH, RIGHT_TOKENS, Attention
from driftscope.inspect.checkpoints import open_drafter
from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.trial.drafting import FIGURES, Prefix, as_served, draft
from driftscope.inspect.trial.target import Passage, Teacher
from driftscope.workloads.suites.readers import prompts_of
from driftscope_lab.trio import trio_path

pytestmark = pytest.mark.slow

K = 4


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    torch.set_num_threads(1)
    return Teacher(trio_path() / "target")


@pytest.fixture(scope="module")
def passage(teacher: Teacher) -> Passage:
    chosen = prompts_of("trio")[:1]
    prompts = {each.key: teacher.encode(each.messages, each.text) for each in chosen}
    (only,) = teacher.passages(prompts, set(range(7)))
    return only


@pytest.fixture(scope="module", params=["eagle3", "eagle31"])
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return as_served(open_drafter(str(trio_path() / request.param)), 4).build("cpu")


def _draft(
    name: str, drafter: Drafter, teacher: Teacher, passage: Passage, anchors: Tensor | None = None
) -> AblatedDraft:
    at = passage.anchors(K) if anchors is None else anchors
    return ablated_draft(Prefix.of(drafter, teacher, passage), K, INTERVENTIONS[name], at)


def _accepted(drafted: AblatedDraft) -> list[int]:
    return drafted.matches.int().cumprod(1).sum(1).tolist()  # type: ignore[no-any-return]


def _figure(drafted: AblatedDraft, name: str) -> list[float]:
    return drafted.figures[:, FIGURES.index(name)].tolist()  # type: ignore[no-any-return]


def test_as_served_is_what_the_reference_drafts(
    drafter: Drafter, teacher: Teacher, passage: Passage
) -> None:
    mine = _draft("as-served", drafter, teacher, passage)
    reference = draft(drafter, teacher, passage, K, measured=True)
    assert _accepted(mine) == reference.accepted.tolist()
    assert reference.figures is not None
    torch.testing.assert_close(mine.figures, reference.figures)


def test_right_tokens_and_states_at_depth_d_are_depth_1_of_a_later_position(
    drafter: Drafter, teacher: Teacher, passage: Passage
) -> None:
    every = passage.anchors(K)
    both = _draft(RIGHT_BOTH, drafter, teacher, passage).matches
    for depth in range(1, K):
        assert both[:-depth, depth].tolist() == both[depth:, 0].tolist(), depth
    assert len(every) == len(both)


def test_right_tokens_change_nothing_up_to_the_first_wrong_one(
    drafter: Drafter, teacher: Teacher, passage: Passage
) -> None:
    served = _draft("as-served", drafter, teacher, passage)
    assert _accepted(_draft(RIGHT_TOKENS, drafter, teacher, passage)) == _accepted(served)


def test_hidden_slots_get_no_attention(
    drafter: Drafter, teacher: Teacher, passage: Passage
) -> None:
    assert max(_figure(_draft("hide-chain", drafter, teacher, passage), "self_mass")) == 0.0
    hidden = _draft("hide-sink", drafter, teacher, passage)
    assert max(_figure(hidden, "sink_mass")) == 0.0
    names = ("sink_mass", "prompt_mass", "generated_mass", "self_mass")
    total = sum(torch.tensor(_figure(hidden, name)) for name in names)
    torch.testing.assert_close(total, torch.ones(K))


def test_the_sinks_share_stays_that_of_depth_1(
    drafter: Drafter, teacher: Teacher, passage: Passage
) -> None:
    kept = _figure(_draft("restore-sink", drafter, teacher, passage), "sink_mass")
    assert kept == pytest.approx([kept[0]] * K, abs=1e-6)
    served = _figure(_draft("as-served", drafter, teacher, passage), "sink_mass")
    assert served[0] == pytest.approx(kept[0], abs=1e-6)


def test_a_pinned_state_keeps_its_size(teacher: Teacher, passage: Passage) -> None:
    drafter = as_served(open_drafter(str(trio_path() / "eagle3")), 4).build("cpu")
    fed: list[float] = []
    step = drafter.step

    def watched(**call: Tensor) -> object:
        fed.append(float(call["hidden"].square().mean(-1).sqrt().mean()))
        return step(**call)  # type: ignore[arg-type]

    drafter.step = watched  # type: ignore[method-assign, assignment]
    anchors = passage.anchors(K)[:1]
    _draft("pin-size", drafter, teacher, passage, anchors)
    assert fed[1:] == pytest.approx([fed[1]] * (K - 1), rel=1e-5)
    fed.clear()
    _draft("as-served", drafter, teacher, passage, anchors)
    assert fed[-1] > 1.1 * fed[1]


def test_only_the_nearest_slots_are_seen() -> None:
    anchors = torch.tensor([NEAREST_SLOTS + 5])
    slots = NEAREST_SLOTS + 20
    for depth in (1, 3):
        edit = AttentionEdit(Attention.LAST_SLOTS, anchors, slots, DEFAULT_N_SINK).at(depth)
        even = torch.zeros(1, 1, 1, slots + depth - 1)
        even[..., : int(anchors) + 1] = 1.0
        even[..., slots:] = 1.0
        seen = edit(0, even / even.sum())
        assert int((seen > 0).sum()) == NEAREST_SLOTS
        assert float(seen.sum()) == pytest.approx(1.0)
        assert float(seen[..., int(anchors)]) > 0
