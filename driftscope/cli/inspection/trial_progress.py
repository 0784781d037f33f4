"""Progress of a trial on stderr: how long it will take, bars, and what Ctrl-C keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import typer

from driftscope.cli.shared.progress_bar import steps
from driftscope.inspect.trial.acceptance import Acceptance
from driftscope.inspect.trial.duration import Duration
from driftscope.inspect.trial.trial_listener import TrialListener

T = TypeVar("T")
_MINUTE_S = 60.0
_CLOSE = 1.2
"""Ratio of both ends of an estimate up to which one of them is enough."""


class TrialProgress(TrialListener):
    """Listener that prints to stderr."""

    def expected(self, estimate: Callable[[], Duration]) -> None:
        """Print the estimate."""
        typer.echo(estimate_line(estimate()), err=True)

    def measured(self, as_is: Acceptance, repairs: int) -> None:
        """Print the acceptance length as it is, and that it is kept from here on."""
        follow = f"; {repairs} repairs follow (Ctrl-C keeps what is measured)" if repairs else ""
        typer.echo(f"accepts {as_is.length:.2f} tokens a round as it is{follow}", err=True)

    def each(self, items: Iterable[T], what: str, total: int) -> Iterable[T]:
        """Return `items` with a bar on a terminal."""
        return steps(items, what, total=total)


def estimate_line(duration: Duration) -> str:
    """Return the estimate in words."""
    least, most = _words(duration.least_s), _words(duration.most_s)
    near = least == most or duration.most_s <= _CLOSE * duration.least_s
    span = most if near else f"{least} to {most}"
    return f"estimated duration: {span} (from a short run of both models)"


def _words(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / _MINUTE_S:.1f} min"
