"""What is true of a simulated run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_NODES = 40
"""Of the Gauss-Hermite quadrature over normal shifts: exact to far below any standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Requests of one kind."""

    label: str | None = None
    share: float = 1.0
    """Of all requests, before all shares are scaled to sum to 1."""
    tokens: tuple[int, int] = (50, 500)
    """Prompt lengths, uniform, both ends included."""
    temperature: float | None = 0.0
    structured: str | None = "none"
    """What outputs are held to, as `RequestRow.structured`."""
    shift: float = 0.0
    """Added to the logit of every conditional acceptance: above 0 is easier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Times of a step, less the noise: what a cost model has to find."""

    base_s: float = 0.010
    """Target and sampling, whatever the batch."""
    sequence_s: float = 0.0002
    """For each request of the batch."""
    token_s: float = 0.00005
    """For each token verified: K + 1 per request that drafted, else 1."""
    draft_s: float = 0.0004
    """The drafter, whatever K."""
    depth_s: float = 0.0008
    """For each depth drafted."""
    depth_sequence_s: float = 0.00001
    """For each depth and request."""
    prefill_token_s: float = 0.0001
    """To the first token, for each token of the prompt."""
    noise: float = 0.05
    """Standard deviation of the logarithm of a measured time."""

    def verify_s(self, batch: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Target and sampling of a step that verifies `tokens` in all."""
        return self.base_s + self.sequence_s * batch + self.token_s * tokens

    def drafting_s(self, chains: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.float64]:
        """The drafter in a step that drafts `chains` of K tokens."""
        each = self.draft_s + k * (self.depth_s + self.depth_sequence_s * chains)
        return np.where(chains > 0, each, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A simulated run; defaults are a drifting EAGLE-3 drafter with K = 7."""

    k: int = 7
    requests: int = 200
    """All replicas together."""
    rounds: int = 50
    """Decode steps per request, on average."""
    rounds_spread: float = 0.5
    """A request has between 1 - this and 1 + this times as many."""
    prompts: tuple[Prompts, ...] = (Prompts(),)
    prompts_seed: int = 11
    """Of what the prompts are: kind, length, how easy, how many rounds."""
    seed: int = 7
    """Of everything else."""

    conditional: tuple[float, ...] = (0.8, 0.72, 0.66, 0.6, 0.55, 0.5, 0.46)
    """Probability of acceptance at each depth, given the one before, for a request and round of
    no shift; at least K of them."""
    between: float = 0.6
    """Standard deviation of a request's logit shift: why rounds of one request are alike."""
    within: float = 0.8
    """Standard deviation of a round's own logit shift, at each depth anew."""
    decay: float = 0.0
    """Logit shift at the end of the run, reached linearly over its requests."""
    change: tuple[float, float] | None = None
    """(share of the requests after which, logit shift from there on)."""
    context: float = 0.0
    """Logit shift for each doubling of the context over 1,024 tokens."""
    miscalibration: float = 0.0
    """The drafter's confidence is a + this * (1 - a), where a is the round's own probability of
    acceptance at the depth; 0 is calibrated."""

    sink: tuple[float, float] = (0.30, 0.05)
    """Mass at depth 1 and K; linear between."""
    self_last: float = 0.45
    """Mass on the chain at depth K; 0 at depth 1, linear between."""
    prompt_share: float = 0.5
    """Of what sink and chain leave; the rest is on verified output."""
    layers: int = 1
    by_head: tuple[float, ...] = ()
    """What each head's mass on the chain is to their mean, if masses by head are recorded; the mean
    of these is 1."""
    sink_slots: tuple[int, ...] = (0,)
    fed: float = 4.0
    """RMS of the state fed forward from depth 1."""
    growth: float = 2.5
    """The same at depth K over depth 1; geometric between."""
    rms_batch: float = 0.0
    """Every RMS is multiplied by the batch size to this power, at all depths alike."""
    norm_output: bool = False
    aux: tuple[float, ...] = (1.0, 4.0, 9.0)
    """RMS of the captured target layers."""
    aux_norm: tuple[float, ...] | None = None
    """The same after the norm before the fc, where there is one."""
    spread: float = 0.2
    """Masses and RMS lie within this share of their mean: half of it by request, half by chain."""

    batches: tuple[int, ...] = (8,)
    """Requests that start together, taken in turn; they leave one by one."""
    batch: float = 0.0
    """Logit shift for each doubling of the batch over 1."""
    k_by_batch: tuple[tuple[int, int], ...] = ()
    """(largest batch, K) of each range of batch sizes, smallest first; () for K whatever the
    batch."""
    k_from: tuple[tuple[float, int], ...] = ()
    """(share of the requests after which, K from there on), where K changes while the server
    runs."""
    k_zero_above: int | None = None
    """Batch size above which nothing is drafted, on purpose."""
    undrafted: Mapping[str, float] = field(default_factory=dict)
    """Share of the other decode steps that go without a draft, by reason."""
    cost: Cost = Cost()
    gap_s: float = 0.0
    """Idle time between one batch and the next."""
    rates: tuple[float, ...] = (1.0,)
    """Sampling rate in force, one after the other over equal parts of the requests."""
    replicas: int = 1
    target: str = "simulated-target"
    drafter: str = "simulated-drafter"
    runner: str = "v2"
    mode: str = "eager"
    eager_above: int | None = None
    """Batch size above which a step runs eagerly, whatever the mode: larger than any graph."""

    def __post_init__(self) -> None:
        most = (1 + self.spread) * float((self.sinks() + self.selves()).max())
        if len(self.conditional) < self.k or most > 1 or self.spread >= 1:
            raise ValueError("a truth needs K conditional rates, and masses that leave something")

    @property
    def mixed(self) -> bool:
        """Whether chains may be of several K."""
        return bool(self.k_by_batch or self.k_from)

    def k_of(self, batch: NDArray[np.int64], progress: NDArray[np.float64]) -> NDArray[np.int64]:
        """K of steps of these batch sizes, after these shares of the requests."""
        k = np.full(len(batch), self.k)
        for largest, each in reversed(self.k_by_batch):
            k[batch <= largest] = each
        for share, each in self.k_from:
            k[progress >= share] = each
        return k

    def marginal_at(self, batch: int) -> NDArray[np.float64]:
        """[K] true marginal acceptance of rounds in batches of this size, drafted in full."""
        shares = self.shares()
        shift = self.batch * float(np.log2(batch))
        each = np.array([self._marginal_of(kind.shift + shift) for kind in self.prompts])
        return np.asarray(shares @ each)

    def sinks(self) -> NDArray[np.float64]:
        """[K] mean sink mass."""
        return np.linspace(*self.sink, self.k)

    def selves(self) -> NDArray[np.float64]:
        """[K] mean mass on the chain."""
        return np.linspace(0.0, self.self_last, self.k)

    def states(self) -> NDArray[np.float64]:
        """[K] mean RMS of the state fed forward."""
        return self.fed * self.growth ** (np.arange(self.k) / max(self.k - 1, 1))

    def shares(self) -> NDArray[np.float64]:
        """[kinds of prompts] share of each; they sum to 1."""
        shares = np.array([kind.share for kind in self.prompts])
        return shares / shares.sum()

    def logits(self) -> NDArray[np.float64]:
        """[K] of the conditional rates."""
        rate = np.array(self.conditional[: self.k])
        return np.log(rate / (1.0 - rate))

    def marginal(self, kind: int | None = None) -> NDArray[np.float64]:
        """[K] true marginal acceptance of all prompts, or of one kind.

        Of a run without decay, change or effect of the context; over requests and rounds without
        end, drafted in full.
        """
        if self.decay or self.change or self.context or self.batch:
            raise ValueError("the truth of a run that changes as it goes has no closed form")
        if kind is not None:
            return self._marginal_of(self.prompts[kind].shift)
        each = np.array([self._marginal_of(each.shift) for each in self.prompts])
        return np.asarray(self.shares() @ each)

    def _marginal_of(self, shift: float) -> NDArray[np.float64]:
        node, weight = np.polynomial.hermite_e.hermegauss(_NODES)
        weight = weight / weight.sum()
        logit = self.logits()[:, None, None] + shift
        each = 1 / (1 + np.exp(-(logit + self.between * node[:, None] + self.within * node)))
        survived = np.cumprod(each @ weight, axis=0)
        return np.asarray(survived @ weight)

    def mean_length(self, kind: int | None = None) -> float:
        """True acceptance length, as `marginal`."""
        return 1.0 + float(self.marginal(kind).sum())
