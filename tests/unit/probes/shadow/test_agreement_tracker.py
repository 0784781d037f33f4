"""Chains that were not served are compared with the tokens that the target then produces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from driftscope.trace.format.records import ShadowRow
from driftscope.trace.write.writer import TraceWriter
from driftscope_probes.base.step_view import DraftStep
from driftscope_probes.shadow.agreement_tracker import FOLLOWED_STEPS, AgreementTracker, ShadowStep
from driftscope_probes.shadow.host_copy import HostCopy

K = 3
A_TEXT = [100 + place for place in range(40)]
"""The target's text of request "a": the token of each position."""


@pytest.fixture
def writer(tmp_path: Path) -> TraceWriter:
    return TraceWriter(tmp_path / "run", source="worker0-1")


@pytest.fixture
def tracker(writer: TraceWriter) -> AgreementTracker:
    return AgreementTracker(("pin-size", "hide-chain"), writer, keep_ids=False)


def step(
    number: int,
    position: int,
    *,
    drafts: tuple[int, ...] = (),
    rejected: int = 0,
    text: list[int] = A_TEXT,
    chains: list[list[int]] | None = None,
    prefilling: bool = False,
    requests: tuple[str, ...] = ("a",),
) -> ShadowStep:
    """Return a step of one request whose last verified token is at `position`. Its rows are the
    accepted tokens before that, and `rejected` ones after it with the ids `drafts`."""
    accepted = list(range(max(0, position - 1), position + 1))
    places = [*accepted, *range(position + 1, position + 1 + rejected)]
    tokens = [*(text[place] for place in accepted), *drafts]
    verified = HostCopy(
        [
            torch.tensor([0, len(places)]),
            torch.tensor([len(accepted) - 1]),
            torch.tensor(places),
            torch.tensor(tokens),
            torch.tensor([text[position + 1]], dtype=torch.int32),
        ]
    )
    drafted = None if chains is None else HostCopy([torch.tensor([each]) for each in chains])
    view = DraftStep(requests, bytes([prefilling]), K)
    return ShadowStep(view, verified, number, 5.0, None, drafted)


def right(position: int) -> list[int]:
    return A_TEXT[position + 2 : position + 2 + K]


def test_a_chain_is_compared_once_the_target_has_produced_its_places(
    tracker: AgreementTracker,
) -> None:
    good = right(10)
    begun = step(7, 10, chains=[[good[0], -1, good[2]], good, [-1, *good[1:]]])
    assert tracker.rows([begun]) == []
    assert tracker.rows([step(8, 12, drafts=(-7,), rejected=1)]) == []  # knows up to position 13
    expected = {"step": 7, "time_s": 5.0, "request": "a", "position": 10, "k": K, "known": K}
    assert tracker.rows([step(9, 13)]) == [
        ShadowRow(**expected, intervention="pin-size", agreed=3, served_agreed=1),
        ShadowRow(**expected, intervention="hide-chain", agreed=0, served_agreed=1),
    ]
    assert tracker.rows([step(10, 14)]) == tracker.rest() == []


def test_a_rejected_draft_is_not_the_targets_token(tracker: AgreementTracker) -> None:
    good = right(10)
    tracker.rows([step(1, 10, chains=[good, good, good])])
    wrong = (-1, -2, -3)
    tracker.rows([step(2, 11, drafts=wrong, rejected=3)])  # one token: position 12
    tracker.rows([step(3, 12, drafts=wrong, rejected=3)])
    (one, _) = tracker.rows([step(4, 13, drafts=wrong, rejected=3)])
    assert (one.known, one.agreed) == (K, K)


def test_an_answer_that_ends_leaves_the_rest_unknown(tracker: AgreementTracker) -> None:
    good = right(10)
    tracker.rows([step(1, 10, chains=[good, good, good])])
    tracker.rows([step(2, 11)])
    other = [step(3 + n, 5, requests=("b",)) for n in range(FOLLOWED_STEPS * K)]
    rows = tracker.rows(other)
    assert [(row.known, row.agreed) for row in rows] == [(1, 1)] * 2
    tracker.rows([step(40, 10, chains=[good, good, good])])
    assert [row.known for row in tracker.rest()] == [0, 0]


def test_a_preempted_request_is_matched_by_position(tracker: AgreementTracker) -> None:
    """It reads its whole text again, chunk by chunk, and continues where it was."""
    good = right(10)
    tracker.rows([step(1, 10, chains=[good, good, good])])
    assert tracker.rows([step(2, 4, prefilling=True)]) == []
    assert tracker.rows([step(3, 11)]) == []
    (one, _) = tracker.rows([step(4, 13)])
    assert (one.known, one.agreed) == (K, K)


def test_a_gap_in_what_is_known_ends_the_prefix(tracker: AgreementTracker) -> None:
    good = right(10)
    tracker.rows([step(1, 10, chains=[good, good, good])])
    rows = tracker.rows([step(n, 20 + n) for n in range(2, 2 + FOLLOWED_STEPS * K)])
    assert [row.known for row in rows] == [0, 0]


def test_a_request_that_is_still_prefilling_has_no_chain(tracker: AgreementTracker) -> None:
    tracker.rows([step(1, 10, chains=[[1, 2, 3]] * 3, prefilling=True)])
    assert tracker.rest() == []


def test_tokens_are_written_only_if_they_are_kept(writer: TraceWriter) -> None:
    kept = AgreementTracker(("pin-size",), writer, keep_ids=True)
    kept.rows([step(1, 10, chains=[right(10), [4, 5, 6]])])
    assert [row.token_ids for row in kept.rest()] == [[4, 5, 6]]


def test_an_error_is_counted_and_ends_the_comparison(
    tracker: AgreementTracker, writer: TraceWriter
) -> None:
    tracker.rows([step(1, 10, chains=[right(10)] * 3)])
    broken = step(2, 11)._replace(verified=HostCopy([]))
    assert tracker.rows([broken, step(3, 13)]) == []
    assert tracker.failed
    assert tracker.rest() == []
    assert writer.status().errors == {"shadow_rows": 1}
