"""Runs a drafter beside its target, outside any engine, and tries repairs on the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from driftscope.analysis.statistics.ratio import mean_interval
from driftscope.errors import NoDataError
from driftscope.inspect.checkpoints import DrafterFiles, TargetFiles
from driftscope.inspect.checks.layer_fields import not_promised
from driftscope.inspect.checks.vocabulary import chat_template
from driftscope.inspect.drafter_classes import AUX_LAYERS
from driftscope.inspect.trial.drafting import (
    FIGURES,
    Drafted,
    Repair,
    Variant,
    Watch,
    as_served,
    draft,
)
from driftscope.inspect.trial.inside import inside_of
from driftscope.inspect.trial.repairs import TargetFacts, layers_needed, nearby_layers, repairs
from driftscope.inspect.trial.result import (
    AllPositions,
    DrafterChange,
    NotApplicable,
    Overflow,
    Trial,
    TrialAcceptance,
    TrialListener,
    Tried,
    acceptance_of,
    gain,
    mean_gain,
    mean_length,
    stopped_before,
)
from driftscope.inspect.trial.target import Passage, Teacher
from driftscope.inspect.trial.verdict import (
    LEAST_GAIN,
    TURNS,
    best_repair,
    is_alive,
    is_expected,
    only_layers,
)

Ids = Mapping[str, Sequence[int]]
"""Token ids of each prompt, by its key."""
Conversations = Mapping[str, Sequence[Mapping[str, Any]]]
"""Messages of those prompts that are conversations, by key."""
FIRST_TOKEN, TEMPLATE = "first_token", "drafters_template"
_BY_ROLE = "<|assistant|>"
_TURNS = (
    ("<|im_start|>", "<|im_start|>ROLE\nCONTENT<|im_end|>\n", "<|im_start|>assistant\n"),
    (
        "<|start_header_id|>",
        "<|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    ("<start_of_turn>", "<start_of_turn>ROLE\nCONTENT<end_of_turn>\n", "<start_of_turn>model\n"),
    (_BY_ROLE, "<|ROLE|>\nCONTENT<|end|>", _BY_ROLE),
)
"""Tokens for turns of ChatML, Llama 3, Gemma, and Phi and GLM: a token by which they are known, a
turn, and what asks for an answer."""
_SEVERAL = "[{"
"""Beginning of a list of named templates, which `chat_template` returns as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A change in how prompts are written, and the prompts after it."""

    change: DrafterChange
    prompts: Mapping[str, list[int]]


def renderings(
    tokenizer: Any,
    prompts: Ids,
    conversations: Conversations,
    templates: tuple[str | None, ...],
) -> tuple[list[Rendering], list[NotApplicable]]:
    """Return the renderings that can be tried, and those that cannot, with the reason. `templates`
    are the target's and the drafter's own."""
    tried = (
        _first_token(tokenizer.bos_token_id, prompts),
        _template(tokenizer, prompts, conversations, templates),
    )
    rendered = [attempt for attempt in tried if isinstance(attempt, Rendering)]
    return rendered, [attempt for attempt in tried if isinstance(attempt, NotApplicable)]


def _first_token(bos: int | None, prompts: Ids) -> Rendering | NotApplicable:
    if bos is None:
        return NotApplicable(id=FIRST_TOKEN, reason="the target's tokenizer has no first token")
    begin = {len(ids) > 0 and ids[0] == bos for ids in prompts.values()}
    if len(begin) != 1:
        return NotApplicable(id=FIRST_TOKEN, reason="only some prompts begin with the first token")
    (begun,) = begin
    if begun and any(len(ids) < 2 for ids in prompts.values()):
        return NotApplicable(id=FIRST_TOKEN, reason="a prompt is nothing but the first token")
    name, how, flag = ("off", "without", "false") if begun else ("on", "with", "true")
    change = DrafterChange(
        id=f"{FIRST_TOKEN}_{name}",
        change=f"prompts {how} the first token (add_special_tokens: {flag}, or another template)",
        mistake=f"the drafter was trained {how} the first token",
    )
    prompt_ids = {key: list(ids[1:]) if begun else [bos, *ids] for key, ids in prompts.items()}
    return Rendering(change=change, prompts=prompt_ids)


def _template(
    tokenizer: Any,
    prompts: Ids,
    conversations: Conversations,
    templates: tuple[str | None, ...],
) -> Rendering | NotApplicable:
    targets, own = templates
    reason = _no_template(targets, own, set(conversations) >= set(prompts))
    if reason is not None:
        return NotApplicable(id=TEMPLATE, reason=reason)
    try:
        prompt_ids = {key: _rendered(tokenizer, conversations[key], own) for key in prompts}
    except Exception as error:  # a template is a program, which can fail in any way
        first = (str(error) or type(error).__name__).splitlines()[0]
        reason = f"the drafter's template fails ({first})"
        return NotApplicable(id=TEMPLATE, reason=reason)
    change = DrafterChange(
        id=TEMPLATE,
        change="the drafter's own chat template (--chat-template)",
        mistake="the drafter was trained with its own template, not the target's",
    )
    return Rendering(change=change, prompts=prompt_ids)


def with_tokens_for_turns(
    tokenizer: Any, prompts: Ids, conversations: Conversations, template: str | None
) -> Rendering | None:
    """Return the prompts with the tokens for turns that the tokenizer has; None if it has none of a
    known form, or the target's template uses them."""
    added, bos = tokenizer.get_added_vocab(), tokenizer.bos_token or ""
    found = next((form for form in _TURNS if form[0] in added), None)
    if found is None or not template or not set(conversations) >= set(prompts):
        return None
    mark, turn, ask = found
    if mark in template or (mark == _BY_ROLE and "<|" in template):
        return None
    prompt_ids = {}
    for key in prompts:
        turns = (
            turn.replace("ROLE", str(message["role"])).replace("CONTENT", str(message["content"]))
            for message in conversations[key]
        )
        text = f"{bos if mark != _TURNS[0][0] else ''}{''.join(turns)}{ask}"
        prompt_ids[key] = tokenizer(text, add_special_tokens=False)["input_ids"]
    change = DrafterChange(
        id=TURNS,
        change=f"a chat template with the tokenizer's tokens for turns, such as {mark}",
        mistake="the target's chat template uses none of the tokens for turns of its tokenizer",
    )
    return Rendering(change=change, prompts=prompt_ids)


def _no_template(targets: str | None, own: str | None, conversations: bool) -> str | None:
    """Return the reason why no other template can be tried; None if one can."""
    if not own:
        return "the drafter was saved without a chat template"
    if own.startswith(_SEVERAL):
        return "the drafter was saved with several chat templates"
    if targets and own.strip() == targets.strip():
        return "the drafter's chat template is the target's"
    return None if conversations else "the prompts are texts, not conversations"


def _rendered(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], template: str | None
) -> list[int]:
    text = tokenizer.apply_chat_template(
        list(messages), chat_template=template, tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError("it renders nothing")
    return ids


FIRST_PROMPTS = 32
"""Number of prompts that a trial begins with. While the interval at depth 1 does not decide whether
the drafter is alive, it takes as many again, until there are no more."""
LEAST_PASSAGES = 5
"""Smallest number of prompts from which anything is concluded."""
SCREENED = 8
"""Number of prompts on which every repair is tried. One that accepts less than the drafter as it is
on these is not tried on the others: it cannot be the repair that is looked for."""
MOST_SEARCHED = 18
"""Captured layers that are tried near the best ones so far: three steps of six each."""
SILENT = TrialListener()


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
        self.dtype = served_dtype(target)
        self._passages: tuple[Passage, ...] = ()
        self.facts = TargetFacts(
            layers=target.layers,
            fields=target.fields,
            embedding=self.teacher.embedding.float().cpu(),
            head=self.teacher.head.float().cpu(),
        )

    def passages(
        self,
        layers: set[int],
        k: int,
        listener: TrialListener = SILENT,
        most: int | None = None,
    ) -> list[Passage]:
        """Return the answers to the first `most` prompts that are long enough for a chain of K,
        with the states of `layers`.

        Raises NoDataError if there are too few.
        """
        chosen = dict(list(self.prompts.items())[:most])
        if self._passages and not layers <= self._passages[0].states.keys():
            self._passages = ()
        answered = {passage.key for passage in self._passages}
        wanted = {key: ids for key, ids in chosen.items() if key not in answered}
        if wanted:
            passages = self.teacher.passages(wanted, layers)
            new = tuple(listener.each(passages, "Answering prompts", len(wanted)))
            self._passages = (*self._passages, *new)
        enough = [
            passage
            for passage in self._passages
            if passage.key in chosen and len(passage.anchors(k))
        ]
        if len(enough) >= LEAST_PASSAGES:
            return enough
        if len(chosen) < len(self.prompts):
            return self.passages(layers, k, listener, 2 * len(chosen))
        raise NoDataError(
            f"{len(enough)} prompts have an answer longer than K = {k}; give {LEAST_PASSAGES} "
            "or more with --prompts"
        )


def served_dtype(target: TargetFiles, drafter: DrafterFiles | None = None) -> torch.dtype:
    """Return the type of the target's config, in which vLLM serves the drafter too; without one
    that of the drafter's, or float32."""
    own = () if drafter is None else (drafter.raw, drafter.fields)
    for place in (target.raw, target.fields, *own):
        for name in ("dtype", "torch_dtype"):
            named = getattr(torch, str(place.get(name)).removeprefix("torch."), None)
            if isinstance(named, torch.dtype) and named.is_floating_point:
                return named
    return torch.float32


def run_trial(
    files: DrafterFiles,
    target_layers: int,
    bench: Callable[[], Bench],
    k: int,
    *,
    listener: TrialListener = SILENT,
    expected_length: float | None = None,
) -> Trial:
    """Run the drafter as it is and with each repair. `bench` is called once the drafter is known to
    fit, because loading a target takes long. With an expected acceptance length, prompts are added
    until they decide whether it is reached.

    Ctrl-C ends the trial once the drafter is measured as it is; before that it raises
    KeyboardInterrupt. Raises CheckpointError for a model that cannot be run, and NoDataError if too
    few answers are long enough for a chain of K.
    """
    base = as_served(files, target_layers)
    base.check()
    loaded = bench()
    base = base.with_shared_head(loaded.facts.head)
    candidates = repairs(base, loaded.facts)
    templates = loaded.template, chat_template(files.folder)
    asked = loaded.teacher.tokenizer, loaded.prompts, loaded.conversations
    rendered, left_out = renderings(*asked, templates)
    if by_turns := with_tokens_for_turns(*asked, loaded.template):
        rendered.append(by_turns)
    layers = layers_needed(base, candidates)

    def answered(most: int) -> list[Passage]:
        return loaded.passages(layers, k, listener, most)

    runner = Runner(loaded.teacher, answered, k, listener, loaded.dtype, expected_length)
    trial = runner.run(base, candidates)
    reasons, ends = not_promised(files), files.fields.get("max_position_embeddings")
    if isinstance(ends, int) and ends < runner.longest:
        past = "vLLM drafts nothing past it, and texts here have up to"
        words = f'"max_position_embeddings": {ends}: {past} {runner.longest} tokens'
        reasons = (*reasons, words)
    trial = replace(trial, not_promised=reasons)
    return try_renderings(runner, base, rendered, trial, left_out)


def try_renderings(
    runner: Runner,
    base: Variant,
    made: Sequence[Rendering],
    trial: Trial,
    left_out: Sequence[NotApplicable] = (),
) -> Trial:
    """Run the drafter as it is on the prompts of each rendering, and return the trial with the
    results. Renderings with too few answers that are long enough, and those after Ctrl-C, are not
    applicable, as are those of `left_out`."""
    tried, not_tried, stopped = list[Tried](), list(left_out), trial.stopped
    for at, rendering in enumerate(made):
        try:
            result = None if stopped else runner.rendered(base, rendering, len(made))
        except KeyboardInterrupt:
            stopped = True
        if stopped:
            not_tried += stopped_before(repair.change for repair in made[at:])
            break
        if result is None:
            reason = f"fewer than {LEAST_PASSAGES} prompts have long enough answers both ways"
            not_tried.append(NotApplicable(id=rendering.change.id, reason=reason))
        else:
            tried.append(result)
    return replace(
        trial,
        renderings=tuple(sorted(tried, key=lambda tried: -tried.gain.difference)),
        not_applicable=(*trial.not_applicable, *not_tried),
        stopped=stopped,
    )


class Runner:
    """Runs variants on the same passages."""

    def __init__(
        self,
        teacher: Teacher,
        answered: Callable[[int], list[Passage]],
        k: int,
        listener: TrialListener = SILENT,
        dtype: torch.dtype = torch.float32,
        expected_length: float | None = None,
    ) -> None:
        """Keep the target, the length of chains and the type that is served. `answered` returns the
        answers to so many prompts, or to all if there are fewer."""
        self._teacher, self._answered, self._k = teacher, answered, k
        self._expected = expected_length
        self._listener, self._dtype = listener, dtype
        self._asked = FIRST_PROMPTS
        self._passages = answered(FIRST_PROMPTS)
        self._rounds = dict[str, list[list[int]]]()
        """Accepted tokens of each repair that was tried on all prompts."""

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max((len(passage.ids) for passage in self._passages), default=0)

    def run(self, base: Variant, candidates: Sequence[Repair]) -> Trial:
        """Run the drafter as it is, and with each repair until Ctrl-C.

        Raises KeyboardInterrupt if it is stopped before LEAST_PASSAGES prompts are drafted.
        """
        drafted, overflow, stopped = self._as_is(base)
        left = () if stopped else candidates
        figures = [passage.figures for passage in drafted if passage.figures is not None]
        means = torch.stack(figures).mean(0).tolist()
        as_is, tried = acceptance_of(_rounds(drafted), self._k), list[Tried]()
        searched = MOST_SEARCHED if any(AUX_LAYERS in one.fields for one in candidates) else 0
        comparisons = len(candidates) + searched
        try:
            self._listener.measured(as_is, len(left))
            for repair in self._listener.each(left, "Trying repairs", len(left)):
                tried.append(self._try(repair, drafted, comparisons))
            if not stopped:
                tried += self._search_layers(base, drafted, tried, comparisons)
        except KeyboardInterrupt:
            stopped = True
        trial = Trial(
            prompts=len(drafted),
            k=self._k,
            acceptance=as_is,
            figures=dict(zip(FIGURES, zip(*means, strict=True), strict=True)),
            inside=inside_of([passage.inside for passage in drafted if passage.inside is not None]),
            tried=tuple(sorted(tried, key=lambda tried: -tried.gain.difference)),
            not_applicable=tuple(stopped_before(candidates[len(tried) :])) if stopped else (),
            stopped=stopped,
            overflow=overflow,
            expected_length=self._expected,
        )
        best = best_repair(trial)
        if best is not None:
            return replace(trial, tried=tuple(self._compared(trial.tried, best)))
        return trial

    def _compared(self, tried: Sequence[Tried], best: Tried) -> Iterator[Tried]:
        """Yield the repairs with how much more the best one accepts."""
        most = self._rounds.get(best.change.id)
        for one in tried:
            rounds = self._rounds.get(one.change.id)
            behind = gain(rounds, most, 1) if rounds and most and one is not best else None
            yield replace(one, behind=behind)

    def _as_is(self, base: Variant) -> tuple[list[Drafted], Overflow | None, bool]:
        """Return the drafts of each prompt, the first number that overflows, and whether Ctrl-C
        left some prompts out. Prompts are added while they do not decide."""
        drafter, drafts = base.build(self._teacher.device), list[Drafted]()
        with Watch(drafter, self._dtype) as watch:
            try:
                while len(drafts) < len(self._passages):
                    new = self._passages[len(drafts) :]
                    for passage in self._listener.each(
                        new, "Running the drafter as it is", len(new)
                    ):
                        drafted = draft(
                            drafter, self._teacher, passage, self._k, measured=True, watch=watch
                        )
                        drafts.append(drafted)
                    if not self._is_decided(acceptance_of(_rounds(drafts), self._k)):
                        self._asked *= 2
                        self._passages = self._answered(self._asked)
            except KeyboardInterrupt:
                if len(drafts) < LEAST_PASSAGES:
                    raise
                return drafts, watch.found, True
        return drafts, watch.found, False

    def _is_decided(self, acceptance: TrialAcceptance) -> bool:
        """Whether the prompts tell if the drafter is alive and accepts what is expected."""
        enough = self._expected is None or is_expected(acceptance, self._expected) is not None
        return is_alive(acceptance) is False or (enough and is_alive(acceptance) is not None)

    def _try(self, repair: Repair, base: Sequence[Drafted], comparisons: int) -> Tried:
        drafted = self._drafted(repair.variant, self._passages[:SCREENED])
        if mean_length(_rounds(drafted)) > mean_length(_rounds(base[: len(drafted)])):
            drafted += self._drafted(repair.variant, self._passages[SCREENED : len(base)])
        if len(drafted) == len(base):
            self._rounds[repair.id] = _rounds(drafted)
        base = base[: len(drafted)]
        sides = base, drafted
        accepted = [[prompt.accepted.tolist() for prompt in side] for side in sides]
        probability = [[prompt.probability.tolist() for prompt in side] for side in sides]
        first = [[prompt.first.tolist() for prompt in side] for side in sides]
        return Tried(
            change=repair.plain(),
            acceptance=acceptance_of(_rounds(drafted), self._k),
            gain=gain(_rounds(base), _rounds(drafted), comparisons),
            prompts=len(drafted),
            all_positions=AllPositions(
                accepted=mean_gain(accepted[0], accepted[1]),
                probability=mean_gain(probability[0], probability[1], comparisons),
                first=mean_gain(first[0], first[1]),
            ),
        )

    def _search_layers(
        self, base: Variant, drafted: Sequence[Drafted], tried: Sequence[Tried], comparisons: int
    ) -> Iterator[Tried]:
        """Yield better captured layers than the best that were tried, one step after the other: of
        each step's, of which one layer differs by one, those with the most probable
        tokens of the target. Nothing is searched if no other layers help noticeably."""
        named = {tuple(t.change.fields[AUX_LAYERS]): t for t in tried if only_layers(t)}
        best = max(named, key=lambda one: named[one].gain.difference, default=None)
        least = LEAST_GAIN * mean_length(_rounds(drafted))
        if best is None or named[best].gain.difference < least:
            return
        already, left = {*named, base.config.aux_layers}, MOST_SEARCHED
        reached = self._screened(base.with_config(aux_layers=best))
        available = self._passages[0].states.keys()
        better: Repair | None = None
        while left > 0:
            step = list(nearby_layers(base, best, available, already))[:left]
            left -= len(step)
            found = [self._screened(repair.variant) for repair in step]
            if not found or max(found) <= reached:
                break
            reached = max(found)
            better = step[found.index(reached)]
            best = better.variant.config.aux_layers
        if better is not None:
            yield self._try(better, drafted, comparisons)

    def _screened(self, variant: Variant) -> float:
        """Return the mean log-probability at depth 1 on the screened prompts: layers next to the
        right ones accept as much, and are less probable."""
        drafted = self._drafted(variant, self._passages[:SCREENED])
        return float(torch.cat([prompt.first for prompt in drafted]).mean())

    def rendered(self, base: Variant, rendering: Rendering, comparisons: int) -> Tried | None:
        """Let the target answer the prompts of a rendering, and compare what is accepted; None if
        too few answers are long enough."""
        keys = {passage.key for passage in self._passages}
        prompts = {key: ids for key, ids in rendering.prompts.items() if key in keys}
        passages = self._teacher.passages(prompts, base.config.aux_layers)
        theirs = {passage.key: passage for passage in passages if len(passage.anchors(self._k))}
        pairs = [
            (passage, theirs[passage.key]) for passage in self._passages if passage.key in theirs
        ]
        if len(pairs) < LEAST_PASSAGES:
            return None
        rounds = [_rounds(self._drafted(base, side)) for side in zip(*pairs, strict=True)]
        surer = [new.log_probability - old.log_probability for old, new in pairs]
        return Tried(
            change=rendering.change,
            acceptance=acceptance_of(rounds[1], self._k),
            gain=gain(rounds[0], rounds[1], comparisons),
            prompts=len(pairs),
            surer=float(np.mean(surer)),
            surer_interval=mean_interval(np.array(surer)),
        )

    def _drafted(self, variant: Variant, passages: Sequence[Passage]) -> list[Drafted]:
        drafter = variant.build(self._teacher.device)
        return [draft(drafter, self._teacher, passage, self._k) for passage in passages]


def _rounds(drafted: Sequence[Drafted]) -> list[list[int]]:
    """Return the accepted tokens by round and prompt."""
    return [passage.rounds() for passage in drafted]
