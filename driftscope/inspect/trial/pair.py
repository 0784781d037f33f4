"""Runs two drafters beside one target, from the same positions of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.trial.acceptance import Acceptance, acceptance_of
from driftscope.inspect.trial.drafting import Drafted, draft
from driftscope.inspect.trial.paired_positions import PairTrial, compare_positions
from driftscope.inspect.trial.trial import Bench
from driftscope.inspect.trial.variant import Variant, as_served

Progress = Callable[[Sequence[Variant]], Iterable[Variant]]


def run_pair(
    files: tuple[DrafterFiles, DrafterFiles],
    names: tuple[str, str],
    target_layers: int,
    bench: Callable[[], Bench],
    k: int,
    *,
    progress: Progress = lambda each: each,
) -> PairTrial:
    """Run both drafters as an engine would, and compare them. `bench` is called once both are known
    to fit.

    Raises CheckpointError for a model that cannot be run, and NoDataError if too few answers are
    long enough for a chain of K.
    """
    variants = [as_served(each, target_layers) for each in files]
    for variant in variants:
        variant.build("cpu")
    first, second = _drafts(variants, bench(), k, progress)
    positions = _positions(first), _positions(second)
    return PairTrial(
        prompts=len(first),
        k=k,
        positions=sum(len(each) for each in positions[0]),
        as_served=(_served(first, k), _served(second, k)),
        comparison=compare_positions(*positions, k, names),
    )


def _drafts(
    variants: Sequence[Variant], loaded: Bench, k: int, progress: Progress
) -> list[list[Drafted]]:
    layers = {layer for variant in variants for layer in variant.config.aux_layers}
    passages, teacher = loaded.passages(layers, k), loaded.teacher
    made = []
    for variant in progress(variants):
        drafter = variant.build(teacher.device)
        made.append([draft(drafter, teacher, each, k) for each in passages])
    return made


def _positions(drafts: Sequence[Drafted]) -> list[list[int]]:
    return [each.accepted.tolist() for each in drafts]


def _served(drafts: Sequence[Drafted], k: int) -> Acceptance:
    return acceptance_of([each.rounds() for each in drafts], k)
