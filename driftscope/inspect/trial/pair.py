"""Runs two drafters beside one target, from the same positions of its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.trial.acceptance import Acceptance, acceptance_of
from driftscope.inspect.trial.drafting import Drafted, draft
from driftscope.inspect.trial.paired_positions import PairTrial, compare_positions
from driftscope.inspect.trial.passages import Passage
from driftscope.inspect.trial.trial import LEAST_PASSAGES, SILENT, Bench
from driftscope.inspect.trial.trial_listener import TrialListener
from driftscope.inspect.trial.variant import as_served

_Both = tuple[Drafted, Drafted]


def run_pair(
    files: tuple[DrafterFiles, DrafterFiles],
    names: tuple[str, str],
    target_layers: int,
    bench: Callable[[], Bench],
    k: int,
    *,
    listener: TrialListener = SILENT,
) -> PairTrial:
    """Run both drafters as an engine would, and compare them. `bench` is called once both are known
    to fit.

    Ctrl-C ends the trial once LEAST_PASSAGES prompts are drafted by both; before that it raises
    KeyboardInterrupt. Raises CheckpointError for a model that cannot be run, and NoDataError if
    too few answers are long enough for a chain of K.
    """
    variants = [as_served(each, target_layers) for each in files]
    for variant in variants:
        variant.check()
    loaded = bench()
    variants = [each.with_shared_head(loaded.facts.head) for each in variants]
    listener.expected(lambda: loaded.expected(variants[0], k, drafters=len(variants)))
    layers = {layer for variant in variants for layer in variant.config.aux_layers}
    passages, teacher = loaded.passages(layers, k, listener), loaded.teacher
    one, other = (variant.build(teacher.device) for variant in variants)
    drafted, stopped = _drafted(
        passages,
        lambda each: (draft(one, teacher, each, k), draft(other, teacher, each, k)),
        listener,
    )
    first, second = zip(*drafted, strict=True)
    positions = _positions(first), _positions(second)
    return PairTrial(
        prompts=len(first),
        k=k,
        positions=sum(len(each) for each in positions[0]),
        as_served=(_served(first, k), _served(second, k)),
        comparison=compare_positions(*positions, k, names),
        stopped=stopped,
    )


def _drafted(
    passages: Sequence[Passage], both: Callable[[Passage], _Both], listener: TrialListener
) -> tuple[list[_Both], bool]:
    """Return both drafts of each prompt, and whether Ctrl-C left some prompts out."""
    made = list[_Both]()
    try:
        for each in listener.each(passages, "Running both drafters", len(passages)):
            made.append(both(each))
    except KeyboardInterrupt:
        if len(made) < LEAST_PASSAGES:
            raise
        return made, True
    return made, False


def _positions(drafts: Sequence[Drafted]) -> list[list[int]]:
    return [each.accepted.tolist() for each in drafts]


def _served(drafts: Sequence[Drafted], k: int) -> Acceptance:
    return acceptance_of([each.rounds() for each in drafts], k)
