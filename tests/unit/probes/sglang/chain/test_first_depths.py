"""Depth 1 of a chain comes from the round before, row by row, and never from an older one."""

import torch

from driftscope_probes.sglang.chain import FirstDepths, ForwardStates


def states(*values: float) -> ForwardStates:
    column = torch.tensor(values)[:, None]
    return ForwardStates(queries=(column,), fed=10 * column, captured_normed=(column, column))


def test_rows_follow_the_batch_across_forwards() -> None:
    kept = FirstDepths(8)
    kept.keep(("a", "b"), states(1, 2))
    kept.keep(("c",), states(3))
    taken = kept.take(("b", "c", "a"))
    assert taken is not None and taken.queries[0].flatten().tolist() == [2, 3, 1]
    assert taken.fed is not None and taken.fed.flatten().tolist() == [20, 30, 10]
    assert [part.flatten().tolist() for part in taken.captured_normed] == [[2, 3, 1]] * 2
    assert taken.entering is None


def test_a_newer_round_replaces_and_a_skipped_one_drops() -> None:
    kept = FirstDepths(8)
    kept.keep(("a", "b"), states(1, 2))
    kept.keep(("a",), states(5))
    kept.drop(("b",))
    assert kept.missing(("a", "b")) == {"b"}
    taken = kept.take(("a", "b"))
    assert taken is not None and taken.queries[0][0] == 5 and len(taken.queries[0]) == 2


def test_nothing_known_is_nothing_taken() -> None:
    assert FirstDepths(8).take(("a",)) is None


def test_the_oldest_requests_give_way() -> None:
    kept = FirstDepths(2)
    for number, name in enumerate("abc"):
        kept.keep((name,), states(number))
    assert kept.missing("abc") == {"a"}
