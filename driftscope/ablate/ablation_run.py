"""Runs a drafter beside its target under each intervention, from the same positions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from driftscope.ablate.ablated_draft import ablated_draft
from driftscope.ablate.ablation import Ablation, ablation_of
from driftscope.ablate.decomposition import Matches
from driftscope.ablate.intervention import AS_SERVED, INTERVENTIONS, Intervention, Size
from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.reference.target import Embeds
from driftscope.inspect.trial.drafting import FIGURES
from driftscope.inspect.trial.passages import Passage
from driftscope.inspect.trial.trial import Bench
from driftscope.inspect.trial.variant import as_served

POSITIONS = 20
"""Default number of positions of each answer from which chains start."""
Progress = Callable[[Sequence[Passage]], Iterable[Passage]]


def run_ablation(
    files: DrafterFiles,
    target_layers: int,
    bench: Callable[[], Bench],
    k: int,
    wanted: Sequence[str],
    *,
    target: str,
    positions: int = POSITIONS,
    progress: Progress = lambda each: each,
) -> Ablation:
    """Run the drafter as served and under the interventions `wanted`. `bench` is called once the
    drafter is known to fit.

    Raises CheckpointError for a model that cannot be run, and NoDataError if too few answers are
    long enough for a chain of K.
    """
    variant = as_served(files, target_layers)
    variant.build("cpu")
    loaded = bench()
    passages = loaded.passages(set(variant.config.aux_layers), k)
    drafter = variant.build(loaded.teacher.device)
    idle = not_applicable(drafter, wanted)
    chosen = [INTERVENTIONS[name] for name in (AS_SERVED, *wanted) if name not in idle]
    matches, figures = drafts(
        drafter, loaded.teacher, passages, k, list(dict.fromkeys(chosen)), positions, progress
    )
    return ablation_of(
        matches,
        figures,
        drafter=str(files.folder),
        target=target,
        lacking=lacking(drafter, passages, k, positions),
        not_applicable=idle,
    )


def drafts(
    drafter: Drafter,
    target: Embeds,
    passages: Sequence[Passage],
    k: int,
    interventions: Sequence[Intervention],
    positions: int,
    progress: Progress = lambda each: each,
) -> tuple[dict[str, list[Matches]], dict[str, dict[str, tuple[float, ...]]]]:
    """Return, for each intervention, the matches of each passage, and the means of its figures."""
    matches: defaultdict[str, list[Matches]] = defaultdict(list)
    sums: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros(k, len(FIGURES)))
    for passage in progress(passages):
        anchors = anchors_of(passage, k, positions)
        for each in interventions:
            drafted = ablated_draft(drafter, target, passage, k, each, anchors)
            matches[each.id].append(drafted.matches.cpu().numpy())
            sums[each.id] = sums[each.id] + drafted.figures.float().cpu() * len(anchors)
    number = sum(len(each) for each in matches[AS_SERVED])
    return dict(matches), {name: _by_name(each / number) for name, each in sums.items()}


def anchors_of(passage: Passage, k: int, positions: int) -> Tensor:
    """Return at most `positions` slots of the answer, evenly spread."""
    every = passage.anchors(k)
    if len(every) <= positions:
        return every
    at = torch.linspace(0, len(every) - 1, positions, device=every.device)
    return every[at.round().long()]


def not_applicable(drafter: Drafter, wanted: Iterable[str]) -> Mapping[str, str]:
    """Return the wanted interventions that change nothing in this drafter, with the reason."""
    normed = "its state is normed before it is fed as it is (norm_output)"
    return {
        name: normed
        for name in wanted
        if INTERVENTIONS[name].size is Size.NORMED and drafter.config.norm_output
    }


def lacking(drafter: Drafter, passages: Sequence[Passage], k: int, positions: int) -> float:
    """Return the share of the drafted positions whose token the drafter's vocabulary lacks."""
    if not drafter.config.draft_vocab_size:
        return 0.0
    known = drafter.target_ids(torch.arange(drafter.config.draft_vocab_size))
    absent = []
    for passage in passages:
        anchors = anchors_of(passage, k, positions)
        wanted = passage.ids[anchors[:, None] + 2 + torch.arange(k, device=anchors.device)]
        absent.append(~torch.isin(wanted.cpu(), known.cpu()).numpy())
    return float(np.concatenate(absent).mean())


def _by_name(figures: Tensor) -> dict[str, tuple[float, ...]]:
    return {name: tuple(figures[:, at].tolist()) for at, name in enumerate(FIGURES)}
