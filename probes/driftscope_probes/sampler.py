"""Decides which draft steps are recorded, and at what rate: fixed, or governed by a budget; of
which requests; and which of the steps carry masses by distance.

Steps are drawn independently of their contents, and each recorded chain carries the rate in
force, so that weighting by its inverse leaves every estimate unbiased.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driftscope_probes.settings import DEFAULT_BUDGET

FIRST_RATE, FIRST_CHAINS = 1 / 16, 64
"""Least rate until that many chains are recorded, whatever the budget: an answer about attention
needs 50, which a short run would not have."""
LEAST_RATE = 1 / 4096
WINDOW = 64
"""Number of steps of each sort over which costs are medians, so that one-off costs, such as the
compilation of a kernel, do not count."""
SEEN = 0.9
"""Share of the probe's cost that clocks inside its hooks measure. The rest is the call of a hook
and the return from it, and vLLM's own code running slower after a hook. The value is an assumption
after short runs of `make bench`, which measures the total."""
AIM = 0.7
"""Share of the budget that the governor spends: a budget is an upper bound, and the estimates of
cost are not exact."""
AHEAD = 0.1
"""Share of a step that a host has to wait for its device for its own time to be hidden. With less,
a part of its time counts, because some steps are shorter than the median."""
EVERY_STEPS = 32
"""Number of steps between two decisions."""


@dataclass(slots=True)
class Costs:
    """Median costs over the last steps, in seconds."""

    step_s: float = 0.0
    """Time of a step without the probe. With a GPU, whose work the host may issue ahead of time:
    from the end of a step to the end of the next one."""
    recorded_s: float = 0.0
    """The probe's own time in a recorded step: on the serving thread, on the side thread, and on
    the writer's thread, which shares the interpreter with the serving thread. With a GPU, the time
    that it adds there, and the host's time unless the host waits for the GPU in any case."""
    passed_s: float = 0.0
    """The probe's own time in a step that is not recorded, counted likewise."""


@dataclass(slots=True)
class DeviceTimes:
    """Times of finished steps on a device with a clock of its own, in seconds. All of the steps
    were recorded, or none."""

    slack_s: list[float]
    """Time from the end of the step before to the end of the step, without the host's own work for
    the step, the probe's included."""
    drafting_s: list[float]
    """Time from the start of drafting to the end of the probe's work after it."""
    own_s: list[float]
    """Part of it after drafting; [] if the steps were not recorded."""


class Sampler:
    """Decides for each draft step: `every` fixes the rate at 1 / every, else `budget` governs.

    =======================  ==================================================================
    `take()`                 whether to record the step that is about to be drafted
    `note(...)`              report what finished steps cost
    `note_device(...)`       report what finished steps took on a GPU
    `note_encoding(s)`       report the time of building one step's rows on the writer's thread
    `note_writing(s)`        report that thread's other time, per step
    `set(every=, budget=)`   change the rate or the budget at run time
    `stop()`, `start()`      stop recording, record again
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
        """`seen`: share of the probe's cost that the caller of `note` can measure; `aim`: share of
        the budget that is spent."""
        self._seen_share, self._aim = seen, aim
        self.every, self.budget = every, budget
        self.recording = True
        self.rate = 1 / every if every else FIRST_RATE
        """Share of draft steps that are recorded at present; the writer's thread may change it."""
        self.drawn_at = self.rate
        """Value of `rate` when `take` was last called."""
        self._governed = FIRST_RATE
        """Rate that the budget allows, kept up to date while `every` is in force."""
        self._random, self._seen, self._since = random.Random(seed), 0, 0
        self._first_left = FIRST_CHAINS
        self._next = 0
        """Number of the step that is drawn next, if the rate is governed."""
        self._drawn_for: float | None = None
        """Rate that the next step was drawn with."""
        self._known = Costs()
        """Costs at the last decision."""
        self._steps: deque[float] = deque(maxlen=WINDOW)
        self._recorded: deque[float] = deque(maxlen=WINDOW)
        self._passed: deque[float] = deque(maxlen=WINDOW)
        self._slack = {recorded: deque[float](maxlen=WINDOW) for recorded in (False, True)}
        """Slack of recorded steps and of the others; empty without a device clock."""
        self._drafting = {recorded: deque[float](maxlen=WINDOW) for recorded in (False, True)}
        self._own: deque[float] = deque(maxlen=WINDOW)
        self._encoding: deque[float] = deque(maxlen=WINDOW)
        self._writing: deque[float] = deque(maxlen=WINDOW)

    def take(self) -> bool:
        """Return whether to record the draft step that is about to run; call once for each.

        Steps are counted whether or not anything is recorded, so that tensor-parallel ranks agree
        again on every step soon after each has received a change.
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
        """Return how many steps pass before one is drawn. The distribution is that of drawing each
        step independently; a draw takes several times as long as counting."""
        if rate >= 1:
            return 0
        return int(math.log(1 - self._random.random()) / math.log1p(-rate))

    def note(
        self,
        serving_s: Sequence[float],
        probe_s: Sequence[float],
        *,
        recorded: bool,
        chains: int | None = None,
    ) -> None:
        """Report finished steps that drafted, of `chains` or of one each, all recorded or none.

        `serving_s` is each step's wall time without the probe's share, `probe_s` that share; it
        includes the time of the engine core's hooks since the previous step if the core runs in
        this process. Called on the writer's thread.
        """
        self._steps.extend(serving_s)
        (self._recorded if recorded else self._passed).extend(probe_s)
        if recorded:
            self._first_left -= len(probe_s) if chains is None else chains
        self._since += len(serving_s)
        if self._since >= EVERY_STEPS:
            self._since = 0
            self._govern()

    def note_device(self, times: DeviceTimes, *, recorded: bool) -> None:
        """Report finished steps on a device with a clock, before `note` reports them."""
        self._slack[recorded].extend(times.slack_s)
        self._drafting[recorded].extend(times.drafting_s)
        self._own.extend(times.own_s)

    def note_encoding(self, seconds: float) -> None:
        """Report the time spent building a recorded step's rows on the writer's thread."""
        self._encoding.append(seconds)

    def note_writing(self, seconds: float) -> None:
        """Report the time that the writer's thread takes per step, recorded or not."""
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
        """Record again after `stop`."""
        self.recording = True

    @property
    def costs(self) -> Costs:
        """Recent costs of steps and of the probe; zeros before anything is known."""
        writing, share = _median(self._writing), self._seen_share
        recorded_s = (_median(self._recorded) + _median(self._encoding) + writing) / share
        passed_s = (_median(self._passed) + writing) / share
        step_s = _median(self._steps)
        return Costs(
            step_s=step_s,
            recorded_s=recorded_s * self._felt(step_s, recorded=True) + self._added_on_device,
            passed_s=passed_s * self._felt(step_s, recorded=False),
        )

    def _felt(self, step_s: float, *, recorded: bool) -> float:
        """Return the share of the host's time by which steps take longer: 1 without a device, 0 for
        a host that waits for its device in any case."""
        slack = self._slack[recorded]
        return 1 - min(1.0, max(0.0, _median(slack)) / (AHEAD * step_s)) if slack and step_s else 1

    @property
    def _added_on_device(self) -> float:
        """Time that recording adds to a step on the device, in seconds: by what the drafting of
        recorded steps takes longer, and at least what follows it."""
        own_s, passed = _median(self._own), self._drafting[False]
        if not passed:
            return own_s
        return max(own_s, _median(self._drafting[True]) - _median(passed))

    @property
    def overhead(self) -> float:
        """The probe's expected share of a step at the rate in force, as of the last decision."""
        costs = self._known if self._known.step_s else self.costs
        cost_s = costs.passed_s + (costs.recorded_s - costs.passed_s) * self.rate
        return cost_s / costs.step_s if costs.step_s else 0.0

    def _govern(self) -> None:
        """Set the rate at which the probe's mean time per step equals its target."""
        self._known = costs = self.costs
        extra = costs.recorded_s - costs.passed_s
        if not self._recorded or extra <= 0:
            return
        allowed = self._aim * self.budget * costs.step_s - costs.passed_s
        self._governed = min(1.0, max(LEAST_RATE, allowed / extra))
        if self._first_left > 0:
            self._governed = max(self._governed, FIRST_RATE)
        if self.every is None:
            self.rate = self._governed


def _median(values: deque[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


REMEMBERED_LABELS = 65_536
"""Number of requests with remembered labels, the latest; far more than ever run at once."""


class RequestSelection:
    """Selects requests whose chains are recorded: those with one of `labels`, or all.

    =====================  ====================================================================
    `learn(labels)`        remember (request, label) of new requests that have a label
    `chosen(ids)`          [B] bool: which requests of a step are recorded; None: all
    `selects(label)`       whether a request with this label, or None, is recorded
    `labels = (...)`       change the selection at run time; (): all requests
    =====================  ====================================================================
    """

    def __init__(self, labels: Iterable[str] = ()) -> None:
        self.labels = tuple(labels)
        self._known: OrderedDict[str, str] = OrderedDict()

    def learn(self, labels: Iterable[tuple[str, str]]) -> None:
        """Remember the labels of new requests, even of those not selected at present."""
        for request, label in labels:
            self._known[request] = label
            if len(self._known) > REMEMBERED_LABELS:
                self._known.popitem(last=False)

    def chosen(self, ids: Sequence[str]) -> npt.NDArray[np.bool_] | None:
        """Return which of the requests `ids` are recorded; None without a selection."""
        labels = self.labels
        if not labels:
            return None
        known, wanted = self._known.get, frozenset(labels)
        return np.array([known(id_) in wanted for id_ in ids], np.bool_)

    def selects(self, label: str | None) -> bool:
        """Return whether a request with `label` is recorded."""
        labels = self.labels
        return not labels or label in labels


CHOICES = 4093
"""Number of choices drawn in advance, after which they repeat: a prime, so that it has no common
divisor with the interval at which steps are recorded."""


def detail_choices(every: int) -> bytes:
    """Return [CHOICES] 1 or 0: whether a recorded step carries masses by distance and near misses,
    by the step's number modulo CHOICES; one step in `every` on average, none if it is 0.

    The choice depends on nothing but the step's number, so that tensor-parallel ranks make the same
    one, and the table costs a recorded step no call.
    """
    draws = np.random.default_rng(0).random(CHOICES)
    return (draws * every < bool(every)).astype(np.uint8).tobytes()
