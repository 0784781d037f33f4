"""Which requests are one unit: of a session, conversation, question or prompt, else each is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from driftscope.analysis.figures.requests import Units, cells_of, units_of
from driftscope.errors import UsageError

ROWS = 12
PROMPTS = [f"p{n % 4}" for n in range(ROWS)]
SESSIONS = [f"s{n // 4}" for n in range(ROWS)]


def _units(column: str | None = None, **columns: Sequence[str | None]) -> Units:
    names = ("prompt_digest", "conversation", "session", "pair", "label")
    table = pa.table(
        {
            "request": [f"r{n}" for n in range(ROWS)],
            **{name: pa.array(columns.get(name, [None] * ROWS), pa.string()) for name in names},
        }
    )
    return units_of(table, np.arange(ROWS), ROWS, column)


def _same(units: Units, names: Sequence[str | None]) -> bool:
    """Whether requests share a unit exactly if they share a name."""
    pairs = set(zip(units.unit.tolist(), names, strict=True))
    return len(pairs) == len(set(units.unit.tolist())) == len(set(names))


def test_without_a_key_each_request_is_one() -> None:
    units = _units()
    assert units.unit.tolist() == list(range(ROWS))
    assert (units.noun, units.seen) == ("request", False)


def test_equal_prompts_are_one_unit() -> None:
    units = _units(prompt_digest=PROMPTS, conversation=PROMPTS)
    assert _same(units, PROMPTS)
    assert (units.noun, units.seen, units.crossed) == ("prompt", True, None)
    assert units.prompt is not None


def test_a_question_of_a_replay_goes_before_the_prompt() -> None:
    """One question in several templates has several prompts."""
    asked = [f"q{n % 2}" for n in range(ROWS)]
    units = _units(prompt_digest=PROMPTS, pair=asked)
    assert _same(units, asked)
    assert units.noun == "question"


def test_turns_of_a_conversation_are_one_unit_and_a_first_prompt_alone_is_none() -> None:
    own = [f"p{n}" for n in range(ROWS)]
    root = ["p0", "p0", "p0", "p3", "p3", *own[5:]]
    units = _units(prompt_digest=own, conversation=root)
    assert _same(units, root)
    assert units.noun == "request group"
    assert units.in_time is not None


def test_a_session_contains_its_prompts() -> None:
    units = _units(session=SESSIONS, prompt_digest=[f"p{n}" for n in range(ROWS)])
    assert _same(units, SESSIONS)
    assert (units.noun, units.crossed) == ("session", None)


def test_prompts_that_sessions_share_cross_them() -> None:
    units = _units(session=SESSIONS, prompt_digest=PROMPTS)
    assert _same(units, SESSIONS)
    assert units.crossed is not None
    assert len(set(units.crossed.tolist())) == 4


def test_sessions_of_one_prompt_each_lie_within_prompts() -> None:
    own = [f"s{n}" for n in range(ROWS)]
    units = _units(session=own, prompt_digest=PROMPTS)
    assert _same(units, PROMPTS)
    assert units.crossed is None


def test_a_label_is_a_unit_only_if_it_is_asked_for() -> None:
    labels = [f"l{n % 3}" for n in range(ROWS)]
    assert len(set(_units(label=labels, prompt_digest=PROMPTS).unit.tolist())) == 4
    asked = _units("label", label=labels, prompt_digest=PROMPTS)
    assert _same(asked, labels)
    assert (asked.noun, asked.seen) == ("label", True)


def test_the_request_can_be_asked_for() -> None:
    assert len(set(_units("request", prompt_digest=PROMPTS).unit.tolist())) == ROWS


def test_an_unknown_column_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"--cluster 'user': give one of session, [^\n]+"):
        _units("user")


def test_requests_of_one_unit_are_in_one_cluster_of_a_very_large_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("driftscope.analysis.figures.requests.MAX_CLUSTERS", 10)
    random = np.random.RandomState(0)
    strata, unit = random.randint(0, 3, 200), random.randint(0, 50, 200)
    cells, clusters = cells_of(strata, unit)
    assert len(np.unique(cells)) <= 10
    assert all(len(np.unique(clusters[unit == each])) == 1 for each in range(50))
    for cell in np.unique(cells):
        assert len(np.unique(strata[cells == cell])) == 1
        assert len(np.unique(clusters[cells == cell])) == 1
