"""Evidence in the recorded internals of a run for or against a cause of lost acceptance.

Each check reads one run, and the better run it is compared with if there is one: causes in what the
two have in common can be ruled out, and differences point to the cause.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import IntEnum

from driftscope.analysis.circumstances import Group
from driftscope.analysis.compare.run_differences import TARGET, models_differ
from driftscope.analysis.figures.results import ByDepth, Hidden
from driftscope.analysis.findings.acceptance_losses import Loss
from driftscope.analysis.findings.thresholds import GROWS_ABOVE, UNBALANCED_ABOVE
from driftscope.analysis.number_words import listed, number, percent, times
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.analysis.summary.sampling_mode import drafts_greedily, warmest
from driftscope.metrics.hidden import per_depth

SAME_WITHIN = 0.1
"""Relative difference of RMS below which two runs have the same state: 1.6 % between broken and
healthy runs of the shipped drafters (`make broken`), while neighbouring layers differ by 19 % or
more."""
APPLIED_WITHIN = 0.02
"""Relative difference of RMS below which two states of one run are the same state."""
SURE_ABOVE = 0.2
"""Mean top-1 probability of a drafter that is confident in its draft tokens: 0.40 if ids are mapped
wrongly, 0.09 if the target is a different one (`make broken`)."""
LESS_SURE = 0.75
"""Ratio of the top-1 probability to the better run's: 0.3 to 0.5 with wrong inputs, 1.0 or more
with a wrong head (`make broken`)."""
SWOLLEN_ABOVE = 10.0
"""Ratio of the RMS of the fc's output to that of the state fed from depth 1: 3 in the shipped
EAGLE-3.1 and 53 without its fc_norm (`make broken`)."""
MODES_APART = 0.5
"""Ratio of the acceptance in one mode of execution to that in another (vllm#54997: 0 % against 92
%)."""
_QUANTISED = re.compile(r"awq|gptq|gguf|[nm]?x?fp[48]|int[48]|w[48]a\d+|[qb]4|bnb|quant", re.I)
_FULL = ("float32", "float16", "bfloat16", "float64", "auto")


class Verdict(IntEnum):
    """Result of a check, most suspicious first."""

    SHOWN = 0
    """A setting differs, or is not applied: no inference is needed."""
    SUPPORTED = 1
    OPEN = 2
    RULED_OUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Result of checking one cause."""

    verdict: Verdict
    words: str = ""
    """Observation in words; empty if nothing recorded bears on the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A run that loses acceptance, and the better run it is compared with."""

    run: RunSummary
    loss: Loss
    better: RunSummary | None = None
    """Run that it is compared with and that accepts more."""
    same_prompts: bool = False
    """Whether both runs answered the same prompts."""

    @property
    def same_drafter(self) -> bool:
        """Whether the better run has the same drafter, as far as the manifests show."""
        if self.better is None:
            return False
        mine, theirs = self.run.manifest.drafter, self.better.manifest.drafter
        weights = mine.weights_digest, theirs.weights_digest
        same_weights = None in weights or weights[0] == weights[1]
        return mine.config_digest == theirs.config_digest and same_weights

    @property
    def same_states(self) -> bool:
        """Whether depth 1 equals that of the better run up to the logits, judged by its states' RMS
        and its confidence."""
        if self.better is None:
            return False
        run, better = self.run, self.better
        sure, theirs = _first(run.confidence.top1), _first(better.confidence.top1)
        if sure is None or theirs is None or sure < LESS_SURE * theirs:
            return False
        names = ("in_rms", "prenorm_rms", "postnorm_rms")
        pairs = [(_first(getattr(r.hidden, n)) for r in (run, better)) for n in names]
        return all(a is not None and b is not None and _same(a, b) for a, b in pairs)


def shown(words: str) -> Look:
    """Return the result for a setting that differs."""
    return Look(verdict=Verdict.SHOWN, words=words)


UNSEEN = Look(verdict=Verdict.OPEN)


def for_it(words: str) -> Look:
    """Return the result for evidence that supports a cause."""
    return Look(verdict=Verdict.SUPPORTED, words=words)


def against(words: str) -> Look:
    """Return the result for evidence that rules a cause out."""
    return Look(verdict=Verdict.RULED_OUT, words=words)


def norm_flags(scene: Scene) -> Look:
    """Check whether the norms of the config are applied, and are those of the better run."""
    run, better = scene.run, scene.better
    flags, hidden = run.manifest.norm_flags, run.hidden
    applied, asked = norm_output_applied(hidden), flags.get("norm_output")
    if applied is not None and asked is not None and applied is not asked:
        where = "after" if applied else "before"
        return shown(
            f"norm_output is {_on(asked)}, but the state fed forward is the one {where} the final "
            f"norm{_grown(hidden)}: the engine does not apply the flag"
        )
    if asked and _grows(run):
        return shown(
            f"norm_output is on, but the state grows{_grown(hidden)}: the engine does not "
            "apply the flag"
        )
    normed = flags.get("fc_norm") or flags.get("norm_before_fc")
    if normed and hidden.aux_rms is not None and hidden.aux_norm_rms is None:
        return shown("a norm before the fc is on, but no normalised captured state was recorded")
    other = _flags_apart(run, better) if better else []
    if better and other:
        differences = listed([f"{name} is {_on(flags.get(name, False))} here" for name in other])
        return shown(f"{differences}, unlike in {better.label}")
    swollen = _swollen(hidden)
    if not normed and swollen is not None:
        return for_it(
            f"the RMS of the fc's output is {times(swollen)} that of the state fed forward from "
            "depth 1, and no norm before the fc is on: check fc_norm"
        )
    grows = asked is False and _grows(run) and not (better and _grows(better))
    if grows and scene.loss in (Loss.FALLS, Loss.STOPS):
        return for_it(f"norm_output is off and the state grows{_grown(hidden)}")
    if scene.same_drafter and applied is not None:
        return against(
            f"drafter and flags are {_of(better)}, and norm_output acts as the config says"
        )
    if scene.same_states and scene.loss is Loss.NOTHING:
        return against(_AS_FAR)
    return Look(
        verdict=Verdict.OPEN,
        words="" if applied is None else "norm_output acts as the config says",
    )


_AS_FAR = "at depth 1 everything up to the logits matches the better run"


def _grows(run: RunSummary) -> bool:
    growth = run.hidden.growth
    return growth is not None and per_depth(growth, run.depths) > GROWS_ABOVE


def _of(better: RunSummary | None) -> str:
    return f"those of {better.label}" if better else "known"


def norm_output_applied(hidden: Hidden) -> bool | None:
    """Whether the state fed forward is the one after the final norm; None if that is unknown, for
    example because both states have the same RMS."""
    fed, before, after = hidden.fed_rms, hidden.prenorm_rms, hidden.postnorm_rms
    if not (fed and before and after):
        return None
    ends = fed[-1], before[-1], after[-1]
    if not all(math.isfinite(end) and end > 0 for end in ends):
        return None
    to_after, to_before = _apart(ends[0], ends[2]), _apart(ends[0], ends[1])
    if max(to_after, to_before) < APPLIED_WITHIN or min(to_after, to_before) > APPLIED_WITHIN:
        return None
    return to_after < to_before


def captured_layers(scene: Scene) -> Look:
    """Check whether the captured target layers are those of the better run, and in balance."""
    run, better = scene.run, scene.better
    mine, rms = run.manifest.aux_layers, run.hidden.aux_rms
    if better and mine and better.manifest.aux_layers and mine != better.manifest.aux_layers:
        return shown(
            f"this run captures layers {_numbers(mine)}, {better.label} captures "
            f"{_numbers(better.manifest.aux_layers)}"
        )
    theirs = better.hidden.aux_rms if better else None
    if better and rms and theirs and len(rms) == len(theirs):
        if all(_same(*pair) for pair in zip(rms, theirs, strict=True)):
            return against(f"their RMS equals that in {better.label} ({_values(rms)})")
        return for_it(f"their RMS is {_values(rms)} here and {_values(theirs)} in {better.label}")
    if run.hidden.aux_imbalance is not None and run.hidden.aux_imbalance > UNBALANCED_ABOVE:
        return for_it(
            f"the RMS of layers {_numbers(mine)} is {_values(rms or ())}: the smallest may be the "
            "embedding, or a layer at the wrong position"
        )
    return Look(verdict=Verdict.OPEN, words=f"layers {_numbers(mine)} are captured" if mine else "")


def token_ids(scene: Scene) -> Look:
    """Check whether the drafter computes correctly up to its logits."""
    sure = _first(scene.run.confidence.top1)
    if sure is None:
        return UNSEEN
    if scene.better is not None:
        theirs = _first(scene.better.confidence.top1)
        if scene.same_states and scene.loss is Loss.NOTHING:
            return for_it(
                f"at depth 1 its states and its confidence ({percent(sure)}) match "
                f"{scene.better.label} ({percent(theirs)}): the fault lies after the logits"
            )
        if theirs and sure < LESS_SURE * theirs:
            return against(
                f"its confidence at depth 1 is {percent(sure)}, compared with {percent(theirs)} in "
                f"{scene.better.label}: the fault lies before the logits"
            )
        return UNSEEN
    if sure > SURE_ABOVE and scene.loss is Loss.NOTHING:
        return for_it(
            f"it gives its first draft token a probability of {percent(sure)} on "
            "average, and almost none is accepted"
        )
    return Look(
        verdict=Verdict.OPEN,
        words=f"it gives its first draft token a probability of {percent(sure)} on average",
    )


def embedding(scene: Scene) -> Look:
    """Check whether the fc's output is right and what is computed from it is wrong."""
    return _between_fc_and_head(scene, "the embedding")


def rotary(scene: Scene) -> Look:
    """Check the positions in attention: right input from the fc, wrong result."""
    return _between_fc_and_head(scene, "the rotary positions")


def _between_fc_and_head(scene: Scene, what: str) -> Look:
    run, better = scene.run, scene.better
    if better is None:
        return UNSEEN
    sure, theirs = _first(run.confidence.top1), _first(better.confidence.top1)
    if not _same_input(run, better) or not sure or not theirs:
        return UNSEEN
    if sure < LESS_SURE * theirs:
        return for_it(
            f"the fc's output matches {better.label}, but the confidence does not "
            f"({percent(sure)}, compared with {percent(theirs)}): check {what}, or another weight "
            "after the fc"
        )
    return against(_AS_FAR) if scene.same_states and scene.loss is Loss.NOTHING else UNSEEN


def other_target(scene: Scene) -> Look:
    """Check whether the target is that of the better run."""
    run, better = scene.run.manifest.target, scene.better
    if better is None:
        return Look(verdict=Verdict.OPEN, words=f"the target is {run.name}")
    theirs = better.manifest.target
    if models_differ(scene.run.manifest, better.manifest, TARGET):
        return shown(f"{better.label} had the target {theirs.name}, this run has {run.name}")
    if scene.same_drafter:
        return against(f"target and drafter are {_of(better)}")
    return Look(verdict=Verdict.OPEN, words=f"the target is the same as in {better.label}")


def quantised_target(scene: Scene) -> Look:
    """Check whether the target, or its cache, is quantised."""
    manifest, better = scene.run.manifest, scene.better
    if better and not models_differ(manifest, better.manifest, TARGET):
        same = (manifest.target.dtype, manifest.kv_cache_dtype)
        if same == (better.manifest.target.dtype, better.manifest.kv_cache_dtype):
            return against(f"target and cache are {_of(better)}")
    named = _QUANTISED.search(manifest.target.name.rpartition("/")[2])
    if named or manifest.target.dtype not in _FULL:
        return for_it(f"the target is {manifest.target.name}, dtype {manifest.target.dtype}")
    if manifest.kv_cache_dtype not in _FULL:
        return for_it(f"the cache's dtype is {manifest.kv_cache_dtype}")
    return Look(verdict=Verdict.OPEN, words=f"the target's dtype is {manifest.target.dtype}")


def execution(scene: Scene) -> Look:
    """Check whether acceptance depends on how the drafter is executed."""
    run = scene.run
    groups: tuple[Group, ...] = run.groups.execution
    if len(groups) > 1:
        worst, best = (pick(groups, key=lambda g: g.mean_length) for pick in (min, max))
        yields = listed([f"{number(g.mean_length)} tokens per round {g.name}" for g in groups])
        if worst.mean_length - 1 < MODES_APART * (best.mean_length - 1):
            return for_it(f"rounds yield {yields}")
        return against(f"rounds yield {yields}")
    if run.manifest.mode == "eager":
        return against("the drafter ran eagerly")
    return Look(verdict=Verdict.OPEN, words=f"the drafter ran in {run.manifest.mode}")


def sampling(scene: Scene) -> Look:
    """Check whether requests are sampled while the drafter drafts greedily."""
    warm = warmest(scene.run)
    if warm and drafts_greedily(scene.run.manifest):
        return shown(
            f"requests were sampled at temperature {warm:g}, and the drafter drafts greedily"
        )
    if warm == 0:
        return against("every request was greedy (temperature 0)")
    return UNSEEN


def prompts(scene: Scene) -> Look:
    """Check whether the better run answered the same prompts."""
    if scene.better is not None and scene.same_prompts:
        return against(f"{scene.better.label} answered the same prompts")
    return UNSEEN


def drafter_cache(scene: Scene) -> Look:
    """Check whether there are chains whose cache the engine may have filled wrongly."""
    seen = scene.run.recording
    if seen.chunked_chains and scene.run.manifest.runner == "v1":
        return for_it(
            f"{percent(seen.chunked_chains / seen.chains)} of the chains are flagged "
            "because their cache may be wrong"
        )
    if seen.chains:
        return against("no recorded chain is flagged for a doubtful cache")
    return UNSEEN


def depths_trained(scene: Scene) -> Look:
    """Report K, to compare with the depths trained; the drafter's training is not recorded."""
    return Look(verdict=Verdict.OPEN, words=f"K is {scene.run.k}")


def unseen(scene: Scene) -> Look:  # noqa: ARG001
    """Return that nothing recorded bears on the cause."""
    return UNSEEN


def _flags_apart(run: RunSummary, better: RunSummary) -> list[str]:
    mine, theirs = run.manifest.norm_flags, better.manifest.norm_flags
    return [n for n in sorted({*mine, *theirs}) if mine.get(n, False) != theirs.get(n, False)]


def _same_input(run: RunSummary, better: RunSummary) -> bool:
    """Whether the fc's output has the same RMS as in the better run."""
    mine, theirs = _first(run.hidden.in_rms), _first(better.hidden.in_rms)
    return mine is not None and theirs is not None and _same(mine, theirs)


def _swollen(hidden: Hidden) -> float | None:
    """Return the RMS of the fc's output over that of the state fed from depth 1, if it is too
    large, else None."""
    into, fed = _first(hidden.in_rms), _first(hidden.fed_rms)
    if not into or not fed or into / fed < SWOLLEN_ABOVE:
        return None
    return into / fed


def _first(values: ByDepth | None) -> float | None:
    return values[0] if values and math.isfinite(values[0]) else None


def _same(a: float, b: float) -> bool:
    return _apart(a, b) < SAME_WITHIN


def _apart(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _grown(hidden: Hidden) -> str:
    return "" if hidden.growth is None else f" ({times(hidden.growth)} by the last depth)"


def _numbers(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers)) or "(none named)"


def _values(values: ByDepth) -> str:
    return ", ".join(number(value) for value in values)
