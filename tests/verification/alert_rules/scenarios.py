"""Incidents at their real durations, and what the alerts must do in each."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

SCRAPE_MIN = 2
"""Minutes between two samples: the longest interval that a rate over 5 minutes allows."""
ROUNDS = 600.0
"""Rounds per minute of an engine, unless a scenario says otherwise: 10 a second."""
ACCEPTED = (0.9, 0.6)
"""Acceptance by depth while all is well, K = 2."""
LENGTH = 1 + sum(ACCEPTED)
"""Acceptance length while all is well."""
GROWTH = 1.2
"""Hidden growth while all is well."""
SAMPLED = 0.002
"""Share of steps that is recorded: what a budget of 1 % paid for on the shipped tiny models."""
Course = Callable[[float], float]
"""A quantity by the time in hours since the scenario began."""


def steady(value: float) -> Course:
    """Return a quantity that does not change."""
    return lambda _: value


def stepwise(*levels: tuple[float, float]) -> Course:
    """Return a quantity that takes a value from each (hour, value) on."""
    return lambda hour: [value for begins, value in levels if hour >= begins][-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One scrape target."""

    instance: str = "a"
    job: str = "vllm"
    drafter: str = "drafter@1f2e3d4c"
    begins_h: float = 0.0
    ends_h: float = float("inf")
    down: tuple[tuple[float, float], ...] = ()
    """Times, in hours, without a sample; the counters begin at 0 after each."""
    rounds: Course = field(default_factory=lambda: steady(ROUNDS))
    length: Course = field(default_factory=lambda: steady(LENGTH))
    """Acceptance length if both depths are verified."""
    k: Course = field(default_factory=lambda: steady(len(ACCEPTED)))
    """Depths that are verified."""
    growth: Course | None = None
    """None: the engine exports no chains."""

    def series(self, hours: float) -> Iterator[dict[str, str]]:
        """Yield the engine's series over `hours`."""
        for name in ("rounds_completed_total", "acceptance_length_count"):
            yield self._counter(name, hours, self.rounds)
        yield self._counter("acceptance_length_sum", hours, self._tokens)
        for depth in range(1, len(ACCEPTED) + 1):
            label = f', driftscope_depth="{depth}"'
            verified, reached = self._at(depth)
            yield self._counter("rounds_verified_total", hours, verified, label)
            yield self._counter("rounds_reached_total", hours, reached, label)
        if (growth := self.growth) is not None:
            chains = _recorded(self.rounds)
            yield self._series("driftscope_hidden_growth_count", hours, chains)
            yield self._series(
                "driftscope_hidden_growth_sum", hours, lambda h: chains(h) * growth(h)
            )

    def _at(self, depth: int) -> tuple[Course, Course]:
        """Return the rounds per minute that verify a depth and that accept it."""

        def verified(hour: float) -> float:
            return self.rounds(hour) if depth <= self.k(hour) else 0.0

        def reached(hour: float) -> float:
            share = ACCEPTED[depth - 1] * (self.length(hour) - 1) / (LENGTH - 1)
            return verified(hour) * share

        return verified, reached

    def _tokens(self, hour: float) -> float:
        """Return the tokens per minute of rounds."""
        accepted = (self._at(depth)[1] for depth in range(1, len(ACCEPTED) + 1))
        return self.rounds(hour) + sum(reached(hour) for reached in accepted)

    def _counter(self, name: str, hours: float, rate: Course, label: str = "") -> dict[str, str]:
        return self._series(f"driftscope_{name}", hours, lambda h: rate(h) * SCRAPE_MIN, label)

    def rows_lost(self, hours: float, at_h: float) -> dict[str, str]:
        """Return the counter of rows lost to a disk error, which rises once, by 5, at `at_h`."""
        labels = ', driftscope_source="worker0", driftscope_cause="disk_error"'
        gain: Course = lambda h: 5.0 * (at_h <= h < at_h + SCRAPE_MIN / 60)  # noqa: E731
        return self._series("driftscope_rows_dropped_total", hours, gain, labels)

    def _series(self, name: str, hours: float, gain: Course, labels: str = "") -> dict[str, str]:
        own = (
            f'job="{self.job}", instance="{self.instance}", gen_ai_request_model="chat-8b", '
            f'driftscope_drafter="{self.drafter}"'
        )
        values, total = [], 0.0
        for sample in range(int(hours * 60 / SCRAPE_MIN) + 1):
            hour = sample * SCRAPE_MIN / 60
            if self._is_up(hour):
                total += gain(hour)
                values.append(f"{total:.6g}" if total < 1e5 else f"{total:.0f}")
            else:
                total = 0.0
                values.append("_")
        return {"series": f"{name}{{{own}{labels}}}", "values": " ".join(values)}

    def _is_up(self, hour: float) -> bool:
        away = any(begins <= hour < ends for begins, ends in self.down)
        return self.begins_h <= hour < self.ends_h and not away


def _recorded(rounds: Course) -> Course:
    """Return how many chains are recorded in a scrape interval: a few, in most intervals none or
    one."""

    def chains(hour: float) -> float:
        drawn = random.Random(round(hour * 60))
        expected = rounds(hour) * SCRAPE_MIN * SAMPLED
        return float(sum(drawn.random() < expected / 12 for _ in range(12)))

    return chains


FELL, ROSE = "DriftscopeAcceptanceFell", "DriftscopeHiddenGrowth"
LOST, OUTLIER, UNKNOWN = (
    "DriftscopeProbeDropping",
    "DriftscopeFleetOutlier",
    "DriftscopeNoReference",
)
GOOD_H = 48.0
"""Hours for which all is well before an incident, unless a scenario says otherwise."""
SOON_H = 0.5
"""Hours within which a sudden incident must be reported: a window, the hold of 10 minutes, and a
margin."""
AFTER_H = 0.75
"""Hours within which an alert must end after the repair: a window, the 30 minutes that it is kept,
and a margin."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One alert that must fire."""

    alert: str
    from_h: float
    """Hour at which the incident begins."""
    until_h: float | None = None
    """Hour of the repair; None: the incident lasts to the end."""
    within_h: float = SOON_H
    ends_within_h: float = AFTER_H
    gaps: bool = False
    """Whether the alert may end between, because there are two incidents."""


# Every scenario begins without a past, which is reported until there is one.
_NEW = Expected(UNKNOWN, 0, 1)


class Scenario:
    """One course of events: engines over some hours, and the alerts that must fire.

    `references`: acceptance length by model, known from the start. `lost_h`: hour at which the
    first engine loses rows.
    """

    def __init__(
        self,
        name: str,
        hours: float,
        *engines: Engine,
        fires: tuple[Expected, ...] = (),
        references: Mapping[str, float] = MappingProxyType({}),
        lost_h: float | None = None,
    ) -> None:
        self.name, self.hours, self.engines, self.lost_h = name, hours, engines, lost_h
        self.references = references
        self.expected = fires if references else (_NEW, *fires)

    def series(self) -> list[dict[str, str]]:
        """Return every series."""
        made = [one for engine in self.engines for one in engine.series(self.hours)]
        if self.lost_h is not None:
            made.append(self.engines[0].rows_lost(self.hours, self.lost_h))
        return made


def _length(*levels: tuple[float, float]) -> dict[str, Any]:
    """Return the length as shares of what it is while all is well, from an hour on."""
    return {"length": stepwise((0, LENGTH), *((hour, LENGTH * share) for hour, share in levels))}


def _decline(hour: float) -> float:
    return LENGTH * max(1 - 0.01 * max(hour - 168, 0), 0.78)


def _day(low: float, high: float, hour: float) -> float:
    return (low + high) / 2 + (high - low) / 2 * math.sin(2 * math.pi * hour / 24)


def _stops(hour: float) -> tuple[tuple[float, float], ...]:
    """Return rounds per minute that are few for 6 minutes, and then none."""
    return (hour, 0.15 * ROUNDS), (hour + 0.1, 0)


def _before(hour: float) -> tuple[Engine, ...]:
    return tuple(Engine(instance=f"old-{n}", ends_h=hour + n / 6) for n in range(3))


def _rolled_out(hour: float) -> tuple[Engine, ...]:
    return tuple(
        Engine(
            instance=f"new-{n}",
            drafter="drafter@99aabbcc",
            begins_h=hour + n / 6,
            **_length((0, 0.7)),
        )
        for n in range(3)
    )


SCENARIOS = (
    Scenario(
        "a fall to 75 % that lasts a week",
        GOOD_H + 192,
        Engine(**_length((GOOD_H, 0.75))),
        fires=(Expected(FELL, GOOD_H),),
    ),
    Scenario(
        "a slow decline of 1 % an hour, to 78 %, which stays for six days",
        168 + 22 + 144,
        Engine(length=_decline),
        fires=(Expected(FELL, 168, within_h=22),),
    ),
    Scenario(
        "a fall that is repaired after 30 hours",
        GOOD_H + 48,
        Engine(**_length((GOOD_H, 0.75), (GOOD_H + 30, 1))),
        fires=(Expected(FELL, GOOD_H, GOOD_H + 30),),
    ),
    Scenario(
        "a bad rollout: three new pods with a new drafter",
        GOOD_H + 48,
        *_before(GOOD_H),
        *_rolled_out(GOOD_H),
        fires=(
            # Two new pods of three lower the model's length to 80 %: the last one decides.
            Expected(FELL, GOOD_H, within_h=1 / 3 + SOON_H),
            # The first new pod, until the model as a whole has fallen.
            Expected(OUTLIER, GOOD_H, GOOD_H + 1 / 3),
        ),
    ),
    Scenario(
        "restarts in the incident, of 15 and of 45 minutes, and a new pod",
        GOOD_H + 36,
        Engine(ends_h=GOOD_H + 8, down=((GOOD_H + 2, GOOD_H + 2.25),), **_length((GOOD_H, 0.7))),
        Engine(instance="b", begins_h=GOOD_H + 8.75, **_length((0, 0.7), (GOOD_H + 24, 1))),
        fires=(Expected(FELL, GOOD_H, GOOD_H + 24),),
    ),
    Scenario(
        "day and night: length +-10 %, traffic 1 to 10",
        240,
        Engine(
            length=lambda hour: _day(0.9 * LENGTH, 1.1 * LENGTH, hour),
            rounds=lambda hour: _day(0.1 * ROUNDS, ROUNDS, hour),
        ),
    ),
    Scenario(
        "K follows the load: 1 for 8 hours a day, which yields 76 % of the tokens",
        GOOD_H + 48,
        Engine(k=lambda hour: 2 - (hour % 24 >= 16)),
        Engine(instance="b"),
    ),
    Scenario(
        "a fall to 70 % while K is smaller",
        GOOD_H + 24,
        Engine(k=stepwise((0, 2), (GOOD_H - 4, 1)), **_length((GOOD_H, 0.7), (GOOD_H + 12, 1))),
        fires=(Expected(FELL, GOOD_H, GOOD_H + 12),),
    ),
    Scenario(
        "traffic that stops for 12 hours while all is well, the last rounds being bad",
        GOOD_H + 48,
        Engine(
            rounds=stepwise((0, ROUNDS), *_stops(GOOD_H), (GOOD_H + 12, ROUNDS)),
            **_length((GOOD_H, 0.6), (GOOD_H + 1, 1)),
        ),
    ),
    Scenario(
        "traffic that stops for 12 hours in the incident, the last rounds being good",
        GOOD_H + 48,
        Engine(
            rounds=stepwise((0, ROUNDS), *_stops(GOOD_H + 4), (GOOD_H + 16, ROUNDS)),
            **_length((GOOD_H, 0.75), (GOOD_H + 4, 1.1), (GOOD_H + 5, 0.75), (GOOD_H + 20, 1)),
        ),
        fires=(Expected(FELL, GOOD_H, GOOD_H + 20),),
    ),
    Scenario(
        "a length that varies between 78 and 84 %",
        GOOD_H + 48,
        Engine(
            **_length(*((GOOD_H + n, 0.78 + 0.06 * (n % 2)) for n in range(24)), (GOOD_H + 24, 1))
        ),
        fires=(Expected(FELL, GOOD_H, GOOD_H + 24),),
    ),
    Scenario(
        "a second fall, two days after one of a week was repaired",
        GOOD_H + 168 + 72,
        Engine(**_length((GOOD_H, 0.75), (GOOD_H + 168, 1), (GOOD_H + 216, 0.75))),
        fires=(Expected(FELL, GOOD_H, gaps=True),),
    ),
    Scenario(
        "one drop cause that fires once",
        12,
        Engine(),
        lost_h=6.0,
        fires=(Expected(LOST, 6, 6),),
    ),
    Scenario(
        "hidden growth rises, at 0.2 % of steps recorded",
        GOOD_H + 48,
        Engine(growth=stepwise((0, GROWTH), (GOOD_H, 1.5 * GROWTH), (GOOD_H + 24, GROWTH))),
        fires=(Expected(ROSE, GOOD_H, GOOD_H + 24, within_h=1, ends_within_h=1.5),),
    ),
    Scenario(
        "one of two engines falls",
        GOOD_H + 24,
        Engine(**_length((GOOD_H, 0.7))),
        Engine(instance="b"),
        fires=(Expected(OUTLIER, GOOD_H),),
    ),
    Scenario(
        "a new fleet that begins badly, with a configured reference",
        24,
        Engine(**_length((0, 0.75), (12, 1))),
        references={"chat-8b": LENGTH},
        fires=(Expected(FELL, 0, 12),),
    ),
    Scenario(
        "a new job that begins badly, of a model that another job serves",
        GOOD_H + 24,
        Engine(),
        Engine(instance="b", job="canary", begins_h=GOOD_H, **_length((0, 0.75))),
        fires=(Expected(FELL, GOOD_H),),
    ),
)
