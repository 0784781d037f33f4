"""Draw a simulated run, many requests at a time, with the kinds of text of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.simulate.truth import Truth

from driftscope.vocabulary import Language, Region

Ints = NDArray[np.int64]
CODE = (Language.RUST, Language.PYTHON)
"""Languages of blocks of code: of every second block, and of the others."""
NEAR = 4
"""First tokens of a block, which `Truth.boundary` shifts."""


def kinds_of_blocks(truth: Truth, replica: int, prompt: Ints, kind: Ints, rounds: Ints) -> Ints:
    """Return the place in `truth.regions` of each block of each answer, [requests, blocks]."""
    most = (int(rounds.max()) + 1) * (truth.k + 1) // truth.block_tokens + 2
    usual = tuple(share for share, _ in truth.regions.values())
    shares = np.array([prompt.text or usual for prompt in truth.prompts])
    ends = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)[:, :-1]
    random = np.random.default_rng((truth.prompts_seed, replica, 9))
    drawn = random.random((int(prompt.max()) + 1, most))[prompt]
    kinds = (drawn[:, :, None] >= ends[kind][:, None, :]).sum(axis=2)
    if truth.in_order:  # about a third of an answer that accepts half of its drafts
        blocks = rounds * (1 + truth.k / 2) / truth.block_tokens
        last = len(truth.regions) - 1
        kinds = np.where(np.arange(most) >= 2 / 3 * blocks[:, None], last, kinds % last)
    return np.asarray(kinds)


def kind_of(truth: Truth, kinds: Ints, token: Ints) -> Ints:
    """Return the place in `truth.regions` of the text that rounds draft from `token` of their
    answer, [rows]; `kinds` are those of the blocks of the rows' answers, [rows, blocks]."""
    block = token // truth.block_tokens
    return np.asarray(np.take_along_axis(kinds, block[:, None], axis=1)[:, 0])


def shift_of(truth: Truth, kinds: Ints, token: Ints) -> NDArray[np.float64]:
    """Return the logit shift of rounds by `kind_of`, [rows]."""
    shift = np.array([shift for _, shift in truth.regions.values()])[kind_of(truth, kinds, token)]
    near = (token % truth.block_tokens < NEAR) & (token >= truth.block_tokens)
    return np.asarray(shift + truth.boundary * near)


def region_columns(truth: Truth, kinds: Ints, output: Ints) -> dict[str, Any]:
    """Return the columns of request rows about regions."""
    if not truth.regions:
        return {}
    codes = np.array([Region.ALL.index(name) for name in truth.regions])[kinds]
    code = np.where(np.arange(kinds.shape[1]) % 2, *map(Language.ALL.index, CODE))
    languages = np.where(codes == Region.ALL.index(Region.CODE), code, 0)
    starts = [list(range(0, max(int(n), 1), truth.block_tokens)) for n in output]
    return {
        "region_starts": starts,
        "region_codes": _lists(codes, starts),
        "region_languages": _lists(languages, starts),
        "region_boundaries": [mine[1:] for mine in starts],
        "region_copies": [[] for _ in starts],
    }


def _lists(values: Ints, starts: list[list[int]]) -> list[list[int]]:
    """Return as many values of each row, [requests, blocks], as its answer has blocks."""
    return [row[: len(mine)].tolist() for row, mine in zip(values, starts, strict=True)]


Floats = NDArray[np.float32]

CHUNK_ROUNDS = 200_000
"""Approximate number of chains in one sealed segment of a real run."""
START_S = 1_750_000_000.0
CONTEXT_FROM = 1024
"""Context length in tokens at which `Truth.context` shifts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted:
    """The requests of a replica, arrays [requests], in order of their start."""

    kind: Ints
    """Index into `Truth.prompts`."""
    tokens: Ints
    rounds: Ints
    shift: NDArray[np.float64]
    """Logit shift of each request, including that of its kind and time."""
    wave: Ints
    """Number of the wave, that is of the batch that starts together."""
    prompt: Ints
    session: Ints
    """Number of the session of each request; 0 without sessions."""
    kinds: Ints
    """Kind of text of each block, as in `Chunk`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk of complete requests of one replica and everything that happened to them.

    Rows are decode steps of single requests in order of time, [rows]. A request's last row is a
    chain that was never verified.
    """

    replica: int
    first: int
    """Number of the first request in its replica."""
    kind: Ints
    """Kind of each request; this and the next seven arrays are [requests]."""
    prompt: Ints
    """Number of each request's prompt in its replica."""
    session: Ints
    kinds: Ints
    """Kind of text of each block of each answer, [requests, blocks]; [requests, 0] if regions are
    not simulated."""
    tokens: Ints
    arrival_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    output: Ints
    own: Floats
    """[requests, 3] noise of masses and RMS, mean 0."""
    request: Ints
    """[rows] index into the chunk's requests."""
    step: Ints
    """[rows] index into the chunk's steps."""
    position: Ints
    verified: Ints
    accepted: Ints
    """Accepted tokens, -1 if a chain was never verified."""
    reason: Ints
    """Index into `reasons`, -1 if something was drafted."""
    top1: Floats
    """Confidence by depth, [rows, K]."""
    number: Ints
    """Number of each step of the replica, from 1; this and the next arrays are [steps]."""
    time_s: NDArray[np.float64]
    batch: Ints
    chains: Ints
    k: Ints
    """Chain length of each step; 0 in a step without a chain."""
    step_s: NDArray[np.float64]
    draft_s: NDArray[np.float64]
    recorded: NDArray[np.bool_]
    rate: NDArray[np.float64]
    seed: tuple[int, ...]
    """Seed of everything that is drawn when the chunk is written."""


def reasons(truth: Truth) -> tuple[str, ...]:
    """Return the reasons to which `Chunk.reason` refers."""
    return ("k_zero", *truth.undrafted)


def chunks(truth: Truth) -> Iterator[Chunk]:
    """Yield the run in chunks, replica by replica."""
    sizes = np.diff(np.linspace(0, truth.requests, truth.replicas + 1).astype(int))
    for replica, requests in enumerate(sizes.tolist()):
        prompted, step, now = _prompted(truth, replica, requests), 0, START_S
        for piece, (first, end) in enumerate(_pieces(prompted)):
            chunk = _chunk(truth, prompted, (replica, piece), slice(first, end), step, now)
            step, now = step + len(chunk.number), float(chunk.time_s[-1])
            yield chunk


def difficulty(truth: Truth) -> NDArray[np.float64]:
    """Return the logit shift of each request of a run of one replica, [requests]; higher is
    easier."""
    return _prompted(truth, 0, truth.requests).shift


def _prompted(truth: Truth, replica: int, requests: int) -> Prompted:
    random = np.random.default_rng((truth.prompts_seed, replica))
    kind = random.choice(len(truth.prompts), size=requests, p=truth.shares())
    session = np.arange(requests) * truth.sessions // max(requests, 1)
    if truth.kind_by_session:
        kind = kind[np.searchsorted(session, session)]
    if truth.kind_by_replica:
        kind = np.full(requests, replica % len(truth.prompts))
    low, high = np.array([prompt.tokens for prompt in truth.prompts]).T
    spread = truth.rounds * truth.rounds_spread
    rounds = random.uniform(truth.rounds - spread, truth.rounds + spread, requests)
    shift = np.array([prompt.shift for prompt in truth.prompts])[kind]
    progress = np.arange(requests) / max(requests - 1, 1)
    shift = shift + truth.between * random.standard_normal(requests)
    shift = shift + truth.replica_shift * (replica == truth.replicas - 1)
    tokens = random.integers(low[kind], high[kind], endpoint=True)
    prompt = np.arange(requests) % -(-requests // truth.repeats)
    kind, rounds, shift, tokens = (values[prompt] for values in (kind, rounds, shift, tokens))
    own = random.standard_normal(max(truth.sessions, 1)) if truth.alike else np.zeros(1)
    shift = shift + truth.alike * own[session if truth.alike else 0] + truth.decay * progress
    if truth.change:
        after, by = truth.change
        shift = shift + by * (progress >= after)
    if truth.longer:
        after, times = truth.longer
        rounds = np.where(progress >= after, times * rounds, rounds)
    return Prompted(
        kind=kind,
        tokens=tokens,
        rounds=np.maximum(np.rint(rounds), 1).astype(np.int64),
        shift=shift,
        wave=_waves(truth.batches, requests),
        prompt=prompt,
        session=session,
        kinds=_kinds(truth, replica, prompt, kind, rounds),
    )


def _kinds(
    truth: Truth, replica: int, prompt: Ints, kind: Ints, rounds: NDArray[np.float64]
) -> Ints:
    if not truth.regions or not len(prompt):
        return np.zeros((len(prompt), 0), dtype=np.int64)
    whole = np.maximum(np.rint(rounds), 1).astype(np.int64)
    return kinds_of_blocks(truth, replica, prompt, kind, whole)


def _waves(batches: tuple[int, ...], requests: int) -> Ints:
    repeats = requests // sum(batches) + 1
    sizes = np.tile(batches, repeats)
    return np.repeat(np.arange(len(sizes)), sizes)[:requests]


def _pieces(prompted: Prompted) -> Iterator[tuple[int, int]]:
    """Yield ranges of requests: whole waves, as many as make a chunk."""
    ends = np.append(np.flatnonzero(np.diff(prompted.wave)) + 1, len(prompted.wave))
    rows, begin = np.cumsum(prompted.rounds + 1), 0
    for end in ends.tolist():
        done = rows[begin - 1] if begin else 0
        if rows[end - 1] - done >= CHUNK_ROUNDS or end == ends[-1]:
            yield begin, end
            begin = end


def _chunk(
    truth: Truth, prompted: Prompted, part: tuple[int, int], mine: slice, step: int, now: float
) -> Chunk:
    seed = (truth.seed, *part)
    random = np.random.default_rng((*seed, 0))
    rounds, wave = prompted.rounds[mine], prompted.wave[mine]
    wave = wave - wave[0]
    at, request = np.nonzero(np.arange(rounds.max() + 1)[:, None] <= rounds)
    order = np.lexsort((request, at, wave[request]))
    at, request = at[order], request[order]
    new = np.append(True, (np.diff(at) != 0) | (np.diff(wave[request]) != 0))
    of_step = np.cumsum(new) - 1
    batch = np.bincount(of_step)
    reason = _reasons(truth, random, batch[of_step])
    progress = (mine.start + request[new]) / len(prompted.rounds)
    k = truth.k_of(batch, progress)
    done = _Walk(truth, prompted, mine, random).over(
        request, at, np.where(reason < 0, k[of_step], 0), batch[of_step]
    )
    chains = np.bincount(of_step, reason < 0).astype(np.int64)
    begin, end, factor = truth.slowdown
    steps = _steps(truth, random, batch, chains, k)
    steps *= np.where((progress >= begin) & (progress < end), factor, 1.0)
    rate = np.array(truth.rates)[(progress * len(truth.rates)).astype(int)]
    gaps = truth.gap_s * (np.append(0, np.diff(wave[request[new]])) + (np.arange(len(batch)) == 0))
    time_s = now + np.cumsum(steps[0] + gaps)
    last = at == rounds[request]
    finish = np.empty(len(rounds))
    finish[request[last]] = time_s[of_step[last]]
    start = np.full(len(rounds), np.inf)
    np.minimum.at(start, request, time_s[of_step])
    tokens = prompted.tokens[mine]
    return Chunk(
        replica=part[0],
        first=mine.start,
        kind=prompted.kind[mine],
        prompt=prompted.prompt[mine],
        session=prompted.session[mine],
        kinds=prompted.kinds[mine],
        tokens=tokens,
        arrival_s=start - truth.cost.prefill_token_s * tokens,
        finish_s=finish,
        output=done[0][last][np.argsort(request[last])] - tokens + 2,
        own=random.uniform(-0.5, 0.5, (len(rounds), 3)).astype(np.float32) * truth.spread,
        request=request,
        step=of_step,
        position=done[0],
        verified=np.where(reason < 0, k[of_step], 0),
        accepted=np.where(last, -1, done[1]),
        reason=reason,
        top1=done[2],
        number=step + 1 + np.arange(len(batch)),
        time_s=time_s,
        batch=batch,
        chains=chains,
        k=np.where(chains > 0, k, 0),
        step_s=steps[0],
        draft_s=steps[1],
        recorded=random.random(len(batch)) < rate,
        rate=rate,
        seed=(*seed, 1),
    )


def _reasons(truth: Truth, random: np.random.Generator, batch: Ints) -> Ints:
    """Return the index of the reason why nothing is drafted, [rows], -1 if something is drafted."""
    share = np.cumsum(list(truth.undrafted.values()))
    drawn = np.searchsorted(share, random.random(len(batch)), side="right") + 1
    reason = np.where(drawn > len(share), -1, drawn)
    above = truth.k_zero_above
    return np.where(batch > above, 0, reason) if above is not None else reason


def _steps(
    truth: Truth, random: np.random.Generator, batch: Ints, chains: Ints, k: Ints
) -> NDArray[np.float64]:
    """Return the total time of each step and the drafter's part of it, [2, steps]."""
    noise = np.exp(truth.cost.noise * random.standard_normal((2, len(batch))))
    verify_s = truth.cost.verify_s(batch, batch + k * chains) * noise[0]
    draft_s = truth.cost.drafting_s(chains, k) * noise[1]
    return np.stack([verify_s + draft_s, draft_s])


class _Walk:
    """Acceptance of every row. A request's position depends on what was accepted before, so all
    requests advance together, round by round."""

    def __init__(
        self, truth: Truth, prompted: Prompted, mine: slice, random: np.random.Generator
    ) -> None:
        self._truth, self._random = truth, random
        self._shift = prompted.shift[mine].astype(np.float32)
        self._tokens = prompted.tokens[mine]
        self._position = self._tokens - 1
        self._kinds = prompted.kinds[mine]
        self._logits = truth.logits().astype(np.float32)
        place = np.arange(len(prompted.tokens))[mine] / len(prompted.tokens)
        self._miscalibration = np.where(
            place >= truth.miscalibrated_from, np.float32(truth.miscalibration), np.float32(0)
        )

    def over(
        self, request: Ints, at: Ints, drafted: Ints, batch: Ints
    ) -> tuple[Ints, Ints, Floats]:
        """Return position, accepted tokens and confidence of each row."""
        truth = self._truth
        position, accepted = np.empty_like(request), np.empty_like(request)
        top1 = np.empty((len(request), truth.k), np.float32)
        in_order = np.argsort(at, kind="stable")
        for rows in np.split(in_order, np.cumsum(np.bincount(at))[:-1]):
            who = request[rows]
            position[rows] = self._position[who]
            chance = self._chance(who, batch[rows])
            taken = self._random.random(chance.shape, dtype=np.float32) < chance
            length = np.where(taken.all(axis=1), truth.k, np.argmin(taken, axis=1))
            accepted[rows] = np.minimum(length, drafted[rows])
            top1[rows] = chance + self._miscalibration[who, None] * (1 - chance)
            self._position[who] += accepted[rows] + 1
        return position, accepted, top1

    def _chance(self, who: Ints, batch: Ints) -> Floats:
        shift = self._shift[who]
        if self._truth.batch:
            shift = shift + np.float32(self._truth.batch) * np.log2(batch).astype(np.float32)
        if self._truth.context:
            doublings = np.log2((self._position[who] + 1) / CONTEXT_FROM)
            shift = shift + (self._truth.context * doublings).astype(np.float32)
        token = self._position[who] + 2 - self._tokens[who]
        if self._truth.along:
            doublings = np.log2(np.maximum(token, 1))
            shift = shift + (self._truth.along * doublings).astype(np.float32)
        if self._truth.regions:
            by_text = shift_of(self._truth, self._kinds[who], token)
            shift = shift + by_text.astype(np.float32)
        own = self._random.standard_normal((len(who), self._truth.k), dtype=np.float32)
        logit = self._logits + shift[:, None] + np.float32(self._truth.within) * own
        return np.asarray(1 / (1 + np.exp(-logit)))
