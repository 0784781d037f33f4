"""Estimate of how long a trial takes, from parts of it that were timed. Needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Durations of parts of a trial that were run once, in seconds."""

    prompt_s: float
    """Reading one batch of prompts, and the first token of each answer."""
    token_s: float
    """One more token of each answer of a batch."""
    states_s: float
    """The target's states along one prompt of median length with its answer."""
    build_s: float
    """A drafter built from its weights."""
    draft_s: float
    """Chains from all positions of one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Numbers of what a trial runs."""

    prompts: int
    batch: int
    """Prompts that the target answers at once."""
    answer_tokens: int
    """Tokens of an answer, if it does not end before."""
    drafters: int = 1
    """Drafters that are run on all prompts."""
    repairs: int = 0
    screened: int = 0
    """Prompts on which every repair is tried."""
    renderings: int = 0
    """Other ways of writing the prompts, for which the target answers anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Estimated duration of a trial: if every repair is soon given up, and if none is."""

    least_s: float
    most_s: float


def duration(rehearsal: Rehearsal, work: Workload) -> Duration:
    """Return the estimate. It takes every answer to be of full length."""
    batch_s = rehearsal.prompt_s + (work.answer_tokens - 1) * rehearsal.token_s
    answers_s = math.ceil(work.prompts / work.batch) * batch_s
    asked_s = (answers_s + work.prompts * rehearsal.states_s) * (1 + work.renderings)
    # For each rendering the drafter runs on the prompts both ways.
    whole = work.drafters + 2 * work.renderings
    built_s = (whole + work.repairs) * rehearsal.build_s
    screened = min(work.screened, work.prompts)
    drafts = whole * work.prompts + work.repairs * screened
    least_s = asked_s + built_s + drafts * rehearsal.draft_s
    rest_s = work.repairs * (work.prompts - screened) * rehearsal.draft_s
    return Duration(least_s=least_s, most_s=least_s + rest_s)
