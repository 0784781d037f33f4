"""The estimated duration of a trial is one line on stderr."""

from __future__ import annotations

import pytest
from support.inspections import K, rounds

from driftscope.cli.inspection.trial_progress import TrialProgress, estimate_line
from driftscope.inspect.trial.acceptance import acceptance_of
from driftscope.inspect.trial.duration import Duration


@pytest.mark.parametrize(
    ("least_s", "most_s", "words"),
    [
        (0.2, 0.9, "1 s"),
        (20.4, 50, "20 s to 50 s"),
        (50, 90, "50 s to 1.5 min"),
        (100, 119, "2.0 min"),
    ],
)
def test_the_span_is_in_seconds_or_minutes(least_s: float, most_s: float, words: str) -> None:
    line = estimate_line(Duration(least_s=least_s, most_s=most_s))
    assert line == f"estimated duration: {words} (from a short run of both models)"


def test_nothing_is_printed_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    progress = TrialProgress()
    progress.expected(lambda: Duration(least_s=1, most_s=9))
    progress.measured(acceptance_of(rounds(0.5, 1), K), 25)
    assert list(progress.each([1, 2], "Trying repairs", 2)) == [1, 2]
    printed = capsys.readouterr()
    assert not printed.out
    assert "1 s to 9 s" in printed.err
    assert "25 repairs follow (Ctrl-C keeps what is measured)" in printed.err
