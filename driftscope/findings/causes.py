"""Thresholds of hidden states that both rules and evidence for causes use, with their sources."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import partial
from typing import TypedDict

from driftscope.analysis.circumstances import Group
from driftscope.analysis.comparability import TARGET, models_differ
from driftscope.analysis.compare import MARGINAL, Comparison, accepts_less
from driftscope.analysis.figures.results import ByDepth, ChainFall, Hidden
from driftscope.analysis.number_words import count, listed, number, percent, points, times
from driftscope.analysis.pairing import UNPAIRED
from driftscope.analysis.statistics.intervals import Interval, exact_interval
from driftscope.analysis.summary.run_summary import RunSummary, warmest
from driftscope.findings.case import Case, Threshold
from driftscope.findings.finding import Suspect, Trust
from driftscope.metrics.confidence import CALIBRATED, RIGHT_BY_SKILL
from driftscope.metrics.hidden import per_depth
from driftscope.trace.manifest import GREEDY
from driftscope.vocabulary import CHOOSES_LENGTH

GROWS_ABOVE = Threshold(
    name="GROWS_ABOVE",
    value=1.06,
    means="RMS of the state fed forward over that of the depth before, mean over the chain",
    source="1.5 by depth 8: far from both 1.0 (post-norm) and 3.6 (pre-norm, arXiv "
    "2605.09992) or 2.8 (shipped EAGLE-3)",
)
"""The pre-norm EAGLE-3 drafter of the paper (arXiv 2605.09992) has grown to 3.6 by depth 8 (1.20
per depth), a post-norm one to 0.99; the shipped pair to 2.8 and 1.0 (model cards). Growth is judged
per depth, so that one drafter is judged alike at every K."""
UNBALANCED_ABOVE = Threshold(
    name="UNBALANCED_ABOVE",
    value=10.0,
    means="largest over smallest RMS of the captured layers, after their norm if any",
    source="at 10 the smaller layer has 1 % of the energy, which is near bfloat16's rounding error",
)


NOTHING_BELOW = Threshold(
    name="NOTHING_BELOW",
    value=0.05,
    means="marginal acceptance at depth 1",
    source="published drafters: 0.585 or more; a broken one: 0 (vllm#54997)",
)
SURE_ROUNDS = Threshold(
    name="SURE_ROUNDS",
    value=300,
    means="rounds from which the confidence is high, if the exact 95% interval of the "
    "rate is below NOTHING_BELOW",
    source="59 independent rounds suffice; rounds of one request may be so similar "
    "that five count as one",
)
SURE_REQUESTS = Threshold(
    name="SURE_REQUESTS",
    value=5,
    means="requests from which the confidence is high",
    source="driftscope: fewer prompts may all be unusual",
)


def accepted_once(run: RunSummary) -> int:
    """Return the number of rounds that accepted a token."""
    return sum(run.acceptance.histogram[1:])


def rate_interval(run: RunSummary) -> Interval:
    """Return the 95% interval of the marginal rate at depth 1: exact over rounds and, if anything
    was accepted, no narrower than over requests."""
    exact, spread = exact_interval(accepted_once(run), run.rounds), run.acceptance.marginal_interval
    over_requests = spread[0] if spread else None
    if not accepted_once(run) or over_requests is None:
        return exact
    return exact.hull(over_requests)


def judge(run: RunSummary) -> tuple[Trust, str]:
    """Return how certain it is that the rate at depth 1 is below NOTHING_BELOW, and why."""
    high, sample = rate_interval(run).high, f"{count(run.rounds, 'round')} of "
    sample += count(run.requests, "request")
    if not high < NOTHING_BELOW.value:
        return Trust.LOW, f"{sample} leave a rate of up to {percent(high)}"
    if run.rounds < SURE_ROUNDS.value:
        return Trust.MEDIUM, f"{sample}: certain only from {SURE_ROUNDS.value} rounds on"
    if run.clusters < SURE_REQUESTS.value:
        least = f"{SURE_REQUESTS.value} {run.noun}s"
        return Trust.MEDIUM, f"{sample}: certain only from {least} on"
    return Trust.HIGH, f"{sample} leave a rate below {percent(high)} (95 %, exact)"


def is_dead(run: RunSummary) -> bool:
    """Whether the drafter is surely dead."""
    return run.acceptance.marginal[0] < NOTHING_BELOW.value and judge(run)[0] is Trust.HIGH


def none_accepted(run: RunSummary) -> str:
    """Return in words how many rounds accept anything."""
    some, high = accepted_once(run), percent(rate_interval(run).high)
    if not some:
        return f"none of {count(run.rounds, 'round')} accepts a token: the rate is below {high}"
    return (
        f"{some:,} of {count(run.rounds, 'round')} accept{'s' if some == 1 else ''} a token: the "
        f"rate is below {high}"
    )


LOW_BELOW = Threshold(
    name="LOW_BELOW",
    value=0.3,
    means="upper end of the 95% interval of the marginal acceptance at depth 1",
    source="half of 0.585, the weakest published rate",
)
FALLS_ABOVE = Threshold(
    name="FALLS_ABOVE",
    value=0.115,
    means="fall of the conditional acceptance from one depth to a deeper one, within requests; its "
    "95% interval excludes none",
    source="published EAGLE-3 vectors, over all requests, fall by 12 points without a norm "
    "(gpt-oss, vllm#42764), all others by 9 or less: within requests that differ by half a logit, "
    "14 and 11",
)
STOPS_BELOW = Threshold(
    name="STOPS_BELOW",
    value=0.05,
    means="upper end of the 95% interval of the conditional acceptance at a depth",
    source="the published dead tail is at 0, and no live depth below 0.4",
)


EVEN_WITHIN = 0.1
"""Equivalence margin: acceptance is even along the chain if no depth can have lost more."""


class Loss(StrEnum):
    """Way in which acceptance is lost."""

    NOTHING = "nothing is accepted, from the first depth on"
    LOW = "acceptance is low from the first depth on"
    FALLS = "acceptance falls along the chain"
    STOPS = "acceptance ends at a depth"


def loss_of(run: RunSummary) -> Loss | None:
    """Return how a run loses acceptance, judged by itself; None if it does so in none of these
    ways."""
    first, spread = run.acceptance.marginal[0], run.acceptance.marginal_interval
    if first < NOTHING_BELOW.value:
        return Loss.NOTHING
    if spread is not None and spread[0] is not None and spread[0].high < LOW_BELOW.value:
        return Loss.LOW
    if dead_depth(run) is not None:
        return Loss.STOPS
    return Loss.FALLS if falls(run) else None


def dead_depth(run: RunSummary) -> int | None:
    """Return the first depth after the first at which surely less than STOPS_BELOW of the tokens
    that get there are accepted; None if there is none."""
    for depth in range(2, run.k + 1):
        spread = conditional_interval(run, depth)
        if spread is not None and spread.high < STOPS_BELOW.value:
            return depth
    return None


def falls(run: RunSummary) -> bool:
    """Whether the conditional rate surely falls along the chain, and by more than FALLS_ABOVE."""
    fall = run.fall
    return fall is not None and fall.lost > FALLS_ABOVE.value and fall.interval.low > 0


def is_even(run: RunSummary) -> bool:
    """Whether so many of the tokens that get to each depth are accepted that none can have lost
    more than EVEN_WITHIN."""
    spreads = [conditional_interval(run, depth) for depth in range(1, run.k + 1)]
    return all(spread is not None and spread.low > 1.0 - EVEN_WITHIN for spread in spreads)


def fall_words(fall: ChainFall) -> str:
    """Return a fall along the chain in words, with its rates and its interval."""
    return (
        f"of the tokens that get to depth {fall.depth}, {percent(fall.rate)} are accepted, of "
        f"those at depth {fall.first} of the same requests {percent(fall.rate + fall.lost)}: "
        f"{points(fall.lost)} less ({100 * fall.interval.low:.1f} to "
        f"{100 * fall.interval.high:.1f}), and only easy rounds get deep"
    )


def loses_along_chain(run: RunSummary) -> bool:
    """Whether acceptance is lost along the chain, as drift would lose it."""
    return loss_of(run) in (Loss.FALLS, Loss.STOPS)


def ablate_command(run: RunSummary) -> str | None:
    """Return the command that measures what the drafter's own states and tokens cost; None for a
    drafter that it cannot run."""
    drafter, target = run.manifest.drafter, run.manifest.target
    if drafter is None or not run.manifest.method.startswith("eagle"):
        return None
    names = [shlex.quote(model.name) for model in (drafter, target)]
    return f"`driftscope ablate {names[0]} --target {names[1]}`"


def conditional_interval(run: RunSummary, depth: int) -> Interval | None:
    """Return the 95% interval of the conditional rate at a depth: over requests or, if nothing was
    accepted there and no request differs from another, exact over the rounds that got there."""
    reached = sum(run.acceptance.histogram[depth - 1 :])
    if depth > 1 and reached and not run.mixed and not run.acceptance.conditional[depth - 1]:
        return exact_interval(0, reached)
    spread = run.spread.get("conditional", ())
    return spread[depth - 1] if len(spread) >= depth else None


def loss_against(comparison: Comparison | None, run: RunSummary) -> Loss | None:
    """Return how a run loses acceptance compared with a better one; None if it does not accept
    less."""
    if comparison is None or not accepts_less(comparison):
        return None
    if run.acceptance.marginal[0] < NOTHING_BELOW.value:
        return Loss.NOTHING
    lower = [d.depth for d in comparison.at(MARGINAL) if d.differs and d.difference < 0 and d.depth]
    if not lower or lower[0] == 1:
        return Loss.LOW
    rate = run.acceptance.conditional[lower[0] - 1]
    return Loss.STOPS if rate is not None and rate < STOPS_BELOW.value else Loss.FALLS


NORM_OUTPUT, FC_NORM = "norm_output", "fc_norm"
"""Names of EAGLE-3.1's norms among the flags of a manifest."""


def unless_normed(run: RunSummary, advice: str, otherwise: str = "") -> str:
    """Return `advice`, which proposes EAGLE-3.1's norms, or `otherwise` for a drafter that has
    them."""
    normed = any(run.manifest.norm_flags.get(name, False) for name in (NORM_OUTPUT, FC_NORM))
    return otherwise if normed else advice


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


class CauseVerdict(IntEnum):
    """Result of a check, most suspicious first."""

    SHOWN = 0
    """A setting differs, or is not applied: no inference is needed."""
    SUPPORTED = 1
    OPEN = 2
    RULED_OUT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Result of checking one cause."""

    verdict: CauseVerdict
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
        if mine is None or theirs is None:
            return False
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


def settles(words: str) -> Look:
    """Return the result for a setting that differs."""
    return Look(verdict=CauseVerdict.SHOWN, words=words)


UNSEEN = Look(verdict=CauseVerdict.OPEN)


def supports(words: str) -> Look:
    """Return the result for evidence that supports a cause."""
    return Look(verdict=CauseVerdict.SUPPORTED, words=words)


def excludes(words: str) -> Look:
    """Return the result for evidence that rules a cause out."""
    return Look(verdict=CauseVerdict.RULED_OUT, words=words)


def norm_flags(scene: Scene) -> Look:
    """Check whether the norms of the config are applied, and are those of the better run."""
    run, better = scene.run, scene.better
    flags, hidden = run.manifest.norm_flags, run.hidden
    applied, asked = norm_output_applied(hidden), flags.get("norm_output")
    if applied is not None and asked is not None and applied is not asked:
        where = "after" if applied else "before"
        return settles(
            f"norm_output is {_on_or_off(asked)}, but the state fed forward is the one {where} the "
            f"final norm{_grown(hidden)}: the engine does not apply the flag"
        )
    if asked and _grows(run):
        return settles(
            f"norm_output is on, but the state grows{_grown(hidden)}: the engine does not "
            "apply the flag"
        )
    normed = flags.get("fc_norm") or flags.get("norm_before_fc")
    if normed and hidden.aux_rms is not None and hidden.aux_norm_rms is None:
        return settles("a norm before the fc is on, but no normalised captured state was recorded")
    if better:
        theirs = better.manifest.norm_flags
        other = [
            n for n in sorted({*flags, *theirs}) if flags.get(n, False) != theirs.get(n, False)
        ]
        if other:
            differences = listed(
                [f"{name} is {_on_or_off(flags.get(name, False))} here" for name in other]
            )
            return settles(f"{differences}, unlike in {better.label}")
    into, fed = _first(hidden.in_rms), _first(hidden.fed_rms)
    swollen = into / fed if into and fed else 0.0
    if not normed and swollen >= SWOLLEN_ABOVE:
        return supports(
            f"the RMS of the fc's output is {times(swollen)} that of the state fed forward from "
            "depth 1, and no norm before the fc is on: check fc_norm"
        )
    grows = asked is False and _grows(run) and not (better and _grows(better))
    if grows and scene.loss in (Loss.FALLS, Loss.STOPS):
        return supports(f"norm_output is off and the state grows{_grown(hidden)}")
    if scene.same_drafter and applied is not None:
        return excludes(
            f"drafter and flags are {_expected(better)}, and norm_output acts as the config says"
        )
    if scene.same_states and scene.loss is Loss.NOTHING:
        return excludes(_AS_FAR)
    return Look(
        verdict=CauseVerdict.OPEN,
        words="" if applied is None else "norm_output acts as the config says",
    )


_AS_FAR = "at depth 1 everything up to the logits matches the better run"


def _grows(run: RunSummary) -> bool:
    growth = run.hidden.growth
    return growth is not None and per_depth(growth, run.depths) > GROWS_ABOVE.value


def _expected(better: RunSummary | None) -> str:
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
    to_after, to_before = (
        _relative_difference(ends[0], ends[2]),
        _relative_difference(ends[0], ends[1]),
    )
    if max(to_after, to_before) < APPLIED_WITHIN or min(to_after, to_before) > APPLIED_WITHIN:
        return None
    return to_after < to_before


def captured_layers(scene: Scene) -> Look:
    """Check whether the captured target layers are those of the better run, and in balance."""
    run, better = scene.run, scene.better
    layers, rms = run.manifest.aux_layers, run.hidden.aux_rms
    if better and layers and better.manifest.aux_layers and layers != better.manifest.aux_layers:
        return settles(
            f"this run captures layers {_numbers(layers)}, {better.label} captures "
            f"{_numbers(better.manifest.aux_layers)}"
        )
    theirs = better.hidden.aux_rms if better else None
    if better and rms and theirs and len(rms) == len(theirs):
        if all(_same(*pair) for pair in zip(rms, theirs, strict=True)):
            return excludes(f"their RMS equals that in {better.label} ({_values(rms)})")
        return supports(f"their RMS is {_values(rms)} here and {_values(theirs)} in {better.label}")
    if run.hidden.aux_imbalance is not None and run.hidden.aux_imbalance > UNBALANCED_ABOVE.value:
        return supports(
            f"the RMS of layers {_numbers(layers)} is {_values(rms or ())}: the smallest may be "
            "the embedding, or a layer at the wrong position"
        )
    return Look(
        verdict=CauseVerdict.OPEN, words=f"layers {_numbers(layers)} are captured" if layers else ""
    )


def token_ids(scene: Scene) -> Look:
    """Check whether the drafter computes correctly up to its logits."""
    sure = _first(scene.run.confidence.top1)
    if sure is None:
        return UNSEEN
    if scene.better is not None:
        theirs = _first(scene.better.confidence.top1)
        if scene.same_states and scene.loss is Loss.NOTHING:
            return supports(
                f"at depth 1 its states and its confidence ({percent(sure)}) match "
                f"{scene.better.label} ({percent(theirs)}): the fault lies after the logits"
            )
        if theirs and sure < LESS_SURE * theirs:
            return excludes(
                f"its confidence at depth 1 is {percent(sure)}, compared with {percent(theirs)} in "
                f"{scene.better.label}: the fault lies before the logits"
            )
        return UNSEEN
    if sure > SURE_ABOVE and scene.loss is Loss.NOTHING:
        return supports(
            f"it gives its first draft token a probability of {percent(sure)} on "
            "average, and almost none is accepted"
        )
    return Look(
        verdict=CauseVerdict.OPEN,
        words=f"it gives its first draft token a probability of {percent(sure)} on average",
    )


def between_fc_and_head(scene: Scene, what: str) -> Look:
    """Check whether the fc's output is right and the confidence is not, which points to `what`."""
    run, better = scene.run, scene.better
    if better is None:
        return UNSEEN
    sure, theirs = _first(run.confidence.top1), _first(better.confidence.top1)
    into = [_first(r.hidden.in_rms) for r in (run, better)]
    if into[0] is None or into[1] is None or not _same(into[0], into[1]) or not sure or not theirs:
        return UNSEEN
    if sure < LESS_SURE * theirs:
        return supports(
            f"the fc's output matches {better.label}, but the confidence does not "
            f"({percent(sure)}, compared with {percent(theirs)}): check {what}, or another weight "
            "after the fc"
        )
    return excludes(_AS_FAR) if scene.same_states and scene.loss is Loss.NOTHING else UNSEEN


def other_target(scene: Scene) -> Look:
    """Check whether the target is that of the better run."""
    run, better = scene.run.manifest.target, scene.better
    if better is None:
        return Look(verdict=CauseVerdict.OPEN, words=f"the target is {run.name}")
    theirs = better.manifest.target
    if models_differ(scene.run.manifest, better.manifest, TARGET):
        return settles(f"{better.label} had the target {theirs.name}, this run has {run.name}")
    if scene.same_drafter:
        return excludes(f"target and drafter are {_expected(better)}")
    return Look(verdict=CauseVerdict.OPEN, words=f"the target is the same as in {better.label}")


def quantised_target(scene: Scene) -> Look:
    """Check whether the target, or its cache, is quantised."""
    manifest, better = scene.run.manifest, scene.better
    if better and not models_differ(manifest, better.manifest, TARGET):
        same = (manifest.target.dtype, manifest.kv_cache_dtype)
        if same == (better.manifest.target.dtype, better.manifest.kv_cache_dtype):
            return excludes(f"target and cache are {_expected(better)}")
    named = _QUANTISED.search(manifest.target.name.rpartition("/")[2])
    if named or manifest.target.dtype not in _FULL:
        return supports(f"the target is {manifest.target.name}, dtype {manifest.target.dtype}")
    if manifest.kv_cache_dtype not in _FULL:
        return supports(f"the cache's dtype is {manifest.kv_cache_dtype}")
    return Look(verdict=CauseVerdict.OPEN, words=f"the target's dtype is {manifest.target.dtype}")


def execution(scene: Scene) -> Look:
    """Check whether acceptance depends on how the drafter is executed."""
    run = scene.run
    groups: tuple[Group, ...] = run.groups.execution
    if len(groups) > 1:
        worst, best = (pick(groups, key=lambda g: g.mean_length) for pick in (min, max))
        yields = listed([f"{number(g.mean_length)} tokens per round {g.name}" for g in groups])
        if worst.mean_length - 1 < MODES_APART * (best.mean_length - 1):
            return supports(f"rounds yield {yields}")
        return excludes(f"rounds yield {yields}")
    if run.manifest.mode == "eager":
        return excludes("the drafter ran eagerly")
    return Look(verdict=CauseVerdict.OPEN, words=f"the drafter ran in {run.manifest.mode}")


def sampling(scene: Scene) -> Look:
    """Check whether requests are sampled while the drafter drafts greedily."""
    warm = warmest(scene.run)
    if warm and scene.run.manifest.draft_sampling == GREEDY:
        return settles(
            f"requests were sampled at temperature {warm:g}, and the drafter drafts greedily"
        )
    if warm == 0:
        return excludes("every request was greedy (temperature 0)")
    return UNSEEN


def prompts(scene: Scene) -> Look:
    """Check whether the better run answered the same prompts."""
    if scene.better is not None and scene.same_prompts:
        return excludes(f"{scene.better.label} answered the same prompts")
    return UNSEEN


def drafter_cache(scene: Scene) -> Look:
    """Check whether there are chains whose cache the engine may have filled wrongly."""
    recording = scene.run.recording
    if recording.chunked_chains and scene.run.manifest.runner == "v1":
        return supports(
            f"{percent(recording.chunked_chains / recording.chains)} of the chains are flagged "
            "because their cache may be wrong"
        )
    if recording.chains:
        return excludes("no recorded chain is flagged for a doubtful cache")
    return UNSEEN


def training(scene: Scene) -> Look:
    """Check whether the drafter knows how often its first token is right: a mistake in the wiring
    leaves a drafter surer than it is right, too little training does not."""
    first = next(iter(scene.run.confidence.calibration.by_depth), None)
    if first is None or first.depth > 1 or first.tokens < SURE_ROUNDS.value:
        return UNSEEN
    sure, right = first.confidence, first.accepted
    words = f"it is {percent(sure)} sure of its first token, and {percent(right)} are accepted"
    if sure - right > CALIBRATED:
        return excludes(f"{words}: it does not know how little it knows")
    if abs(sure - right) <= CALIBRATED and right >= RIGHT_BY_SKILL:
        return supports(f"{words}: it knows how little it knows, as if wired rightly")
    return Look(verdict=CauseVerdict.OPEN, words=words)


def depths_trained(scene: Scene) -> Look:
    """Report K, to compare with the depths trained; the drafter's training is not recorded."""
    return Look(verdict=CauseVerdict.OPEN, words=f"K is {scene.run.k}")


def _first(values: ByDepth | None) -> float | None:
    return values[0] if values and math.isfinite(values[0]) else None


def _same(a: float, b: float) -> bool:
    return _relative_difference(a, b) < SAME_WITHIN


def _relative_difference(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def _on_or_off(flag: bool) -> str:
    return "on" if flag else "off"


def _grown(hidden: Hidden) -> str:
    return "" if hidden.growth is None else f" ({times(hidden.growth)} by the last depth)"


def _numbers(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers)) or "(none named)"


def _values(values: ByDepth) -> str:
    return ", ".join(number(value) for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A possible cause of lost acceptance."""

    words: str
    check: str
    """Command or config field that confirms or excludes it."""
    look: Callable[[Scene], Look] | None = None
    """Function that looks in the run itself for evidence for or against it; None if nothing
    recorded bears on it."""


NORM_FLAG = Cause(
    words="the norm flags are wrong, missing or not applied",
    check="compare fc_norm, norm_output, norm_before_fc and norm_before_residual in the drafter's "
    "config.json with its training; norm_flags in the run's manifest.json shows what was loaded",
    look=norm_flags,
)
LAYERS = Cause(
    words="the captured target layers are not those of the training",
    check="compare eagle_aux_hidden_state_layer_ids in the drafter's config.json with its "
    "training; aux_layers in the run's manifest.json shows what was captured",
    look=captured_layers,
)
TOKEN_IDS = Cause(
    words="draft ids are mapped to the wrong target ids (d2t), or the head is not the drafter's",
    check="look at d2t in the drafter's model.safetensors: id + d2t[id] must be the target's id; "
    "compare draft_vocab_size with the number of rows of lm_head.weight",
    look=token_ids,
)
EMBEDDING = Cause(
    words="the embedding or the head is not shared with the target as in training",
    check="see whether the drafter's model.safetensors has embed_tokens.weight and "
    "lm_head.weight, and what tie_word_embeddings is in its config.json",
    look=partial(between_fc_and_head, what="the embedding"),
)
ROPE = Cause(
    words="the rotary positions differ from those in training",
    check="compare rope_theta and rope_scaling in the drafter's config.json with its training",
    look=partial(between_fc_and_head, what="the rotary positions"),
)
OTHER_TARGET = Cause(
    words="the drafter was trained for another target",
    check="the target named in the drafter's model card; a fine-tuned target counts as another one",
    look=other_target,
)
QUANTISED = Cause(
    words="the target is quantised differently",
    check="record a run without --quantization and --kv-cache-dtype, then use driftscope compare",
    look=quantised_target,
)
GRAPH = Cause(
    words="the drafter fails only in a graph, or only when compiled",
    check="record a run with --enforce-eager, then use driftscope compare",
    look=execution,
)
TEMPLATE = Cause(
    words="the chat template renders prompts differently from training",
    check="run `driftscope replay http://localhost:8000 --suite template`, which shows acceptance "
    "by chat template",
    look=prompts,
)
SAMPLING = Cause(
    words="the target is sampled while the drafter drafts greedily",
    check="record a run at temperature 0, or on vLLM's V2 runner",
    look=sampling,
)
CACHE = Cause(
    words="the drafter's KV cache holds wrong entries",
    check="analyze this run with --where 'prompt_tokens < 2000', and record a run without prefix "
    "caching and chunked prefill",
    look=drafter_cache,
)
POSITIONS = Cause(
    words="positions do not advance along the chain, or the drafter's sliding window is ignored",
    check="look at sliding_window and rope_scaling in the drafter's config.json; try another "
    "version of the engine",
)
TRAINED_DEPTHS = Cause(
    words="the drafter was trained for fewer depths",
    check="compare the number of speculative steps in its training (ttt_length, "
    "num_speculative_steps) with num_speculative_tokens",
    look=depths_trained,
)
TRAINING = Cause(
    words="the drafter was trained too little, or on text unlike this",
    check="run `driftscope inspect DRAFTER --target TARGET`, which tries what else it may be; "
    "more tokens of training, or text like this, must raise acceptance at depth 1",
    look=training,
)
LIMIT = Cause(
    words="something ends chains at this depth",
    check="look at the drafter's max_position_embeddings, num_speculative_tokens_per_batch_size "
    "and the sizes of captured graphs",
)

CAUSES: Mapping[Loss, tuple[Cause, ...]] = {
    Loss.NOTHING: (NORM_FLAG, LAYERS, TOKEN_IDS, EMBEDDING, ROPE, OTHER_TARGET, QUANTISED, GRAPH),
    Loss.LOW: (
        TRAINING,
        LAYERS,
        NORM_FLAG,
        TEMPLATE,
        OTHER_TARGET,
        QUANTISED,
        SAMPLING,
        EMBEDDING,
        ROPE,
        CACHE,
        GRAPH,
    ),
    Loss.FALLS: (NORM_FLAG, TRAINED_DEPTHS, POSITIONS, ROPE, LAYERS, CACHE, GRAPH),
    Loss.STOPS: (TRAINED_DEPTHS, LIMIT, GRAPH, NORM_FLAG, CACHE),
}
"""Causes by the way in which acceptance is lost."""
WITHOUT_WEIGHTS = CHOOSES_LENGTH
"""vLLM's methods that look drafts up without model weights; none of these causes applies to
them."""


class Suspects(TypedDict):
    """Two fields of a finding: causes to check, most likely first, and those ruled out."""

    causes: tuple[Suspect, ...]
    ruled_out: tuple[Suspect, ...]


def suspects_of(case: Case, loss: Loss | None) -> Suspects:
    """Return the causes of `loss`; none if it is None, or if the method has no weights."""
    if loss is None or case.run.manifest.method in WITHOUT_WEIGHTS:
        return {"causes": (), "ruled_out": ()}
    comparison = case.comparison
    scene = Scene(
        run=case.run,
        loss=loss,
        better=case.reference if accepts_less(comparison) else None,
        same_prompts=comparison is not None and comparison.pairing != UNPAIRED,
    )
    looked = [(cause, cause.look(scene) if cause.look else UNSEEN) for cause in CAUSES[loss]]
    by_verdict = {
        verdict: tuple(
            Suspect(
                cause=cause.words,
                check=cause.check,
                observed=look.words,
                supported=verdict in (CauseVerdict.SHOWN, CauseVerdict.SUPPORTED),
            )
            for cause, look in looked
            if look.verdict is verdict
        )
        for verdict in CauseVerdict
    }
    likely = (CauseVerdict.SHOWN, CauseVerdict.SUPPORTED, CauseVerdict.OPEN)
    return {
        "causes": tuple(suspect for verdict in likely for suspect in by_verdict[verdict]),
        "ruled_out": by_verdict[CauseVerdict.RULED_OUT],
    }
