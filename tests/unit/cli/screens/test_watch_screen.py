"""The screen of `watch` prints texts of any origin as visible characters, in bounded columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.hostile.texts import TEXTS

from driftscope.cli.screens.watch import WIDTH, screen
from driftscope.telemetry import instruments as i
from driftscope.telemetry.instruments import Tally
from driftscope.telemetry.watch import view


def _printed(target: str, tally: Tally) -> list[str]:
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    console.print(screen(target, view(tally.snapshot()), span="since the start", state="recording"))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_nothing_steers_the_terminal(text: str) -> None:
    tally = Tally()
    tally.add(i.UNDRAFTED_STEPS, 1, reason=text)
    lines = _printed(f"runs/{text}", tally)
    assert all(line.isprintable() for line in lines)


def test_a_rate_above_one_draws_no_longer_bar() -> None:
    tally = Tally()
    tally.set(i.CONFIGURED_K, 1)
    tally.add(i.ROUNDS, 1)
    tally.add(i.REACHED, 1e15, depth=1)
    lines = _printed("run", tally)
    assert max(line.count("█") for line in lines) == 10


def test_a_password_is_not_printed() -> None:
    assert "s3cret" not in "".join(_printed("http://me:s3cret@host:9464", Tally()))
    assert _printed("runs/a@b", Tally())[0].startswith("runs/a@b ")


def test_every_reason_for_a_missing_draft_is_named() -> None:
    tally = Tally()
    reasons = ("k_zero", "preempted", "structured_output", "token_budget")
    for reason in reasons:
        tally.add(i.UNDRAFTED_STEPS, 1, reason=reason)
    text = " ".join(_printed("runs/a", tally))
    for reason in reasons:
        assert f"{reason} " in text
    assert "…" not in text
