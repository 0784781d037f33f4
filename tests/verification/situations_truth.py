"""Compare what was recorded in the situations with the float64 reference.

This covers more than `truth`: chains of any K, requests that end early, and the wrong token that
vLLM's V1 runner embeds at the end of each prompt chunk. That token is modelled, so that the
affected masses are checked as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from support.engine_process.job import K, Outcome
from support.reference_engine import Chain, leading_matches, replay

from driftscope.trace.reader import read_trace
from verification.situations import Ask
from verification.truth import MASSES, NORMS, follows_k, models

PER_CHAIN = ("aux_rms", "aux_norm_rms", "fc_rms")


@dataclass(kw_only=True)
class Slots:
    """Slots of the drafter for one request with wrong content, at the time when they are filled."""

    wrong: dict[int, int] = field(default_factory=dict)
    """Slot -> the token embedded there instead of the next one."""
    empty: set[int] = field(default_factory=set)
    """Slots that the drafter never filled."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A recorded chain together with the reference's."""

    name: str
    row: dict[str, Any]
    verified: dict[str, Any] | None
    clean: Chain
    """Reference with correct content in every slot."""
    modelled: Chain
    """Reference with vLLM's wrong tokens."""
    accepted: int | None
    """Leading drafted tokens that the target would have generated; None if the output ends
    earlier."""
    wrong: int
    empty: int
    depths: int
    """Depths before the context limit. Beyond it vLLM's V2 runner keeps drafting at the last
    position; those tokens are never verified."""

    def error(self, reference: Chain, names: tuple[str, ...], *, relative: bool = False) -> float:
        """Return the largest error over the names and the row's depths."""
        worst = 0.0
        for name in names:
            got, want = (_tensor(x) for x in (self.row[name], getattr(reference, name)))
            if name not in PER_CHAIN:
                assert len(got) == self.row["k"], f"{self.name} {name}: {len(got)} depths"
                # In a chain beyond the limit the last slot's key is overwritten, so its masses are
                # not compared.
                end = self.depths - (name in MASSES and self.row["k"] > self.depths)
                got, want = got[:end], want[:end]
            error = (got - want).abs() / (want.abs() if relative else 1.0)
            if error.numel():
                worst = max(worst, float(error.nan_to_num(nan=torch.inf).max()))
        return worst

    @property
    def mass_error(self) -> float:
        return self.error(self.modelled, (*MASSES, "top1"))

    @property
    def rms_error(self) -> float:
        return self.error(self.modelled, NORMS, relative=True)

    @property
    def drafted_equal(self) -> bool:
        drafted = tuple(self.row["token_ids"])[: self.depths]
        return drafted == self.modelled.token_ids[: self.depths]

    @property
    def judged(self) -> bool:
        """Whether the outputs determine how many of its tokens had to be accepted."""
        return self.accepted is not None and bool(self.verified and self.verified["verified"])

    @property
    def accepted_equal(self) -> bool:
        """Whether the accepted count is correct, for a judged chain; a grammar or a limit may have
        cut it earlier."""
        assert self.verified is not None and self.accepted is not None
        expected: int = min(self.accepted, self.verified["verified"])
        return bool(self.verified["accepted"] == expected)


def origin(request: str) -> tuple[str, int]:
    """Return the name under which a caller added a request, and which of its n outputs this is.

    vLLM appends eight hex digits to the name, and prefixes "<index>_" to each child of n > 1.
    """
    index, child, name = request.rpartition("-")[0].rpartition("_")
    return name, int(index) if child else 0


def compared(outcome: Outcome, asks: dict[str, Ask]) -> list[Compared]:
    """Return every recorded chain whose context is in the engine's output."""
    trace, slots = read_trace(outcome.run), _Slots(outcome, asks)
    verify = {(v["request"], v["position"]): v for v in trace.verify.to_pylist()}
    rows = defaultdict(list)
    for row in trace.draft.to_pylist():
        if row["k"]:
            rows[row["request"]].append(row)
    return [
        chain for mine in rows.values() for chain in _compare(outcome, asks, mine, slots, verify)
    ]


def _compare(
    outcome: Outcome,
    asks: dict[str, Ask],
    rows: list[dict[str, Any]],
    slots: _Slots,
    verify: dict[Any, Any],
) -> Iterator[Compared]:
    """Yield the chains of one request."""
    request = rows[0]["request"]
    ask = asks[origin(request)[0]]
    tokens, states = [*ask.prompt, *slots.output(request)], slots.states(request)
    assert len(rows) == len(states), f"{request}: {len(rows)} chains recorded"
    by_wrong = defaultdict(list)
    for row, state in zip(rows, states, strict=True):
        # An engine may draft past the end of its output, on tokens that are not known here.
        if row["position"] <= len(tokens) - 2:
            by_wrong[tuple(state.wrong.items())].append((row, state))
    for wrong, mine in by_wrong.items():
        positions = [row["position"] for row, _ in mine]
        clean, modelled = (
            replay(*models(outcome.job), tokens, len(ask.prompt), positions, K, wrong=dict(tokens_))
            for tokens_ in ((), wrong)
        )
        for at, (row, state) in enumerate(mine):
            yield Compared(
                name=ask.name,
                row=row,
                verified=verify.get((request, row["position"])),
                clean=clean[at],
                modelled=modelled[at],
                accepted=_matching(row["token_ids"], tokens[row["position"] + 2 :]),
                wrong=len(state.wrong),
                empty=len(state.empty),
                depths=min(row["k"], outcome.job.llm["max_model_len"] - row["position"]),
            )


def _matching(drafted: Sequence[int], tokens: list[int]) -> int | None:
    """Return the number of leading drafted tokens that match the output; None if the output ends
    first."""
    count = leading_matches(drafted, tokens)
    return None if count == len(tokens) < len(drafted) else count


class _Slots:
    """Follows an engine's schedules to know the state of the slots at each recorded chain."""

    def __init__(self, outcome: Outcome, asks: dict[str, Ask]) -> None:
        self._outcome, self._asks = outcome, asks
        self._v1 = outcome.job.runner == "v1"
        self._follows_k = follows_k(outcome.job)
        self._cached: dict[tuple[int, ...], int] = {}
        """Wrong tokens in the prefix cache, by the tokens up to their slot."""
        self._now: dict[str, Slots] = defaultdict(Slots)
        self._drafted: dict[str, list[Slots]] = defaultdict(list)
        for batch in outcome.batches:
            for schedule in batch["schedules"]:
                self._follow(schedule)

    def output(self, request: str) -> list[int]:
        """Return the engine's complete output for a request."""
        key = "{}/{}".format(*origin(request))
        found = (batch["requests"].get(key) for batch in self._outcome.batches)
        return next((list(one["token_ids"]) for one in found if one), [])

    def states(self, request: str) -> list[Slots]:
        """Return the slots as each chain that was drafted for a request has seen them."""
        return self._drafted[request]

    def _follow(self, schedule: dict[str, Any]) -> None:
        runs = _drafter_runs(self._outcome, schedule)
        for request, entry in schedule["requests"].items():
            self._step(request, entry, runs=runs)
            if runs and (schedule["k"] or not self._follows_k) and not _is_chunk(entry):
                now = self._now[request]
                self._drafted[request].append(Slots(wrong=dict(now.wrong), empty=set(now.empty)))

    def _step(self, request: str, entry: dict[str, int], *, runs: bool) -> None:
        now, tokens = self._now[request], self._tokens(request)
        start, end = entry["start"], entry["start"] + entry["count"]
        if entry["admitted"]:
            prefixes = ((slot, tuple(tokens[: slot + 1])) for slot in range(start))
            now.wrong = {slot: self._cached[p] for slot, p in prefixes if p in self._cached}
            now.empty = {slot for slot in now.empty if slot < start}
        for slot in range(start, min(end, entry["known"])):
            now.wrong.pop(slot, None)
            self._cached.pop(tuple(tokens[: slot + 1]), None)
        if not runs:
            now.empty.add(start)
        elif self._v1 and _is_chunk(entry):
            now.wrong[end - 1] = tokens[entry["known"] - 1]
            self._cached[tuple(tokens[:end])] = tokens[entry["known"] - 1]

    def _tokens(self, request: str) -> list[int]:
        return [*self._asks[origin(request)[0]].prompt, *self.output(request)]


def _is_chunk(entry: dict[str, int]) -> bool:
    """Return whether tokens of the request remain to be computed before the next can be sampled."""
    return entry["start"] + entry["count"] < entry["known"]


def _tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values).double().reshape(-1)


def skipped_places(outcome: Outcome) -> list[int]:
    """Return draft places that no drafter filled, by request and step: padding of requests that
    were just admitted, and places after a step for which V1 did not run the drafter."""
    found, filled = list[int](), dict[str, bool]()
    for schedule in (s for batch in outcome.batches for s in batch["schedules"]):
        runs = _drafter_runs(outcome, schedule)
        for request, entry in schedule["requests"].items():
            if entry["places"] and (entry["admitted"] or not filled.get(request, True)):
                found.append(entry["places"])
            filled[request] = runs
    return found


def _drafter_runs(outcome: Outcome, schedule: dict[str, Any]) -> bool:
    """Return whether the drafter runs: V1 drafts for no request when one sequence of the step has
    no room for K more tokens."""
    longest = max((e["start"] + e["count"] for e in schedule["requests"].values()), default=0)
    return outcome.job.runner != "v1" or longest + K <= outcome.job.llm["max_model_len"]
