"""The switch that every hook on a drafter asks: whether it runs, and whether at once or later.

Between two forwards on a CPU, a Python function costs more than most of its work, because none of
it is in the processor's caches. From the third forward of a chain on, hooks therefore only note
their arguments there, and the kernels run on the notes once the chain is drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from driftscope_probes.base.guard import Guard


class HookSwitch:
    """The state of the chain in progress that all hooks of a drafter share.

    Values that callers read or set in every step are plain attributes.
    """

    def __init__(self, guard: Guard, *, in_graph: bool) -> None:
        """`in_graph`: whether CUDA graphs record the taps."""
        self._run, self._run_all, self._in_graph = guard.run, guard.run_all, in_graph
        self.active = False
        """Whether a step is being recorded."""
        self.observe: Callable[..., Any] = guard.run
        """Function that runs a hook, see `observer.Switch`: at once, or deferred by `note`."""
        self.noting = False
        """Whether hooks only take notes, from the third forward of the chain in progress on."""
        self.notes: list[tuple[Any, ...]] = []
        """Arguments of `Guard.run`, in order."""
        self.forwards: list[str] = []
        """Execution mode of each forward of the step in progress that Python saw."""
        self._unconditional = in_graph
        """Whether hooks run whatever is recorded: with graph recording, True until the first served
        step. vLLM warms up and captures before that step, and what it captures must contain the
        taps. The gate is closed then."""

    @property
    def should_record(self) -> bool:
        """Whether a hook that fires now must run its kernels."""
        return self.active or self._unconditional or (self._in_graph and _capturing())

    def serving(self) -> None:
        """Mark the warm-up as over, because a real step is in progress."""
        self._unconditional = False
        self.forwards.clear()
        self.notes.clear()  # notes of a chain that was never finished
        self.observe, self.noting = self._run, False

    def note(self, *note: Any) -> None:
        """Keep the arguments of a hook until `flush_notes`."""
        self.notes.append(note)

    def flush_notes(self) -> None:
        """Run the hooks that were noted, after the chain is drafted."""
        self.observe = self._run
        if self.notes:
            self._run_all(self.notes)
            self.notes.clear()


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
