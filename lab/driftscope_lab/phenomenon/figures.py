"""Sums of a recorded run by condition and prompt, and figures over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from driftscope.analysis.statistics.ratio import Ratio, ratio_of
from driftscope.trace.read.reader import read_trace

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
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

    def of(self, prompts: Sequence[str]) -> Sums:
        """Return the sums of some of the prompts, in the given order."""
        at = [self.prompts.index(prompt) for prompt in prompts]
        arrays = {name: getattr(self, name)[at] for name in _ARRAYS}
        return Sums(prompts=tuple(prompts), **arrays)

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


def sums_of(run: Path, k: int) -> dict[str, Sums]:
    """Return the sums of each condition of a run that `phenomenon.engine` recorded.

    Raises what `read_trace` raises.
    """
    trace = read_trace(run)
    requests = trace.request.to_pandas()[["request", "label", "session"]]
    rounds = trace.verify.to_pandas().merge(requests, on="request")
    drafts = trace.draft.to_pandas().merge(requests, on="request")
    return {
        str(condition): _sums(of_rounds, drafts[drafts["label"] == condition], k)
        for condition, of_rounds in rounds[rounds["drafted"] == k].groupby("label")
    }


def _sums(rounds: pd.DataFrame, drafts: pd.DataFrame, k: int) -> Sums:
    prompts = tuple(sorted(rounds["session"].unique()))
    per_round = {str(name): part for name, part in rounds.groupby("session")}
    per_chain = {str(name): part for name, part in drafts.groupby("session")}
    depths = np.arange(1, k + 1)
    return Sums(
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
