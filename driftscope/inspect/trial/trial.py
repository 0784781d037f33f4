"""Runs a drafter beside its target, outside any engine, and tries repairs on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from driftscope.analysis.statistics.clusters import mean_interval
from driftscope.errors import NoDataError
from driftscope.inspect.checks.positions import rope_theta
from driftscope.inspect.checks.text_files import chat_template
from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.files.target_files import TargetFiles
from driftscope.inspect.trial.acceptance import (
    Rounds,
    acceptance_of,
    gain,
    mean_length,
)
from driftscope.inspect.trial.drafting import FIGURES, draft
from driftscope.inspect.trial.passages import Passage, Teacher
from driftscope.inspect.trial.renderings import Conversations, Rendering, renderings
from driftscope.inspect.trial.repair import Repair
from driftscope.inspect.trial.repairs import TargetFacts, layers_needed, repairs
from driftscope.inspect.trial.trial_result import NotApplicable, Trial, Tried, TriedRendering
from driftscope.inspect.trial.variant import Variant, as_served

LEAST_PASSAGES = 5
"""Smallest number of prompts from which anything is concluded."""
SCREENED = 8
"""Number of prompts on which every repair is tried. One that accepts less than the drafter as it is
on these is not tried on the others: it cannot be the repair that is looked for."""
Progress = Callable[[Sequence[Repair]], Iterable[Repair]]


class Bench:
    """A loaded target with its answers to some prompts, for trials of its drafters."""

    def __init__(
        self,
        target: TargetFiles,
        prompts: Callable[[Teacher], Mapping[str, list[int]]],
        conversations: Conversations | None = None,
    ) -> None:
        """Load the target. Raises CheckpointError if it has no weights that may be read, or if
        transformers cannot load them."""
        target.need_weights()
        self.teacher = Teacher(target.folder, pickled=target.pickled)
        self.prompts = prompts(self.teacher)
        self.conversations = conversations or {}
        self.template = chat_template(target.folder)
        self._passages: tuple[Passage, ...] = ()
        model = self.teacher.model
        self.facts = TargetFacts(
            layers=target.layers,
            rope_theta=rope_theta(target.fields),
            embedding=model.get_input_embeddings().weight.detach().float().cpu(),
            head=self.teacher.head.float().cpu(),
        )

    def passages(self, layers: set[int], k: int) -> list[Passage]:
        """Return the answers that are long enough for a chain of K, with the states of `layers`.

        Raises NoDataError if there are too few.
        """
        if not self._passages or not layers <= self._passages[0].states.keys():
            self._passages = tuple(self.teacher.passages(self.prompts, layers))
        enough = [each for each in self._passages if len(each.anchors(k))]
        if len(enough) < LEAST_PASSAGES:
            raise NoDataError(
                f"{len(enough)} prompts have an answer longer than K = {k}; give {LEAST_PASSAGES} "
                "or more with --prompts"
            )
        return enough


def run_trial(
    files: DrafterFiles,
    target_layers: int,
    bench: Callable[[], Bench],
    k: int,
    *,
    progress: Progress = lambda each: each,
) -> Trial:
    """Run the drafter as it is and with each repair. `bench` is called once the drafter is known to
    fit, because loading a target takes long.

    Raises CheckpointError for a model that cannot be run, and NoDataError if too few answers are
    long enough for a chain of K.
    """
    base = as_served(files, target_layers)
    base.build("cpu")
    loaded = bench()
    passages = loaded.passages(layers_needed(base, loaded.facts), k)
    runner = Runner(loaded.teacher, passages, k)
    trial = runner.run(base, repairs(base, loaded.facts), progress)
    templates = loaded.template, chat_template(files.folder)
    made, left_out = renderings(
        loaded.teacher.tokenizer, loaded.prompts, loaded.conversations, templates
    )
    tried, too_short = try_renderings(runner, base, made)
    return replace(trial, renderings=tried, not_applicable=(*left_out, *too_short))


def try_renderings(
    runner: Runner, base: Variant, made: Sequence[Rendering]
) -> tuple[tuple[TriedRendering, ...], list[NotApplicable]]:
    """Run the drafter as it is on the prompts of each rendering. Return the results, and the
    renderings with too few answers that are long enough."""
    results = [(each.change.id, runner.rendered(base, each, len(made))) for each in made]
    tried = [each for _, each in results if each is not None]
    reason = f"fewer than {LEAST_PASSAGES} prompts have long enough answers both ways"
    too_short = [NotApplicable(id=key, reason=reason) for key, each in results if each is None]
    return tuple(sorted(tried, key=lambda each: -each.gain.difference)), too_short


class Runner:
    """Runs variants on the same passages."""

    def __init__(self, teacher: Teacher, passages: Sequence[Passage], k: int) -> None:
        """Keep the target, its answers and the length of chains."""
        self._teacher, self._passages, self._k = teacher, passages, k

    def run(self, base: Variant, candidates: Sequence[Repair], progress: Progress) -> Trial:
        """Run the drafter as it is, and with each repair."""
        rounds, figures = self._rounds(base, self._passages, measured=True)
        tried = [self._try(repair, rounds, len(candidates)) for repair in progress(candidates)]
        return Trial(
            prompts=len(self._passages),
            k=self._k,
            as_is=acceptance_of(rounds, self._k),
            figures=dict(zip(FIGURES, zip(*figures, strict=True), strict=True)),
            tried=tuple(sorted(tried, key=lambda each: -each.gain.difference)),
        )

    def _try(self, repair: Repair, base: Rounds, comparisons: int) -> Tried:
        rounds, _ = self._rounds(repair.variant, self._passages[:SCREENED])
        screened = base[: len(rounds)]
        if mean_length(rounds) > mean_length(screened):
            rounds += self._rounds(repair.variant, self._passages[SCREENED:])[0]
        return Tried(
            repair=repair,
            acceptance=acceptance_of(rounds, self._k),
            gain=gain(base[: len(rounds)], rounds, comparisons),
            prompts=len(rounds),
            state=repair.variant.state,
        )

    def rendered(
        self, base: Variant, rendering: Rendering, comparisons: int
    ) -> TriedRendering | None:
        """Let the target answer the prompts of a rendering, and compare what is accepted; None if
        too few answers are long enough."""
        made = self._teacher.passages(rendering.prompts, base.config.aux_layers)
        theirs = {each.key: each for each in made if len(each.anchors(self._k))}
        pairs = [(each, theirs[each.key]) for each in self._passages if each.key in theirs]
        if len(pairs) < LEAST_PASSAGES:
            return None
        rounds = [self._rounds(base, side)[0] for side in zip(*pairs, strict=True)]
        surer = [new.log_probability - old.log_probability for old, new in pairs]
        return TriedRendering(
            rendering=rendering.change,
            acceptance=acceptance_of(rounds[1], self._k),
            gain=gain(rounds[0], rounds[1], comparisons),
            prompts=len(pairs),
            surer=float(np.mean(surer)),
            surer_interval=mean_interval(np.array(surer)),
        )

    def _rounds(
        self, variant: Variant, passages: Sequence[Passage], *, measured: bool = False
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Return the accepted tokens by round and prompt, and the figures by depth."""
        drafter = variant.build(self._teacher.device)
        made = [
            draft(drafter, self._teacher, each, self._k, measured=measured) for each in passages
        ]
        figures = [each.figures for each in made if each.figures is not None]
        means = torch.stack(figures).mean(0).tolist() if figures else []
        return [each.rounds() for each in made], means
