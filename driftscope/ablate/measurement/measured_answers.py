"""Lets the target answer every prompt, and measures the drafter on the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from driftscope.ablate.measurement.measured_prompt import MeasuredPrompt
from driftscope.ablate.measurement.prompt_meter import PromptMeter
from driftscope.ablate.measurement.prompt_writing import PromptWriting
from driftscope.ablate.measurement.work_file import WorkFile
from driftscope.inspect.trial.passages import BATCH, Passage, Teacher


class MeasuredAnswers:
    """Measures the prompts of each writing, except those that a work file has kept."""

    def __init__(
        self, teacher: Teacher, layers: Sequence[int], meter: PromptMeter, work: WorkFile | None
    ) -> None:
        """`layers` are those of the target whose states the drafter reads."""
        self._teacher, self._layers, self._meter, self._work = teacher, layers, meter, work

    def of(self, writings: Sequence[PromptWriting]) -> Iterator[MeasuredPrompt]:
        """Yield the counts of every prompt, writing by writing in the order of their keys."""
        for writing in writings:
            keys = sorted(writing.prompts)
            # Whole batches are answered again: padding changes the last digits of their logits.
            for start in range(0, len(keys), BATCH):
                yield from self._batch(writing, keys[start : start + BATCH])

    def _batch(self, writing: PromptWriting, keys: Sequence[str]) -> Iterator[MeasuredPrompt]:
        kept = self._kept(writing, keys)
        if len(kept) == len(keys):
            yield from (kept[key] for key in keys)
            return
        prompts = {key: list(writing.prompts[key]) for key in keys}
        for passage in self._teacher.passages(prompts, self._layers):
            yield kept.get(passage.key) or self._measured(passage, writing)

    def _kept(self, writing: PromptWriting, keys: Sequence[str]) -> Mapping[str, MeasuredPrompt]:
        if self._work is None:
            return {}
        found = {key: self._work.kept(writing.id, key) for key in keys}
        return {key: each for key, each in found.items() if each is not None}

    def _measured(self, passage: Passage, writing: PromptWriting) -> MeasuredPrompt:
        measured = self._meter.measured(passage, writing)
        if self._work is not None:
            self._work.add(measured)
        return measured
