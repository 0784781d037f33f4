"""Runs a drafter beside its target under each intervention, from the same positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from driftscope.ablate.ablation import Ablation, ablation_of
from driftscope.ablate.effect import Drafts
from driftscope.ablate.intervention import AS_SERVED
from driftscope.ablate.measurement.ablation_plan import AblationOptions, AblationPlan, plan_of
from driftscope.ablate.measurement.draft_vocabulary import DraftVocabulary
from driftscope.ablate.measurement.measured_answers import MeasuredAnswers
from driftscope.ablate.measurement.measured_prompt import MeasuredPrompt
from driftscope.ablate.measurement.prompt_meter import PromptMeter
from driftscope.ablate.measurement.prompt_pairing import ByKey, by_position, by_prompt, long_enough
from driftscope.ablate.measurement.served_dtype import ServedDrafter, served_dtype
from driftscope.ablate.measurement.work_file import WorkFile
from driftscope.ablate.vocabulary_coverage import coverage_of
from driftscope.errors import NoDataError
from driftscope.inspect.checks.text_files import chat_template
from driftscope.inspect.files.drafter_files import DrafterFiles
from driftscope.inspect.files.target_files import TargetFiles
from driftscope.inspect.trial.trial import LEAST_PASSAGES, Bench
from driftscope.inspect.trial.variant import as_served

Progress = Callable[[Sequence[Any]], Iterable[Any]]


def run_ablation(
    files: DrafterFiles,
    target: TargetFiles,
    bench: Callable[[], Bench],
    options: AblationOptions,
    *,
    names: tuple[str, str],
    work: WorkFile | None = None,
    progress: Progress = lambda each: each,
) -> Ablation:
    """Run the drafter as served and under the interventions that are wanted. `bench` is called once
    the drafter is known to fit; `names` are those of drafter and target in the result.

    Raises CheckpointError for a model that cannot be run, and NoDataError if too few answers are
    long enough for a chain of K.
    """
    variant = as_served(files, target.layers)
    variant.check()
    loaded = bench()
    variant, teacher = variant.with_shared_head(loaded.facts.head), loaded.teacher
    drafter = variant.build(teacher.device)
    dtype = served_dtype(target, files)
    plan = plan_of(loaded, drafter, dtype, options, chat_template(files.folder))
    narrow = dtype if any(each.served_dtype for each in plan.chains) else None
    meter = PromptMeter(
        drafter,
        teacher,
        k=options.k,
        positions=options.positions,
        vocabulary=DraftVocabulary(drafter, teacher.tokenizer),
        served=ServedDrafter(drafter, teacher, narrow) if narrow else None,
    )
    answers = MeasuredAnswers(teacher, variant.config.aux_layers, meter, work)
    units = [(each.id, key) for each in plan.writings for key in each.prompts]
    every = zip(progress(units), answers.of(plan.writings), strict=True)
    return _result([each for _, each in every], plan, options.k, names)


def _result(
    measured: Sequence[MeasuredPrompt], plan: AblationPlan, k: int, names: tuple[str, str]
) -> Ablation:
    served = long_enough(measured, AS_SERVED)
    if len(served) < LEAST_PASSAGES:
        raise NoDataError(
            f"{len(served)} prompts have an answer longer than K = {k}; give {LEAST_PASSAGES} "
            "or more with --prompts"
        )
    rewritten, too_short = _rewritten(measured, served, plan)
    return ablation_of(
        [*(by_position(served, each) for each in plan.chains), *rewritten],
        coverage_of([each.vocabulary for each in served.values()]),
        drafter=names[0],
        target=names[1],
        not_applicable={**plan.not_applicable, **too_short},
    )


def _rewritten(
    measured: Sequence[MeasuredPrompt], served: ByKey, plan: AblationPlan
) -> tuple[list[Drafts], dict[str, str]]:
    """Return the drafts on rewritten prompts, and the interventions with too few of them."""
    made, too_short = list[Drafts](), dict[str, str]()
    for intervention, writing in plan.rewritten:
        drafts = by_prompt(served, long_enough(measured, writing.id), intervention)
        if len(drafts.matches) < LEAST_PASSAGES:
            too_short[intervention.id] = (
                f"fewer than {LEAST_PASSAGES} prompts have long enough answers both ways"
            )
        else:
            made.append(drafts)
    return made, too_short
