"""Figures of recorded runs with 95% intervals over prompts, as tables in Markdown,
and the criteria, stated before any run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from driftscope.analysis.figures.attention_drift import DriftAnswer
from driftscope.analysis.statistics.intervals import student
from driftscope.analysis.statistics.ratio import Ratio, intervals, ratio_of
from driftscope.distributions import SMOLLM2
from driftscope.errors import DriftscopeError
from driftscope.trace.reader import read_trace
from driftscope.workloads.client.replay import Order, label_of
from driftscope.workloads.contenders import SERVER_FOLDER, Contender, ask_in_turn
from driftscope.workloads.suites.plan import LoadLevel
from driftscope.workloads.suites.prompts import prompts_of
from driftscope.workloads.suites.suite import load_suite

SUITE = load_suite(str(Path(__file__).parent / "suite.yaml"))
AS_TRAINED = "as trained"
CONTEXT = " tokens of context"
"""End of the names of the conditions with a longer context; the others are forms of the
template."""
FORMS = tuple(name for name in SUITE.conditions if not name.endswith(CONTEXT))
PERTURBED = tuple(form for form in FORMS if form != AS_TRAINED)
DRAFTERS = {"EAGLE-3": "eagle3", "EAGLE-3.1": "eagle31"}
"""Name of each drafter -> its folder."""
SINK = "0,"
"""The sink set of every run: the first token's slot."""
K = 8
AT_ONCE = 4


def label(condition: str) -> str:
    """Return the label of a condition's requests in a run."""
    return label_of(SUITE.name, condition)


def record(weights: Path, out: Path, prompts: int | None) -> dict[str, Path]:
    """Record both drafters in `weights` on the first `prompts` prompts, or all, in every condition;
    return the run of each. Whole runs in `out` are kept.

    Raises DriftscopeError if a drafter is not there or a server fails.
    """
    for folder in DRAFTERS.values():
        if not (weights / folder / "config.json").is_file():
            raise DriftscopeError(
                f"{weights}: no folder with the drafters eagle3 and eagle31 in it"
            )
    return {name: _recorded(weights / at, out / at, prompts) for name, at in DRAFTERS.items()}


def _recorded(drafter: Path, place: Path, prompts: int | None) -> Path:
    whole = place.with_suffix(".finished")
    if not whole.is_file():
        order = Order(
            url="",
            suite=SUITE,
            run=place,
            levels=[LoadLevel(concurrency=AT_ONCE)],
            limit=prompts,
            prompts=prompts_of(SMOLLM2),
        )
        server = Contender(
            label=drafter.name,
            model=SMOLLM2,
            speculation={
                "method": "eagle3",
                "model": str(drafter.absolute()),
                "num_speculative_tokens": K,
            },
            environ={
                "DRIFTSCOPE_STRICT": "1",
                "DRIFTSCOPE_EVERY": "1",
                "DRIFTSCOPE_DISTANCE_EVERY": "1",
                "DRIFTSCOPE_SINK_TOKENS": SINK,
            },
        )
        ((_, done),) = ask_in_turn([server], order, place.parent)
        if not done.whole:
            raise DriftscopeError(f"{done.run}: not every request was answered")
        whole.touch()
    return place / SERVER_FOLDER


Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSums:
    """Sums of one condition by prompt; the first axis of each array is the prompt.

    `sink`, `near` and `rms` [prompts, K] are sums over `chains`: attention on the first token, on
    the K - 1 nearest places and the chain's own, and the RMS of the residual stream before the
    final norm. `reached` [prompts, K] counts the rounds whose tokens 1..d were all accepted.
    """

    prompts: tuple[str, ...]
    rounds: Array
    reached: Array
    chains: Array
    sink: Array
    near: Array
    rms: Array

    def of(self, prompts: Sequence[str]) -> PromptSums:
        """Return the sums of some of the prompts, in the given order."""
        at = [self.prompts.index(prompt) for prompt in prompts]
        arrays = {name: getattr(self, name)[at] for name in _ARRAYS}
        return PromptSums(prompts=tuple(prompts), **arrays)

    def length(self) -> Ratio:
        """Return the acceptance length: 1 plus the accepted tokens a round."""
        accepted = self.reached.sum(axis=1, keepdims=True) + self.rounds[:, None]
        return ratio_of(accepted, self.rounds[:, None])

    def by_depth(self, name: str) -> Ratio:
        """Return the mean of `sink`, `near` or `rms` by depth, or of `reached` a round."""
        bottom = self.rounds if name == "reached" else self.chains
        return ratio_of(getattr(self, name), bottom[:, None])

    def sink_kept(self) -> Ratio:
        """Return the mass on the first token at depth K over that at depth 1."""
        return ratio_of(self.sink[:, -1:], self.sink[:, :1])


_ARRAYS = ("rounds", "reached", "chains", "sink", "near", "rms")


def sums_of(run: Path, k: int) -> dict[str, PromptSums]:
    """Return the sums of each condition of a server's run that `phenomenon.recording` recorded.

    Raises what `read_trace` raises.
    """
    trace = read_trace(run)
    requests = trace.request.to_pandas()[["request", "label", "pair"]]
    rounds = trace.verify.to_pandas().merge(requests, on="request")
    drafts = trace.draft.to_pandas().merge(requests, on="request")
    whole = rounds[rounds["verified"] == k]
    found = {}
    for condition in SUITE.conditions:
        of_rounds, of_drafts = (t[t["label"] == label(condition)] for t in (whole, drafts))
        if len(of_rounds):
            found[condition] = _prompt_sums(of_rounds, of_drafts, k)
    return found


def _prompt_sums(rounds: pd.DataFrame, drafts: pd.DataFrame, k: int) -> PromptSums:
    prompts = tuple(sorted(rounds["pair"].unique()))
    per_round = {str(name): part for name, part in rounds.groupby("pair")}
    per_chain = {str(name): part for name, part in drafts.groupby("pair")}
    depths = np.arange(1, k + 1)
    return PromptSums(
        prompts=prompts,
        rounds=np.array([float(len(per_round[one])) for one in prompts]),
        reached=np.array(
            [
                (per_round[one]["accepted"].to_numpy()[:, None] >= depths).sum(axis=0)
                for one in prompts
            ],
            float,
        ),
        chains=np.array([float(len(per_chain.get(one, ()))) for one in prompts]),
        **{
            name: np.array([_summed(per_chain, one, column, k) for one in prompts])
            for name, column in (("sink", "sink_mass"), ("rms", "prenorm_rms"))
        },
        near=np.array([_near(per_chain, one, k) for one in prompts]),
    )


def _summed(chains: Mapping[str, pd.DataFrame], prompt: str, column: str, k: int) -> Array:
    """Return the sum of a column by depth over a prompt's chains, [K]."""
    if prompt not in chains:
        return np.zeros(k)
    by_depth: Array = _stacked(chains[prompt], column).sum(axis=0)
    return by_depth


def _near(chains: Mapping[str, pd.DataFrame], prompt: str, k: int) -> Array:
    """Return the sum of the mass at distances 0 .. K - 2 by depth over a prompt's chains, [K]."""
    if prompt not in chains:
        return np.zeros(k)
    bins = _stacked(chains[prompt], "distance_mass").sum(axis=0).reshape(k, -1)
    by_depth: Array = bins[:, : k - 1].sum(axis=1)
    return by_depth


def _stacked(chains: pd.DataFrame, column: str) -> Array:
    """Return the lists of a column as one array, [chains, elements]."""
    return np.array(chains[column].to_list(), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEstimate:
    """An estimate and its 95% interval; both ends are NaN where there is none."""

    value: float
    low: float
    high: float

    def words(self, digits: int = 2) -> str:
        """Return the estimate as a table shows it."""
        if math.isnan(self.low):
            return f"{self.value:.{digits}f}"
        return f"{self.value:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def estimate_of(ratio: Ratio, at: int = 0) -> TableEstimate:
    """Return one figure of a ratio over prompts."""
    found = intervals(ratio)
    spread = found[at] if found else None
    value = float(ratio.value[at])
    if spread is None:
        return TableEstimate(value=value, low=math.nan, high=math.nan)
    return TableEstimate(value=value, low=spread.low, high=spread.high)


def robustness(first: dict[str, PromptSums], second: dict[str, PromptSums]) -> TableEstimate:
    """Return how much more of its acceptance length the second drafter keeps than the first under
    perturbed templates: a ratio of ratios, above 1 where the second keeps more.

    Per drafter the kept share is the geometric mean, over the perturbed forms, of the acceptance
    length over that in the trained form. The interval is taken over the prompts that have rounds
    in every form with both drafters; an answer of one token has none.
    """
    forms = [set(drafter[form].prompts) for drafter in (first, second) for form in FORMS]
    prompts = sorted(set.intersection(*forms))
    value, influence = 0.0, np.zeros(len(prompts))
    for sums, sign in ((first, -1.0), (second, 1.0)):
        trained = _log_length(sums[AS_TRAINED].of(prompts))
        for form in PERTURBED:
            perturbed = _log_length(sums[form].of(prompts))
            value = value + sign * (perturbed[0] - trained[0]) / len(PERTURBED)
            influence = influence + sign * (perturbed[1] - trained[1]) / len(PERTURBED)
    return _exponential(value, influence)


def _log_length(sums: PromptSums) -> tuple[float, Array]:
    """Return the logarithm of the acceptance length and the influence of each prompt on it."""
    length = sums.length()
    return math.log(length.value[0]), length.influence[:, 0] / length.value[0]


def _exponential(value: float, influence: Array) -> TableEstimate:
    prompts = len(influence)
    error = math.sqrt((prompts - 1) / prompts * float(np.square(influence).sum()))
    half = float(student(prompts - 1.0)) * error
    return TableEstimate(
        value=math.exp(value), low=math.exp(value - half), high=math.exp(value + half)
    )


LEAST_SINK = 0.2
LOST_BELOW = 0.5
KEPT_ABOVE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDrafter:
    """One drafter's run: sums by condition, and the analysis's answer to whether its
    attention drifts in the trained form."""

    sums: dict[str, PromptSums]
    drift: DriftAnswer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One criterion: whether it is met, and the figures that decide."""

    name: str
    met: bool
    figures: str


def judged(eagle3: RecordedDrafter, eagle31: RecordedDrafter) -> tuple[Criterion, ...]:
    """Return the three criteria."""
    return _sink(eagle3, eagle31), _template(eagle3, eagle31), _drift(eagle3, eagle31)


def _sink(eagle3: RecordedDrafter, eagle31: RecordedDrafter) -> Criterion:
    first = estimate_of(eagle3.sums[AS_TRAINED].by_depth("sink"))
    lost, kept = (estimate_of(one.sums[AS_TRAINED].sink_kept()) for one in (eagle3, eagle31))
    met = first.low >= LEAST_SINK and lost.high < LOST_BELOW and kept.low >= KEPT_ABOVE
    figures = (
        f"EAGLE-3 has {first.words()} at depth 1 and keeps {lost.words()} of it at the last depth, "
        f"EAGLE-3.1 keeps {kept.words()}"
    )
    return Criterion(name="(a) sink", met=met, figures=figures)


def _template(eagle3: RecordedDrafter, eagle31: RecordedDrafter) -> Criterion:
    ratio: TableEstimate = robustness(eagle3.sums, eagle31.sums)
    return Criterion(
        name="(b) template",
        met=ratio.low > 1.0,
        figures=f"EAGLE-3.1 keeps {ratio.words()} times the share that EAGLE-3 keeps",
    )


def _drift(eagle3: RecordedDrafter, eagle31: RecordedDrafter) -> Criterion:
    return Criterion(
        name="(c) drift",
        met=eagle3.drift is DriftAnswer.DRIFT and eagle31.drift is DriftAnswer.NO_DRIFT,
        figures=f"the analysis says {_drift_words(eagle3)} of EAGLE-3 and "
        f"{_drift_words(eagle31)} of EAGLE-3.1",
    )


def _drift_words(one: RecordedDrafter) -> str:
    return f'"{one.drift}"' if one.drift else "nothing"


Evidence = Mapping[str, RecordedDrafter]
"""Drafter -> its run."""
BY_DEPTH = {
    "sink": "attention on the first token",
    "near": "attention on the nearest places",
    "rms": "RMS before the final norm",
    "reached": "share of rounds accepted to the depth",
}


def lengths(evidence: Evidence) -> Iterator[str]:
    """Yield the acceptance length by condition, with its interval over prompts."""
    yield "| condition | " + " | ".join(evidence) + " |"
    yield "|---" * (len(evidence) + 1) + "|"
    for condition in SUITE.conditions:
        of = [estimate_of(one.sums[condition].length()).words() for one in evidence.values()]
        yield f"| {condition} | " + " | ".join(of) + " |"


def by_depth(evidence: Evidence, condition: str = AS_TRAINED) -> Iterator[str]:
    """Yield the figures by depth in one condition."""
    first = next(iter(evidence.values())).sums[condition]
    depths = range(1, first.sink.shape[1] + 1)
    yield "| figure | drafter | " + " | ".join(map(str, depths)) + " |"
    yield "|---" * (len(depths) + 2) + "|"
    for figure, words in BY_DEPTH.items():
        for drafter, one in evidence.items():
            values = one.sums[condition].by_depth(figure).value.tolist()
            yield f"| {words} | {drafter} | " + " | ".join(f"{v:.2f}" for v in values) + " |"


def answers(criteria: Sequence[Criterion]) -> Iterator[str]:
    """Yield yes or no for each criterion, with the figures that decide."""
    yield "| criterion | met | figures |"
    yield "|---|---|---|"
    for one in criteria:
        yield f"| {one.name} | {'yes' if one.met else 'no'} | {one.figures} |"
