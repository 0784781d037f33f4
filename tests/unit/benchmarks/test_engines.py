"""Settings take turns on the engines, and figures are paired by repeat."""

from __future__ import annotations

import time
from typing import Any

import pytest

from benchmarks.engines import measure, median_interval

SETTINGS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "off": ("probe", {"stop": True}),
    "every": ("probe", {"every": 1}),
    "eager": ("eager", None),
}


class Spoken:
    """An engine that is a list of what it was asked."""

    def __init__(self, name: str, asked: list[tuple[str, str]]) -> None:
        self.name, self._asked = name, asked
        self._state = ""

    def ask(self, **question: Any) -> dict[str, Any]:
        if "set" in question:
            self._state = str(question["set"])
            return {"rate": 1.0}
        self._asked.append((self.name, self._state if question["tokens"] > 8 else "prefill"))
        return {"tpot_s": 0.5 * len(self._asked), "tokens_per_s": 1.0}


def test_each_repeat_starts_with_another_setting() -> None:
    asked: list[tuple[str, str]] = []
    engines: Any = {name: Spoken(name, asked) for name in ("absent", "probe", "eager")}
    found = measure(engines, (4, 1000), 4, 17, [[1, 2]], SETTINGS, time.time() + 99)
    assert asked[:3] == [(name, "prefill") for name in engines]
    turns = [asked[3 + 4 * i : 7 + 4 * i] for i in range(4)]
    assert [turn[0][0] for turn in turns] == ["absent", "probe", "probe", "eager"]
    off = ("probe", str({"stop": True}))
    assert all(turn.count(off) == 1 for turn in turns)
    assert (found["concurrency"], found["context"]) == (4, 1000)
    assert {len(values) for values in found["tpot_s"].values()} == {4}
    assert set(found["tokens_per_s"]) == {"absent", *SETTINGS}
    assert found["sampler"] == {"rate": 1.0}


@pytest.mark.parametrize(("n", "ranks"), [(5, (0, 4)), (7, (0, 6)), (11, (1, 9))])
def test_the_medians_interval_goes_by_rank(n: int, ranks: tuple[int, int]) -> None:
    assert median_interval(list(range(n))) == ranks
