"""Rows of copying rules: every mark is followed by the token it asks for, all else by the table."""

from itertools import pairwise
from random import Random

from driftscope_lab.training.rows import SUCCESSORS, CopyRules

MARKS, WORDS = range(6, 14), range(14, 60)


def test_every_mark_is_followed_by_the_token_so_many_places_before_it() -> None:
    rules, rng = CopyRules(first_token=0, marks=MARKS, words=WORDS), Random(1)
    marks = 0
    for _ in range(50):
        row = rules.row(rng, 80)
        assert len(row) == 80
        assert row[0] == 0
        copied = 0
        for at, token in enumerate(row[:-1]):
            if token in MARKS and at != copied:
                marks, copied = marks + 1, at + 1
                assert row[copied] == row[at - 1 - (token - MARKS.start)]
    assert marks > 300


def test_a_word_without_a_mark_has_four_successors() -> None:
    rules, rng = CopyRules(first_token=0, marks=MARKS, words=WORDS), Random(2)
    after: dict[int, set[int]] = {word: set() for word in WORDS}
    for _ in range(200):
        row = rules.row(rng, 80)
        for one, two in pairwise(row[1:]):
            if one in WORDS and two in WORDS:
                after[one].add(two)
    assert all(len(found) <= SUCCESSORS for found in after.values())
    assert sum(len(found) for found in after.values()) > len(WORDS) * (SUCCESSORS - 1)


def test_rows_repeat_by_seed() -> None:
    one, two = (CopyRules(first_token=0, marks=MARKS, words=WORDS) for _ in range(2))
    assert one.row(Random(3), 50) == two.row(Random(3), 50)
    assert one.row(Random(3), 50) != one.row(Random(4), 50)
