"""Sums of a recorded run by condition and prompt, and figures over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from driftscope.analysis.statistics.interval import Ratio, ratio_of
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
    return np.stack(chains[prompt][column].to_numpy()).astype(float).sum(axis=0)


def _near(chains: Mapping[str, pd.DataFrame], prompt: str, k: int) -> Array:
    """Return the sum of the mass at distances 0 .. K - 2 by depth over a prompt's chains, [K]."""
    if prompt not in chains:
        return np.zeros(k)
    bins = np.stack(chains[prompt]["distance_mass"].to_numpy()).astype(float)
    by_depth: Array = bins.sum(axis=0).reshape(k, -1)[:, : k - 1].sum(axis=1)
    return by_depth
