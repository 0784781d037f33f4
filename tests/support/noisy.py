"""A run as a real drafter leaves it: no two values alike, every mantissa full of noise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from driftscope.trace.records import DraftRow, Row, StepRow, VerifyRow

START_S = 1_750_000_000.0
LENGTH = 200
"""Rounds per request."""
ACCEPTANCE = 0.6
"""Of each token, given the one before."""


def noisy_rows(rounds: int, k: int = 7, *, norm_output: bool = True) -> Iterator[Row]:
    """One chain per step, batch 1: what a GPU run with CUDA events writes in every round."""
    random = np.random.RandomState(5)
    now = START_S
    position = prompt = 0
    for step in range(1, rounds + 1):
        request, at = divmod(step - 1, LENGTH)
        if not at:
            prompt = position = 50 + random.randint(1000)
        now += float(random.normal(0.012, 0.0005))
        name = f"chatcmpl-{request:032x}"
        yield _draft(random, k, step, now, name, position, prompt, norm_output)
        yield _step(random, k, step, now)
        accepted = int(np.argmin(np.append(random.random_sample(k) < ACCEPTANCE, False)))
        yield VerifyRow(
            step=step, time_s=now + float(random.normal(0.01, 0.0004)), request=name,
            position=position, drafted=k, accepted=accepted, reason=None,
        )  # fmt: skip
        position += accepted + 1


def _draft(
    random: np.random.RandomState, k: int, step: int, now: float, request: str, position: int,
    prompt_tokens: int, norm_output: bool,
) -> DraftRow:  # fmt: skip
    masses = random.dirichlet([4.0, 6.0, 3.0, 5.0], k)
    masses[0] = [*random.dirichlet([4.0, 6.0, 3.0]), 0.0]
    sink, prompt, generated, own = masses.astype(np.float32).T.tolist()
    prenorm = _lognormal(random, 4.0 * 1.2 ** np.arange(k))
    postnorm = _lognormal(random, np.full(k, 1.1))
    fed = postnorm if norm_output else prenorm
    fc = _lognormal(random, np.array([2.0]))[0]
    return DraftRow(
        step=step, time_s=now, request=request, position=position, prompt_tokens=prompt_tokens,
        batch=1, k=k, layers=1, chunked_prefill=False, sink_mass=sink, prompt_mass=prompt,
        generated_mass=generated, self_mass=own, null_mass=None, in_rms=[fc, *fed[:-1]],
        prenorm_rms=prenorm, postnorm_rms=postnorm, fed_rms=fed,
        top1=random.beta(2, 2, k).astype(np.float32).tolist(),
        entropy=_lognormal(random, np.full(k, 1.5)),
        aux_rms=_lognormal(random, np.array([1.0, 4.0, 9.0])),
        aux_norm_rms=_lognormal(random, np.ones(3)) if norm_output else None,
        fc_rms=fc, token_ids=None, rate=1.0, heads=32, strategy="lse", execution="full",
    )  # fmt: skip


def _lognormal(random: np.random.RandomState, around: np.ndarray) -> list[float]:
    values: list[float] = (around * random.lognormal(0, 0.2, len(around))).astype("f4").tolist()
    return values


def _step(random: np.random.RandomState, k: int, step: int, now: float) -> StepRow:
    def about(seconds: float) -> float:
        return float(seconds * random.lognormal(0, 0.05))

    return StepRow(
        step=step, time_s=now, requests=1, chains=1, k=k, recorded=True, step_s=about(0.011),
        draft_s=about(0.003), probe_s=about(0.0001), rate=1.0, execution="full",
        gpu_draft_s=float(np.float32(about(0.0028))), gpu_probe_s=float(np.float32(about(4e-5))),
    )  # fmt: skip
