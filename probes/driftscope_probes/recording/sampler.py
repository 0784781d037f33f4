"""Which draft steps are recorded, and at what rate: fixed, or governed by a budget.

Steps are drawn independently of what is in them, and each recorded chain carries the rate that was
in force, so that weighting by its inverse leaves every estimate unbiased.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from driftscope_probes.base.settings import DEFAULT_BUDGET

FIRST_RATE = 1 / 16
"""Until the first recorded steps have shown what one costs."""
LEAST_RATE = 1 / 4096
WINDOW = 64
"""Steps of each sort that the costs are medians of: one-off costs, such as a kernel's compilation,
then do not count."""
SEEN = 0.9
"""Share of what the probe takes that clocks inside its hooks see. The rest is the way into a hook
and back, and vLLM's own code running slower after one. Assumed, after short runs of `make bench`,
which measures the whole."""
AIM = 0.7
"""Share of the budget that the governor spends: a budget is a bound, and what it knows of costs is
not exact."""
EVERY_STEPS = 32
"""Steps between two decisions."""


@dataclass(slots=True)
class Costs:
    """Medians over the last steps, seconds."""

    step_s: float = 0.0
    """A step without the probe."""
    recorded_s: float = 0.0
    """The probe's own time in a recorded step: on the serving thread, beside it, and on the
    writer's, with which the serving thread shares its interpreter."""
    passed_s: float = 0.0
    """The same of a step that is not recorded."""


class Sampler:
    """Decides for each draft step; `every` fixes the rate at 1 / every, else `budget` governs it.

    =======================  ==================================================================
    `take()`                 whether to record the step that is about to be drafted
    `note(...)`              what finished steps took
    `note_encoding(s)`       what making one step's rows took, on the writer's thread
    `note_writing(s)`        what else that thread took, per step
    `set(every=, budget=)`   change at run time
    `stop()`, `start()`      record nothing, record again
    =======================  ==================================================================
    """

    def __init__(
        self,
        *,
        every: int | None,
        budget: float = DEFAULT_BUDGET,
        seed: int = 0,
        seen: float = 1.0,
        aim: float = 1.0,
    ) -> None:
        """`seen`: share of the probe's cost that whoever notes it can see; `aim`: of the budget
        that is spent."""
        self._seen_share, self._aim = seen, aim
        self.every, self.budget = every, budget
        self.recording = True
        self.rate = 1 / every if every else FIRST_RATE
        """Share of draft steps that are recorded at present; the writer's thread may change it."""
        self.drawn_at = self.rate
        """What it was when `take` last looked."""
        self._governed = FIRST_RATE
        """What the budget allows, also while `every` is in force."""
        self._random, self._seen, self._since = random.Random(seed), 0, 0
        self._next = 0
        """Number of the step that is drawn next, of a rate that is governed."""
        self._drawn_for: float | None = None
        """The rate that it was drawn by."""
        self._known = Costs()
        """At the last decision."""
        self._steps: deque[float] = deque(maxlen=WINDOW)
        self._recorded: deque[float] = deque(maxlen=WINDOW)
        self._passed: deque[float] = deque(maxlen=WINDOW)
        self._encoding: deque[float] = deque(maxlen=WINDOW)
        self._writing: deque[float] = deque(maxlen=WINDOW)

    def take(self) -> bool:
        """Whether to record the draft step that is about to run: ask once for each.

        Steps are counted whether anything is recorded or not, so that tensor-parallel ranks agree
        again on every step soon after each has heard of a change.
        """
        every, number = self.every, self._seen
        self.drawn_at = rate = self.rate
        self._seen = number + 1
        if every is not None:
            self._drawn_for = None
            return self.recording and number % every == 0
        if rate != self._drawn_for:
            self._drawn_for, self._next = rate, number + self._passed_by(rate)
        if number < self._next:
            return False
        self._next = number + 1 + self._passed_by(rate)
        return self.recording

    def _passed_by(self, rate: float) -> int:
        """How many steps are not drawn before one is: as many as if each were drawn by itself, in
        which no step remembers the ones before. To draw takes several times as long as to count."""
        if rate >= 1:
            return 0
        return int(math.log(1 - self._random.random()) / math.log1p(-rate))

    def note(self, serving_s: Sequence[float], probe_s: Sequence[float], *, recorded: bool) -> None:
        """Steps that drafted are over, all recorded or none: the wall time of each without the
        probe's share, and that share, what the engine core's hooks took since the step before
        included, if this process has the core. DraftCallBase on the writer's thread."""
        self._steps.extend(serving_s)
        (self._recorded if recorded else self._passed).extend(probe_s)
        self._since += len(serving_s)
        if self._since >= EVERY_STEPS:
            self._since = 0
            self._govern()

    def note_encoding(self, seconds: float) -> None:
        """A recorded step's rows took this long on the writer's thread."""
        self._encoding.append(seconds)

    def note_writing(self, seconds: float) -> None:
        """Whatever is recorded, the writer's thread takes so long for each step."""
        self._writing.append(seconds)

    def set(self, *, every: int | None = None, budget: float | None = None) -> None:
        """Fix the rate, or have it governed again, from the next step on."""
        self.every = every
        if budget is not None:
            self.budget = budget
        self._since = EVERY_STEPS  # decide with the next step
        self.rate = 1 / every if every else self._governed

    def stop(self) -> None:
        """Record nothing until `start`."""
        self.recording = False

    def start(self) -> None:
        """Record again."""
        self.recording = True

    @property
    def costs(self) -> Costs:
        """What steps and the probe have cost lately; zeros before anything is known."""
        writing, seen = _median(self._writing), self._seen_share
        return Costs(
            step_s=_median(self._steps),
            recorded_s=(_median(self._recorded) + _median(self._encoding) + writing) / seen,
            passed_s=(_median(self._passed) + writing) / seen,
        )

    @property
    def overhead(self) -> float:
        """The probe's expected share of a step at the rate in force, as of the last decision."""
        costs = self._known if self._known.step_s else self.costs
        taken = costs.passed_s + (costs.recorded_s - costs.passed_s) * self.rate
        return taken / costs.step_s if costs.step_s else 0.0

    def _govern(self) -> None:
        """The rate at which the probe's mean time per step is what it aims at."""
        self._known = costs = self.costs
        extra = costs.recorded_s - costs.passed_s
        if not self._recorded or extra <= 0:
            return
        allowed = self._aim * self.budget * costs.step_s - costs.passed_s
        self._governed = min(1.0, max(LEAST_RATE, allowed / extra))
        if self.every is None:
            self.rate = self._governed


def _median(values: deque[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
