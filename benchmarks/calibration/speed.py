"""Speed: whether speculation pays, in worlds of known speedup.

Wanted: one server that is started twice is called faster or slower than itself in at most 6.8 % of
the pairs (COMPARISONS A5), also by one of several loads and drafters; servers that differ by a
third are told apart, also on a machine that gets slower meanwhile; a speedup that the server's
clock shows and its clients do not get is no yes (A15), nor is one of which something else is the
cause: the machine, a cache, other prompts or answers, or requests that wait or fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.calibration.runs import measurement
from benchmarks.calibration.table import COVERED, FOUND, NEVER, Bound, Figures, holds, table
from driftscope.analysis.figures.results import Latency
from driftscope.analysis.replays import OUTCOMES, SPECULATION, Row, cells_of
from driftscope.analysis.speed import is_faster, speed_by_means
from driftscope.analysis.statistics.ratio import mean_interval
from driftscope.findings.case import replay_cases_of
from driftscope.findings.finding import Answer, Finding
from driftscope.findings.rules_pays import pays_for_clients, slower_for_clients

PROMPTS, TOKENS = 24, 128
PLAIN_S = 0.03
STARTS = 0.05
"""Relative standard deviation of a server from start to start."""
BETWEEN, WITHIN = 0.2, 0.1
"""Standard deviation of the logarithm of the time per token between prompts, with speculation, and
between two answers to one prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """A server with and one without speculation, asked the same prompts in rounds."""

    speedup: float
    """True speed with speculation over that without, for clients."""
    rounds: int = 1
    at_server: float | None = None
    """True speed by the servers' own clock; None: they recorded nothing."""
    neighbour: float = 0.0
    """Relative growth of the times of a third of one replay: something else used the machine."""
    slower: float = 0.0
    """Relative growth of every time from one replay to the next: the machine gets slower."""
    loads: tuple[int, ...] = (1,)
    drafters: int = 1
    within: float = WITHIN
    machine: float = 1.0
    """Times on the machine of the servers with speculation, over those of the other machine."""
    elsewhere: bool = False
    """Whether that is another machine."""
    warm_up: float = 1.0
    """Time of the first quarter of their answers over that of the others, at the first load."""
    own: Row = field(default_factory=dict)
    """Columns of their rows."""
    bunched: tuple[float, float] = (0.0, 0.0)
    """Share of the answers, of a server without and with speculation, that come in one piece; the
    other answers of that server begin late."""
    unanswered: float = 0.0
    """Share of their requests, the slowest, that are not answered."""
    confounded: bool = False
    """Whether the measured speed is not that of speculation."""
    answer: Answer = Answer.CANNOT_TELL


ONCE = Servers(speedup=1.0)
LOADS = (1, 4, 16)
OTHER = Servers(speedup=1.4, rounds=2, loads=LOADS, confounded=True)
WORLDS: dict[str, Servers | None] = {
    "two runs of one drafter, as served": None,
    "one server twice": ONCE,
    "one server twice, 2 rounds": Servers(speedup=1.0, rounds=2),
    "one server twice, slower meanwhile": Servers(speedup=1.0, rounds=2, slower=0.1),
    "one server twice, a neighbour in one replay": Servers(speedup=1.0, neighbour=0.6),
    "one server twice, a neighbour in one of 4 replays": Servers(
        speedup=1.0, rounds=2, neighbour=0.6
    ),
    "1.5x in one round": Servers(speedup=1.5, answer=Answer.YES),
    "1.3x in 2 rounds": Servers(speedup=1.3, rounds=2, answer=Answer.YES),
    "1.3x, slower meanwhile": Servers(speedup=1.3, rounds=2, slower=0.1, answer=Answer.YES),
    "0.8x in 2 rounds": Servers(speedup=0.8, rounds=2, answer=Answer.NO),
    "2.28x at the server, 1x for clients": Servers(speedup=1.0, rounds=2, at_server=2.28),
    "one server twice at 3 loads, answers differ much": Servers(
        speedup=1.0, rounds=2, loads=LOADS, within=0.4
    ),
    "4 drafters of 1.0x at 3 loads": Servers(speedup=1.0, rounds=2, loads=LOADS, drafters=4),
    "1.4x at 3 loads, on another machine like the first": replace(
        OTHER, elsewhere=True, confounded=False, answer=Answer.YES
    ),
    "one server twice, on a machine of 1.4x": replace(OTHER, speedup=1.0, machine=1 / 1.4),
    "one server twice, on another machine of 0.7x": replace(
        OTHER, speedup=1.0, machine=1 / 0.7, elsewhere=True
    ),
    "one server twice, without and with a warm-up": replace(OTHER, speedup=1.0, warm_up=3.0),
    "1.4x, of which waiting takes all": replace(OTHER, own={"ttft_s": 1.5}),
    "1.4x on answers cut to a quarter": replace(OTHER, own={"output_tokens": TOKENS // 4}),
    "one server twice, half of one's answers in one piece": Servers(
        speedup=1.0, rounds=2, bunched=(0.5, 0.0)
    ),
    "one server twice, nine tenths in one piece": Servers(
        speedup=1.0, rounds=2, bunched=(0.9, 0.9)
    ),
    "1.4x, half of the slower one's answers in one piece": Servers(
        speedup=1.4, rounds=2, bunched=(0.5, 0.0), answer=Answer.YES
    ),
    "1.4x on other prompts": replace(OTHER, own={"prompt_tokens": 99}),
    "1.4x, a quarter not answered": replace(OTHER, unanswered=0.25),
    "1.4x at 1 at once, prompts in the cache": replace(
        OTHER, loads=(1,), own={"ttft_s": 0.01, "cached_tokens": 90}, answer=Answer.YES
    ),
    "1.4x at 16 at once, prompts in the cache": replace(
        OTHER, loads=(16,), own={"cached_tokens": 90}
    ),
}
"""Measurements by a client, and one of recorded runs (None)."""


def answer_of(servers: Servers, seed: int) -> Finding:
    """Return the answer on one simulated measurement; of several drafters the first one told."""
    source = np.random.default_rng([seed, 4815])
    hard = source.normal(0.0, BETWEEN, PROMPTS)
    sides: list[list[Row]] = [[] for _ in range(1 + servers.drafters)]
    order = 0
    busy = int(source.integers(2 * servers.rounds)) if servers.neighbour else -1
    for number in range(servers.rounds):
        for at in range(len(sides))[:: -1 if number % 2 else 1]:
            rows = _rows(servers, source, hard, number, drafts=at > 0, order=order)
            if order == busy:
                begin = int(source.integers(PROMPTS - PROMPTS // 3))
                for row in rows[begin : begin + PROMPTS // 3]:
                    row["tpot_s"] *= 1.0 + servers.neighbour
            sides[at] += rows
            order += 1
    runs = []
    for at, rows in enumerate(sides):
        url = f"http://{'b' if servers.elsewhere and at else 'a'}:8000"
        workload = {"baseline": "as asked", SPECULATION: at > 0, "server": {"url": url}}
        planned = sorted(rows, key=lambda row: row["e2e_s"])
        rows = planned[: round((1.0 - (servers.unanswered if at else 0.0)) * len(planned))]
        cells = cells_of(planned, rows, workload)
        facts = {
            "planned": len(planned),
            "rows": tuple(rows),
            "starts": servers.rounds,
            "cells": cells,
        }
        runs.append(measurement(f"server {at}", workload, **facts))
    cases = [case for case in replay_cases_of(runs, None) if case.with_and_without]
    found = [slower_for_clients(case) or pays_for_clients(case) for case in cases]
    answers = [one for one in found if one and one.answer is not Answer.CANNOT_TELL]
    return next(one for one in (*answers, *found) if one)


def _rows(
    servers: Servers,
    source: np.random.Generator,
    hard: Any,
    number: int,
    *,
    drafts: bool,
    order: int,
) -> list[dict[str, Any]]:
    start = math.exp(source.normal(0.0, STARTS)) * (1.0 + servers.slower) ** order
    start *= servers.machine if drafts else 1.0
    # The mean over prompts is what the speedup is about.
    scale = math.exp(BETWEEN**2 / 2) if drafts else 1.0
    rows = []
    for load in servers.loads:
        own = hard if drafts else 0.0 * hard
        times = PLAIN_S * start * np.exp(own + source.normal(0.0, servers.within, PROMPTS))
        if drafts and load == servers.loads[0]:
            times[: PROMPTS // 4] *= servers.warm_up
        token_times = times / (servers.speedup * scale if drafts else 1.0)
        engine = times / ((servers.at_server or 1.0) * scale if drafts else 1.0)
        rows += [
            {
                "condition": "as asked",
                "concurrency": load,
                "rate": None,
                "pair": f"p{at}",
                "repeat": 0,
                "round": number,
                "tpot_s": float(token_times[at]),
                "ttft_s": 0.05 * start,
                "e2e_s": 0.05 * start + TOKENS * float(token_times[at]),
                "waited_s": 0.0,
                "output_tokens": TOKENS,
                "prompt_tokens": 100,
                "cached_tokens": 0,
                "accepted": None,
                "temperature": None,
                **dict.fromkeys(OUTCOMES),
                "sent_s": float(at),
                "time_s": float(at) + 1.0,
                "server_tpot_s": None if servers.at_server is None else float(engine[at]),
                **(servers.own if drafts else {}),
            }
            for at in range(PROMPTS)
        ]
    share = servers.bunched[drafts]
    for row in rows if any(servers.bunched) else ():
        row["server_ttft_s"] = row["ttft_s"]
        if not share:
            continue
        late = 1.0 if source.random() < share else 0.4 * source.random()
        row["ttft_s"] += late * (row["e2e_s"] - row["ttft_s"])
        row["tpot_s"] = None if late == 1.0 else (row["e2e_s"] - row["ttft_s"]) / (TOKENS - 1)
    return rows


def _runs_as_served(seed: int) -> Figures:
    """Return whether one of two runs of one server is called faster, by their means."""
    source = np.random.default_rng([seed, 162])
    hard = source.normal(0.0, BETWEEN, PROMPTS)
    runs = [_rows(ONCE, source, hard, 0, drafts=True, order=0) for _ in range(2)]
    times = [np.array([row["tpot_s"] for row in rows]) for rows in runs]
    slow, fast = (
        Latency(ttft_s=None, tpot_s=float(run.mean()), tpot_s_interval=mean_interval(run))
        for run in times
    )
    found = speed_by_means(slow, fast)
    assert found is not None
    faster = is_faster(*found)
    return {
        "yes": faster is True,
        "no": faster is False,
        "held": holds(found[1], 1.0),
        "clocks": None,
    }


def _bounds_of(servers: Servers | None) -> dict[str, Bound]:
    wanted = {
        Answer.YES: {"yes": FOUND, "no": NEVER},
        Answer.NO: {"no": FOUND, "yes": NEVER},
        Answer.CANNOT_TELL: {"yes+no": NEVER},
    }[servers.answer if servers else Answer.CANNOT_TELL]
    return {**wanted, "clocks": FOUND, "held": COVERED}


@table(
    "speed",
    "Whether speculation pays: answers of {trials} measurements of 24 prompts",
    worlds=WORLDS,
    wanted=_bounds_of,
)
def decisions(servers: Servers | None, seed: int) -> Figures:
    """Return whether one measurement says that speculation pays or costs time, whether its interval
    holds the true speedup, and whether server and clients are said to disagree."""
    if servers is None:
        return _runs_as_served(seed)
    found = answer_of(servers, seed)
    return {
        "yes": found.answer is Answer.YES,
        "no": found.answer is Answer.NO,
        "held": None if servers.confounded else holds(found.interval, servers.speedup),
        "clocks": None if servers.at_server is None else "the server alone is" in found.statement,
    }
