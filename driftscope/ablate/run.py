"""Runs a drafter beside its target under each intervention, from the same positions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from driftscope.ablate.intervention import (
    AS_SERVED,
    INTERVENTIONS,
    SERVED_DTYPE,
    AttentionChange,
    Intervention,
    PromptLookup,
    Size,
)
from driftscope.ablate.result import (
    Ablation,
    Figures,
    RegionTokens,
    ablation_of,
    coverage_of,
    overflows_at,
)
from driftscope.analysis.figures.near_misses import NearMisses, near_misses_of
from driftscope.errors import CheckpointError, NoDataError
from driftscope.inspect.checkpoints import DrafterFiles, TargetFiles
from driftscope.inspect.reference.config import DEFAULT_N_SINK
from driftscope.inspect.reference.drafter import ChainStep, Edit, ReferenceDrafter, rms
from driftscope.inspect.reference.layers import Embeds
from driftscope.inspect.trial.drafting import FIGURES, Prefix, as_served
from driftscope.inspect.trial.target import Passage
from driftscope.inspect.trial.trial import LEAST_PASSAGES, Bench, served_dtype
from driftscope.regions import TokenTexts, answer_regions
from driftscope.vocabulary import Region

NEAREST_SLOTS = 64
"""Number of slots that LAST_SLOTS leaves visible, the query's own among them."""
_LEAST = 1e-30


class AttentionEdit:
    """Edits the attention of one chain, depth after depth."""

    def __init__(
        self, kind: AttentionChange, anchors: Tensor, context_slots: int, n_sink: int
    ) -> None:
        """`anchors` [A] are the chains' slots, and `n_sink` is the number of slots in the sink
        set."""
        self._kind = kind
        self._anchors = anchors
        self._context = context_slots
        self._n_sink = n_sink
        self._first: dict[int, Tensor] = {}
        """Share of the sink set at depth 1 by layer, [B, N, A, 1]."""

    def at(self, depth: int) -> Edit:
        """Return the edit of one depth."""

        def edit(layer: int, weights: Tensor) -> Tensor:
            if self._kind is AttentionChange.RESTORE_SINK:
                return self._with_first_share(layer, weights)
            kept = weights * self._visible(depth, weights.shape[-1])
            return kept / kept.sum(-1, keepdim=True).clamp_min(_LEAST)

        return edit

    def _visible(self, depth: int, slots: int) -> Tensor:
        """Return which slots are seen, [A or 1, slots]; slots of the context come first."""
        at = torch.arange(slots, device=self._anchors.device)
        if self._kind is AttentionChange.HIDE_CHAIN:
            return (at < self._context)[None]
        if self._kind is AttentionChange.HIDE_SINK:
            return (at >= self._n_sink)[None]
        own = self._anchors[:, None] + 1 + at - self._context
        position = torch.where(at < self._context, at, own)
        return position > self._anchors[:, None] + depth - 1 - NEAREST_SLOTS

    def _with_first_share(self, layer: int, weights: Tensor) -> Tensor:
        sink = weights[..., : self._n_sink].sum(-1, keepdim=True)
        first = self._first.setdefault(layer, sink)
        others = weights[..., self._n_sink :] * ((1 - first) / (1 - sink).clamp_min(_LEAST))
        return torch.cat(
            [weights[..., : self._n_sink] * (first / sink.clamp_min(_LEAST)), others], -1
        )


_LEAST_RMS = 1e-12


class IntervenedChain:
    """Changes the chains of one passage as an intervention asks.

    With `right_states` the state of depth d is what `fc` makes of the target's states at the
    position before the one that is drafted; with `right_tokens` the token of that position is the
    target's.
    """

    def __init__(self, intervention: Intervention, prefix: Prefix, anchors: Tensor) -> None:
        """`anchors` [A] are the slots from which the chains start."""
        kind, slots = intervention.attention, prefix.context.slots
        self._made, self._prefix, self._anchors = intervention, prefix, anchors
        self._edit = AttentionEdit(kind, anchors, slots, DEFAULT_N_SINK) if kind else None
        self._first: Tensor | None = None
        """RMS of the state after depth 1, [1, A]."""

    def edit(self, depth: int) -> Edit | None:
        """Return the edit of attention at a depth."""
        return self._edit.at(depth) if self._edit else None

    def fed(self, step: ChainStep) -> tuple[Tensor, Tensor]:
        """Return the tokens [A] and the state [1, A, H] that the next depth reads."""
        at = self._anchors + step.depth
        tokens = self._prefix.passage.ids[at + 1] if self._made.right_tokens else step.token_ids
        return tokens, self._prefix.fused[:, at] if self._made.right_states else self._state(step)

    def _state(self, step: ChainStep) -> Tensor:
        output = step.output
        if self._made.size is Size.NORMED:
            return output.postnorm
        size = rms(output.fed)
        if self._first is None:
            self._first = size
        elif self._made.size is Size.PINNED:
            return output.fed * (self._first / size.clamp_min(_LEAST_RMS))[..., None]
        return output.fed


@dataclass(frozen=True, slots=True, kw_only=True)
class AblatedDraft:
    """Drafts of one passage from A positions."""

    matches: Tensor
    """Whether each drafted token is the target's, [A, K]."""
    figures: Tensor
    """Means over the positions of `trial.drafting.FIGURES`, [K, figures]."""
    rejections: Tensor
    """A row for each chain that ends before K, [rejections, 2]: the rank that the drafter gives to
    the target's token, 0 if it cannot draft it; and the probability of the drafted token as a share
    of that of the target's own, 0 unless it is the target's second choice."""


@torch.inference_mode()
def ablated_draft(
    prefix: Prefix, k: int, intervention: Intervention, anchors: Tensor
) -> AblatedDraft:
    """Draft K tokens greedily from the slots `anchors` [A], given the true tokens before each."""
    matches, figures, rejections = list[Tensor](), list[Tensor](), list[Tensor]()
    change = IntervenedChain(intervention, prefix, anchors)
    going_on = torch.ones(len(anchors), dtype=torch.bool, device=anchors.device)
    for step, right in prefix.steps(anchors, k, change):
        matches.append(step.token_ids == right)
        columns = prefix.figures(step).values()
        figures.append(torch.stack([column.mean() for column in columns]))
        ends = (going_on & ~matches[-1]).nonzero()[:, 0]
        # The rows of the chains `ends` [R], whose tokens are not those of `right` [A].
        logits, passage = step.logits[ends].float(), prefix.passage
        known = prefix.drafter.target_ids(torch.arange(logits.shape[-1], device=logits.device))
        is_right = known == right[ends][:, None]
        own = torch.where(is_right, logits, -torch.inf).amax(-1, keepdim=True)
        rank = torch.where(is_right.any(-1), 1 + (logits > own).sum(-1), 0)
        closeness = torch.zeros(len(ends), device=logits.device)
        if passage.runner_up is not None and passage.closeness is not None:
            at = anchors[ends] + 1 + step.depth - passage.prompt_tokens
            second = step.token_ids[ends] == passage.runner_up[at]
            closeness = torch.where(second, passage.closeness[at], 0.0)
        rejections.append(torch.stack([rank.to(closeness), closeness], 1))
        going_on &= matches[-1]
    return AblatedDraft(
        matches=torch.stack(matches, 1),
        figures=torch.stack(figures),
        rejections=torch.cat(rejections),
    )


LEAST_NGRAM, MOST_NGRAM = 2, 5
"""Lengths of an n-gram that is looked up, vLLM's `prompt_lookup_min` and `prompt_lookup_max`."""


def looked_up(ids: Tensor, anchors: Tensor, k: int) -> Tensor:
    """Return whether each token that n-gram lookup drafts is the target's, [A, K].

    At each of `anchors` [A] the next token is known, as it is to a drafter. The longest n-gram that
    ends with it is looked up, and what followed its earliest occurrence is drafted.
    """
    matches = torch.zeros((len(anchors), k), dtype=torch.bool, device=ids.device)
    for row, anchor in enumerate(anchors.tolist()):
        known = anchor + 2
        for n in range(min(MOST_NGRAM, known - 1), LEAST_NGRAM - 1, -1):
            found = (ids[: known - 1].unfold(0, n, 1) == ids[known - n : known]).all(-1).nonzero()
            if len(found):
                drafted = ids[int(found[0]) + n : known][:k]
                matches[row, : len(drafted)] = drafted == ids[known : known + len(drafted)]
                break
    return matches


def better_of(first: Tensor, second: Tensor) -> Tensor:
    """Return, row by row, the matches [A, K] that are accepted further."""
    accepted = [matches.long().cumprod(-1).sum(-1) for matches in (first, second)]
    return torch.where((accepted[1] > accepted[0])[:, None], second, first)


class DraftVocabulary:
    """The tokens that a drafter can draft, beside the tokenizer of its target."""

    def __init__(self, drafter: ReferenceDrafter, tokenizer: Any) -> None:
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
        # An answer without text is all template.
        regions = np.full(len(answer), Region.ALL.index(Region.TEMPLATE))
        found = answer_regions(self._texts, prompt, answer)
        if found.starts:
            at = np.searchsorted(found.starts, np.arange(len(answer)), side="right") - 1
            regions = np.array(found.codes, np.int64)[at.clip(0)]
        absent = np.zeros(len(answer), bool)
        if self._known is not None:
            absent = ~np.isin(answer, self._known)
        return {
            Region.ALL[code]: (int((regions == code).sum()), int(absent[regions == code].sum()))
            for code in np.unique(regions).tolist()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """Drafts of one prompt by intervention, from the same positions; without any if the answer is
    too short."""

    drafts: Mapping[str, AblatedDraft]
    vocabulary: RegionTokens

    @property
    def positions(self) -> int:
        """Number of positions from which chains start."""
        return len(self.drafts[AS_SERVED].matches)


class ServedDrafter:
    """A drafter with its target's embedding, cast to a dtype."""

    def __init__(self, drafter: ReferenceDrafter, target: Embeds, dtype: torch.dtype) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMeter:
    """Measures prompts with one drafter."""

    drafter: ReferenceDrafter
    target: Embeds
    k: int
    positions: int
    """Largest number of positions of one answer."""
    vocabulary: DraftVocabulary | None = None
    served: ServedDrafter | None = None
    """Needed for interventions in the served dtype."""

    def measured(self, passage: Passage, interventions: Sequence[Intervention]) -> MeasuredPrompt:
        """Return the drafts of one passage under the interventions, from positions that are evenly
        spread over the answer."""
        k, anchors, drafts = self.k, passage.anchors(self.k), dict[str, AblatedDraft]()
        if len(anchors) > self.positions:
            at = torch.linspace(0, len(anchors) - 1, self.positions, device=anchors.device)
            anchors = anchors[at.round().long()]
        nothing = AblatedDraft(
            matches=torch.zeros((0, k), dtype=torch.bool),
            figures=torch.zeros((k, len(FIGURES))),
            rejections=torch.zeros((0, 2)),
        )
        if len(anchors):
            prefix = narrow = Prefix.run_over(self.drafter, self.target, passage)
            if self.served and any(intervention.served_dtype for intervention in interventions):
                served = self.served
                narrow = Prefix.run_over(served.drafter, served, served.cast(passage))
        for intervention in interventions:
            if not len(anchors):
                drafts[intervention.id] = nothing
            elif intervention.lookup is None:
                of_chain = narrow if intervention.served_dtype else prefix
                drafts[intervention.id] = ablated_draft(of_chain, k, intervention, anchors)
            else:
                matches = looked_up(passage.ids, anchors, k)
                if intervention.lookup is PromptLookup.BETTER_OF_BOTH:
                    matches = better_of(drafts[AS_SERVED].matches, matches)
                drafts[intervention.id] = replace(nothing, matches=matches)
        vocabulary = self.vocabulary.count(passage) if self.vocabulary else {}
        return MeasuredPrompt(drafts=drafts, vocabulary=vocabulary)


Progress = Callable[[Sequence[Any]], Iterable[Any]]


def run_ablation(
    files: DrafterFiles,
    target: TargetFiles,
    bench: Callable[[], Bench],
    *,
    k: int,
    wanted: Sequence[str],
    positions: int,
    names: tuple[str, str],
    progress: Progress = lambda state: state,
) -> Ablation:
    """Run the drafter as served and under the interventions `wanted`, ids in the order of the
    catalogue, from at most `positions` positions of each answer. `bench` is called once the drafter
    is known to fit; `names` are those of drafter and target in the result. KeyboardInterrupt ends
    it early, with the result of the prompts that are measured by then.

    Raises CheckpointError for a model that cannot be run or whose states are not finite, and
    NoDataError if too few answers are long enough for a chain of K.
    """
    variant = as_served(files, target.layers)
    variant.check()
    loaded = bench()
    variant, teacher = variant.with_shared_head(loaded.facts.head), loaded.teacher
    drafter, dtype = variant.build(teacher.device), served_dtype(target, files)
    narrow = torch.finfo(dtype).eps > torch.finfo(torch.float32).eps
    asked = [INTERVENTIONS[name] for name in wanted]
    idle = {}
    for intervention in asked:
        if intervention.size is Size.NORMED and drafter.config.norm_output:
            idle[intervention.id] = "its state is normed before it is fed as it is (norm_output)"
        if intervention.size is Size.NORMED and drafter.config.eagle1:
            idle[intervention.id] = "an EAGLE-1 drafter has no final norm"
        if intervention.served_dtype and not narrow:
            idle[intervention.id] = "no config names a dtype narrower than float32 (torch_dtype)"
    chains = [INTERVENTIONS[AS_SERVED], *(change for change in asked if change.id not in idle)]
    meter = PromptMeter(
        drafter=drafter,
        target=teacher,
        k=k,
        positions=positions,
        vocabulary=DraftVocabulary(drafter, teacher.tokenizer),
        served=ServedDrafter(drafter, teacher, dtype)
        if narrow and SERVED_DTYPE in wanted
        else None,
    )
    passages = teacher.passages(loaded.prompts, variant.config.aux_layers)
    measured, stopped = list[MeasuredPrompt](), False
    try:
        for _, passage in zip(progress(list(loaded.prompts)), passages, strict=True):
            measured.append(meter.measured(passage, chains))
    except KeyboardInterrupt:
        if len(measured) < LEAST_PASSAGES:
            raise  # too few for any result
        stopped = True
    served = [prompt for prompt in measured if prompt.positions]
    if len(served) < LEAST_PASSAGES:
        raise NoDataError(
            f"{len(served)} prompts have an answer longer than K = {k}; give {LEAST_PASSAGES} "
            "or more with --prompts"
        )
    if depth := overflows_at(figures_of(served, chains[0])):
        raise CheckpointError(
            f"{names[0]}: its states are not finite (NaN, or an overflow) from depth {depth} on, "
            "so that nothing along the chain can be judged; `driftscope inspect "
            f"{names[0]} --target {names[1]}` looks for the tensor"
        )
    return replace(ablation_from(served, chains, names=names, not_applicable=idle), stopped=stopped)


def figures_of(prompts: Sequence[MeasuredPrompt], made: Intervention) -> Figures:
    """Return the means over all positions under an intervention; none for a lookup."""
    if made.lookup:
        return {}
    drafts = [prompt.drafts[made.id] for prompt in prompts]
    sums = [one.figures.double().cpu().numpy() * len(one.matches) for one in drafts]
    means = np.sum(sums, axis=0) / max(sum(prompt.positions for prompt in prompts), 1)
    return {
        figure: tuple(value if math.isfinite(value) else None for value in means[:, at].tolist())
        for at, figure in enumerate(FIGURES)
    }


def _near_misses(rejections: Sequence[Tensor]) -> NearMisses | None:
    """Return what the rejected tokens of the prompts, `AblatedDraft.rejections` of each, came close
    to. Nothing is excluded, because the target is greedy."""
    rank, close = torch.cat(list(rejections)).double().cpu().numpy().T
    prompt = np.repeat(np.arange(len(rejections)), list(map(len, rejections)))
    return near_misses_of(rank, close, np.zeros(len(rank), dtype=np.bool_), prompt)


def ablation_from(
    prompts: Sequence[MeasuredPrompt],
    chains: Sequence[Intervention],
    *,
    names: tuple[str, str],
    not_applicable: Mapping[str, str],
) -> Ablation:
    """Return the result of the prompts, all of which have drafts."""
    return ablation_of(
        {
            chain.id: [prompt.drafts[chain.id].matches.cpu().numpy() for prompt in prompts]
            for chain in chains
        },
        {chain.id: figures_of(prompts, chain) for chain in chains},
        coverage_of([prompt.vocabulary for prompt in prompts]),
        _near_misses([prompt.drafts[AS_SERVED].rejections for prompt in prompts]),
        drafter=names[0],
        target=names[1],
        not_applicable=not_applicable,
    )
