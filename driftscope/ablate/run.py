"""Runs a drafter beside its target under each intervention, from the same positions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from driftscope.ablate.chains import AblatedDraft, ablated_draft, better_of, looked_up
from driftscope.ablate.intervention import (
    AS_SERVED,
    INTERVENTIONS,
    Intervention,
    Lookup,
    Size,
)
from driftscope.ablate.result import (
    Ablation,
    Drafts,
    Figures,
    Matches,
    RegionTokens,
    Rejections,
    ablation_of,
    coverage_of,
    near_misses_of,
    overflows_at,
)
from driftscope.errors import CheckpointError, NoDataError
from driftscope.inspect.checkpoints import DrafterFiles, TargetFiles
from driftscope.inspect.reference.drafter import Drafter
from driftscope.inspect.reference.layers import Embeds
from driftscope.inspect.trial.drafting import FIGURES, Prefix, as_served
from driftscope.inspect.trial.target import BATCH, Passage, Teacher
from driftscope.inspect.trial.trial import LEAST_PASSAGES, Bench
from driftscope.regions import AnswerRegions, TokenTexts, answer_regions
from driftscope.vocabulary import Region


class DraftVocabulary:
    """The tokens that a drafter can draft, beside the tokenizer of its target."""

    def __init__(self, drafter: Drafter, tokenizer: Any) -> None:
        """`tokenizer`: as `TokenTexts` needs it."""
        self._texts = TokenTexts(tokenizer)
        self._known: NDArray[np.int64] | None = None
        """Ids of the target's vocabulary; None for the whole vocabulary."""
        if size := drafter.config.draft_vocab_size:
            own = torch.arange(size, device=drafter.d2t.device)
            self._known = drafter.target_ids(own).cpu().numpy()

    def count(self, passage: Passage) -> RegionTokens:
        """Return the tokens of the answer and those that are lacking, by region."""
        ids: list[int] = passage.ids.tolist()
        prompt, answer = ids[: passage.prompt_tokens], ids[passage.prompt_tokens :]
        regions = _by_token(answer_regions(self._texts, prompt, answer), len(answer))
        absent = np.zeros(len(answer), bool)
        if self._known is not None:
            absent = ~np.isin(answer, self._known)
        return {
            Region.ALL[code]: (int((regions == code).sum()), int(absent[regions == code].sum()))
            for code in np.unique(regions).tolist()
        }


def _by_token(regions: AnswerRegions, tokens: int) -> NDArray[np.int64]:
    """Return the code of each token's region, [tokens]. An answer without text is all template."""
    if not regions.starts:
        return np.full(tokens, Region.ALL.index(Region.TEMPLATE))
    at = np.searchsorted(regions.starts, np.arange(tokens), side="right") - 1
    codes: NDArray[np.int64] = np.array(regions.codes, np.int64)[at.clip(0)]
    return codes


FigureSums = NDArray[np.float64]
"""Sums over the positions of `trial.drafting.FIGURES`, [K, figures]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """Counts of one prompt."""

    key: str
    matches: Mapping[str, Matches]
    """Matches by intervention, from the same positions; of none if the answer is too short."""
    sums: Mapping[str, FigureSums]
    vocabulary: RegionTokens
    rejections: Rejections
    """Ends of the chains as served."""

    @property
    def positions(self) -> int:
        """Number of positions from which chains start."""
        return len(next(iter(self.matches.values())))


_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_FIELDS = ("torch_dtype", "dtype")


def served_dtype(target: TargetFiles, drafter: DrafterFiles) -> torch.dtype | None:
    """Return the dtype of the target's config, in which vLLM serves the drafter too, or else that
    of the drafter's; None if neither names one that is narrower than float32."""
    for fields in (target.raw, target.fields, drafter.raw, drafter.fields):
        for name in _FIELDS:
            if isinstance(named := fields.get(name), str):
                return _NARROW.get(named.removeprefix("torch."))
    return None


class ServedDrafter:
    """A drafter with its target's embedding, cast to a dtype."""

    def __init__(self, drafter: Drafter, target: Embeds, dtype: torch.dtype) -> None:
        """Copy the drafter; the original keeps its dtype."""
        self.drafter = copy.deepcopy(drafter).to(dtype)
        self._target, self._dtype = target, dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids [...] to [..., H]."""
        return self._target.embed(ids).to(self._dtype)

    def cast(self, passage: Passage) -> Passage:
        """Return the passage with its states rounded to the dtype."""
        states = {layer: state.to(self._dtype) for layer, state in passage.states.items()}
        return replace(passage, states=states)


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

    def measured(self, passage: Passage, interventions: tuple[Intervention, ...]) -> MeasuredPrompt:
        """Return the counts of one passage under the interventions."""
        anchors = anchors_of(passage, self._k, self._positions)
        drafted = self._drafts(passage, interventions, anchors)
        return MeasuredPrompt(
            key=passage.key,
            matches={name: chains.matches.cpu().numpy() for name, chains in drafted.items()},
            sums={name: _sums(chains) for name, chains in drafted.items()},
            vocabulary=self._vocabulary.count(passage) if self._vocabulary else {},
            rejections=drafted[AS_SERVED].rejections.double().cpu().numpy(),
        )

    def _drafts(
        self, passage: Passage, interventions: tuple[Intervention, ...], anchors: Tensor
    ) -> dict[str, AblatedDraft]:
        if not len(anchors):
            return {intervention.id: _nothing(self._k) for intervention in interventions}
        prefix = narrow = Prefix.of(self._drafter, self._target, passage)
        if self._served and any(made.served_dtype for made in interventions):
            served = self._served
            narrow = Prefix.of(served.drafter, served, served.cast(passage))
        drafts: dict[str, AblatedDraft] = {}
        for made in interventions:
            if made.lookup is None:
                of_chain = narrow if made.served_dtype else prefix
                drafts[made.id] = ablated_draft(of_chain, self._k, made, anchors)
                continue
            matches = looked_up(passage.ids, anchors, self._k)
            if made.lookup is Lookup.BETTER_OF_BOTH:
                matches = better_of(drafts[AS_SERVED].matches, matches)
            drafts[made.id] = replace(_nothing(self._k), matches=matches)
        return drafts


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
        figures=torch.zeros((k, len(FIGURES))),
        rejections=torch.zeros((0, 2)),
    )


def measured_answers(
    teacher: Teacher, layers: Sequence[int], meter: PromptMeter, plan: AblationPlan
) -> Iterator[MeasuredPrompt]:
    """Let the target answer every prompt, and yield the counts in the order of keys. `layers` are
    those of the target whose states the drafter reads."""
    keys = sorted(plan.prompts)
    for start in range(0, len(keys), BATCH):
        prompts = {key: plan.prompts[key] for key in keys[start : start + BATCH]}
        for passage in teacher.passages(prompts, layers):
            yield meter.measured(passage, plan.chains)


def drafts_of(prompts: Sequence[MeasuredPrompt], intervention: Intervention) -> Drafts:
    """Return the drafts under an intervention, from the same positions as those as served."""
    name = intervention.id
    return Drafts(
        intervention=intervention,
        matches=[prompt.matches[name] for prompt in prompts],
        as_served=[prompt.matches[AS_SERVED] for prompt in prompts],
        figures={} if intervention.lookup else _means(prompts, name),
    )


def _means(prompts: Sequence[MeasuredPrompt], name: str) -> Figures:
    positions = max(sum(prompt.positions for prompt in prompts), 1)
    means = np.sum([prompt.sums[name] for prompt in prompts], axis=0) / positions
    return {
        figure: tuple(value if math.isfinite(value) else None for value in means[:, at].tolist())
        for at, figure in enumerate(FIGURES)
    }


POSITIONS = 20
"""Default number of positions of each answer from which chains start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationOptions:
    """Settings of an ablation."""

    k: int
    wanted: Sequence[str]
    """Identifiers of the interventions, in the order of the catalogue."""
    positions: int = POSITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationPlan:
    """Interventions that apply, and the reasons why others do not."""

    chains: tuple[Intervention, ...]
    """Interventions, AS_SERVED first."""
    prompts: Mapping[str, list[int]]
    """Token ids of the prompts, by key."""
    not_applicable: Mapping[str, str]


def plan_of(
    loaded: Bench, drafter: Drafter, dtype: torch.dtype | None, options: AblationOptions
) -> AblationPlan:
    """Return the plan. `dtype` is the served one if it is narrower than float32."""
    wanted = [INTERVENTIONS[name] for name in options.wanted]
    idle = _without_effect(drafter, dtype, wanted)
    chains = [intervention for intervention in wanted if intervention.id not in idle]
    return AblationPlan(
        chains=(INTERVENTIONS[AS_SERVED], *chains), prompts=loaded.prompts, not_applicable=idle
    )


def _without_effect(
    drafter: Drafter, dtype: torch.dtype | None, wanted: Iterable[Intervention]
) -> dict[str, str]:
    found = {}
    for intervention in wanted:
        if intervention.size is Size.NORMED and drafter.config.norm_output:
            found[intervention.id] = "its state is normed before it is fed as it is (norm_output)"
        if intervention.size is Size.NORMED and drafter.config.eagle1:
            found[intervention.id] = "an EAGLE-1 drafter has no final norm"
        if intervention.served_dtype and dtype is None:
            found[intervention.id] = "no config names a dtype narrower than float32 (torch_dtype)"
    return found


Progress = Callable[[Sequence[Any]], Iterable[Any]]


def run_ablation(
    files: DrafterFiles,
    target: TargetFiles,
    bench: Callable[[], Bench],
    options: AblationOptions,
    *,
    names: tuple[str, str],
    progress: Progress = lambda state: state,
) -> Ablation:
    """Run the drafter as served and under the interventions that are wanted. `bench` is called once
    the drafter is known to fit; `names` are those of drafter and target in the result.
    KeyboardInterrupt ends it early, with the result of the prompts that are measured by then.

    Raises CheckpointError for a model that cannot be run or whose states are not finite, and
    NoDataError if too few answers are long enough for a chain of K.
    """
    variant = as_served(files, target.layers)
    variant.check()
    loaded = bench()
    variant, teacher = variant.with_shared_head(loaded.facts.head), loaded.teacher
    drafter = variant.build(teacher.device)
    dtype = served_dtype(target, files)
    plan = plan_of(loaded, drafter, dtype, options)
    narrow = dtype if any(chain.served_dtype for chain in plan.chains) else None
    meter = PromptMeter(
        drafter,
        teacher,
        k=options.k,
        positions=options.positions,
        vocabulary=DraftVocabulary(drafter, teacher.tokenizer),
        served=ServedDrafter(drafter, teacher, narrow) if narrow else None,
    )
    answers = measured_answers(teacher, variant.config.aux_layers, meter, plan)
    measured = list[MeasuredPrompt]()
    try:
        for _, answer in zip(progress(list(plan.prompts)), answers, strict=True):
            measured.append(answer)
    except KeyboardInterrupt:
        return replace(_result(measured, plan, options.k, names), stopped=True)
    return _result(measured, plan, options.k, names)


def _result(
    measured: Sequence[MeasuredPrompt], plan: AblationPlan, k: int, names: tuple[str, str]
) -> Ablation:
    served = [passage for passage in measured if passage.positions]
    if len(served) < LEAST_PASSAGES:
        raise NoDataError(
            f"{len(served)} prompts have an answer longer than K = {k}; give {LEAST_PASSAGES} "
            "or more with --prompts"
        )
    chains = [drafts_of(served, chain) for chain in plan.chains]
    if depth := overflows_at(chains[0].figures):
        raise CheckpointError(
            f"{names[0]}: its states are not finite (NaN, or an overflow) from depth {depth} on, "
            "so that nothing along the chain can be judged; `driftscope inspect "
            f"{names[0]} --target {names[1]}` looks for the tensor"
        )
    return ablation_of(
        chains,
        coverage_of([passage.vocabulary for passage in served]),
        near_misses_of([passage.rejections for passage in served]),
        drafter=names[0],
        target=names[1],
        not_applicable=plan.not_applicable,
    )
