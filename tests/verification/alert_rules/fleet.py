"""Engines whose counters follow a known traffic, as series of promtool's unit tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SCRAPE_MIN = 2
"""Minutes between two samples: the longest interval that a rate over 5 minutes allows."""
ROUNDS = 600.0
"""Rounds per minute of an engine, unless a scenario says otherwise: 10 a second."""
LENGTH = 4.0
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

    instance: str
    job: str = "vllm"
    drafter: str = "drafter@1f2e3d4c"
    begins_h: float = 0.0
    ends_h: float = float("inf")
    down: tuple[tuple[float, float], ...] = ()
    """Times, in hours, without a sample; the counters begin at 0 after each."""
    rounds: Course = field(default_factory=lambda: steady(ROUNDS))
    length: Course = field(default_factory=lambda: steady(LENGTH))
    growth: Course | None = None
    """None: the engine exports no chains."""

    def series(self, hours: float) -> Iterator[dict[str, str]]:
        """Yield the engine's series over `hours`."""
        counters: dict[str, Course] = {
            "driftscope_rounds_total": self.rounds,
            "driftscope_acceptance_length_count": self.rounds,
            "driftscope_acceptance_length_sum": lambda h: self.rounds(h) * self.length(h),
        }
        for name, rate in counters.items():
            yield self._series(name, hours, lambda h, r=rate: r(h) * SCRAPE_MIN)
        if (growth := self.growth) is not None:
            chains = _recorded(self.rounds)
            yield self._series("driftscope_hidden_growth_count", hours, chains)
            yield self._series(
                "driftscope_hidden_growth_sum", hours, lambda h: chains(h) * growth(h)
            )

    def counter(self, name: str, labels: str, hours: float, at_h: float) -> dict[str, str]:
        """Return a counter that rises once, by 5, at `at_h`."""
        return self._series(
            name, hours, lambda h: 5.0 * (at_h <= h < at_h + SCRAPE_MIN / 60), labels
        )

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
