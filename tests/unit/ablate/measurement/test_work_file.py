"""The work file keeps counts exactly, and refuses what is not its own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from driftscope.ablate.run import MeasuredPrompt, WorkFile
from driftscope.errors import UsageError

REQUEST = {"drafter": ["d", None], "--k": 3}


def _measured(key: str, positions: int = 4) -> MeasuredPrompt:
    random = np.random.default_rng(len(key))
    return MeasuredPrompt(
        writing="as-served",
        key=key,
        matches={"as-served": random.random((positions, 3)) < 0.5},
        sums={"as-served": random.random((3, 7)) / 3},
        vocabulary={"prose": (40, 3)},
    )


def test_counts_come_back_to_the_last_digit_after_an_interruption(tmp_path: Path) -> None:
    path = tmp_path / "why.work"
    with pytest.raises(KeyboardInterrupt), WorkFile(path, REQUEST) as work:
        work.add(_measured("a"))
        work.add(_measured("empty", positions=0))
        raise KeyboardInterrupt
    kept = WorkFile(path, REQUEST)
    assert kept.prompts == 2
    for key, positions in (("a", 4), ("empty", 0)):
        mine, theirs = _measured(key, positions), kept.kept("as-served", key)
        assert theirs is not None and theirs.positions == positions
        assert np.array_equal(mine.matches["as-served"], theirs.matches["as-served"])
        assert theirs.matches["as-served"].shape == (positions, 3)
        assert np.array_equal(mine.sums["as-served"], theirs.sums["as-served"])
        assert theirs.vocabulary == {"prose": (40, 3)}
    assert kept.kept("template", "a") is None


def test_nothing_measured_leaves_no_file(tmp_path: Path) -> None:
    with WorkFile(tmp_path / "w", REQUEST):
        pass
    assert not (tmp_path / "w").exists()


def test_the_file_of_another_request_is_refused_with_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "why.work"
    with WorkFile(path, REQUEST) as work:
        work.add(_measured("a"))
    with pytest.raises(UsageError, match=r"why\.work: .* another --k; .*--output"):
        WorkFile(path, {**REQUEST, "--k": 4})


@pytest.mark.parametrize(
    "content", ["", "[]", '{"kind": "report"}', '{"kind": "ablation_work", "request": {}}']
)
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "why.work"
    path.write_text(content)
    with pytest.raises(UsageError, match="is no work file of ablate"):
        WorkFile(path, REQUEST)


def test_a_damaged_entry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "why.work"
    with WorkFile(path, REQUEST) as work:
        work.add(_measured("a"))
    content = json.loads(path.read_text())
    content["measured"][0]["matches"]["as-served"].append("0")
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="is no work file of ablate"):
        WorkFile(path, REQUEST)
