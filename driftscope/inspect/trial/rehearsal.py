"""Times the parts of a trial before it starts: first tokens of answers, and one drafter's pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from driftscope.inspect.trial.drafting import draft
from driftscope.inspect.trial.duration import Rehearsal
from driftscope.inspect.trial.passages import ANSWER_TOKENS, BATCH, Passage, Teacher
from driftscope.inspect.trial.variant import Variant

_PASSES = 2
"""Number of runs of each part, of which the shortest counts: the first one also prepares caches."""
T = TypeVar("T")


def rehearse(
    teacher: Teacher, base: Variant, prompts: Mapping[str, list[int]], k: int
) -> Rehearsal:
    """Run each part of a trial, and return its duration. Answers are cut off after a few tokens."""
    prompt_s, *token_s = teacher.token_durations(sorted(prompts.items())[:BATCH])
    median = sorted(prompts.values(), key=len)[len(prompts) // 2]
    ids = torch.tensor([*median, *([median[-1]] * ANSWER_TOKENS)], device=teacher.device)

    def along() -> Passage:
        return teacher.passage("", ids, len(median), base.config.aux_layers)

    passage, states_s = _timed(along, teacher.device)
    drafter, build_s = _timed(lambda: base.build(teacher.device), teacher.device)
    _, draft_s = _timed(lambda: draft(drafter, teacher, passage, k), teacher.device)
    return Rehearsal(
        prompt_s=prompt_s,
        token_s=statistics.median(token_s),
        states_s=states_s,
        build_s=build_s,
        draft_s=draft_s,
    )


def _timed(part: Callable[[], T], device: str) -> tuple[T, float]:
    """Return the result of a part, and its shortest duration in seconds."""
    durations = list[float]()
    for _ in range(_PASSES):
        start = time.perf_counter()
        result = part()
        if device != "cpu":
            torch.accelerator.synchronize()
        durations.append(time.perf_counter() - start)
    return result, min(durations)
