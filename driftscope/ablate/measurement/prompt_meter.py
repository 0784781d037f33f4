"""Drafts from positions of one prompt's answer under each intervention, and counts."""

from __future__ import annotations

import torch
from torch import Tensor

from driftscope.ablate.ablated_draft import AblatedDraft, Prefix, ablated_draft
from driftscope.ablate.intervention import Intervention
from driftscope.ablate.measurement.draft_vocabulary import DraftVocabulary
from driftscope.ablate.measurement.measured_prompt import FigureSums, MeasuredPrompt
from driftscope.ablate.measurement.prompt_writing import PromptWriting
from driftscope.ablate.measurement.served_dtype import ServedDrafter
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.reference.target import Embeds
from driftscope.inspect.trial.drafting import FIGURES
from driftscope.inspect.trial.passages import Passage


class PromptMeter:
    """Measures prompts with one drafter."""

    def __init__(
        self,
        drafter: Drafter,
        target: Embeds,
        *,
        k: int,
        positions: int,
        vocabulary: DraftVocabulary | None = None,
        served: ServedDrafter | None = None,
    ) -> None:
        """`positions` is the largest number of positions of one answer; `served` is needed for
        interventions in the served dtype."""
        self._drafter, self._target = drafter, target
        self._k, self._positions = k, positions
        self._vocabulary, self._served = vocabulary, served

    def measured(self, passage: Passage, writing: PromptWriting) -> MeasuredPrompt:
        """Return the counts of one passage under the interventions of its writing."""
        anchors = anchors_of(passage, self._k, self._positions)
        drafted = self._drafts(passage, writing.interventions, anchors)
        return MeasuredPrompt(
            writing=writing.id,
            key=passage.key,
            matches={name: each.matches.cpu().numpy() for name, each in drafted.items()},
            sums={name: _sums(each) for name, each in drafted.items()},
            vocabulary=self._vocabulary.count(passage) if self._vocabulary else {},
        )

    def _drafts(
        self, passage: Passage, interventions: tuple[Intervention, ...], anchors: Tensor
    ) -> dict[str, AblatedDraft]:
        if not len(anchors):
            return {each.id: _nothing(self._k) for each in interventions}
        prefix = Prefix.of(self._drafter, self._target, passage)
        drafted = {}
        for each in interventions:
            if each.served_dtype and self._served is not None:
                served = self._served
                narrow = Prefix.of(served.drafter, served, served.cast(passage))
                drafted[each.id] = ablated_draft(narrow, self._k, each, anchors)
            else:
                drafted[each.id] = ablated_draft(prefix, self._k, each, anchors)
        return drafted


def anchors_of(passage: Passage, k: int, positions: int) -> Tensor:
    """Return at most `positions` slots of the answer, evenly spread."""
    every = passage.anchors(k)
    if len(every) <= positions:
        return every
    at = torch.linspace(0, len(every) - 1, positions, device=every.device)
    return every[at.round().long()]


def _sums(drafted: AblatedDraft) -> FigureSums:
    sums: FigureSums = drafted.figures.double().cpu().numpy() * len(drafted.matches)
    return sums


def _nothing(k: int) -> AblatedDraft:
    return AblatedDraft(
        matches=torch.zeros((0, k), dtype=torch.bool),
        tokens=torch.zeros((0, k), dtype=torch.int64),
        figures=torch.zeros((k, len(FIGURES))),
    )
