"""Parameters of a simulated run and its true figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_NODES = 40
"""Nodes of the Gauss-Hermite quadrature over normal shifts: exact to far below any standard
error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Requests of one kind."""

    label: str | None = None
    share: float = 1.0
    """Share of all requests, before all shares are scaled to sum to 1."""
    tokens: tuple[int, int] = (50, 500)
    """Range of prompt lengths in tokens, uniform, both ends included."""
    temperature: float | None = 0.0
    structured: str | None = "none"
    """Structure required of outputs, as `RequestRow.structured`."""
    adapter: str | None = None
    """LoRA adapter of the target."""
    shift: float = 0.0
    """Shift added to the logit of every conditional acceptance: above 0 is easier."""
    text: tuple[float, ...] | None = None
    """Share of the answers' blocks of each of `Truth.regions`, if it is not theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Times of a step without the noise: the truth for a cost model."""

    base_s: float = 0.010
    """Target and sampling, independent of the batch."""
    sequence_s: float = 0.0002
    """Addition for each request of the batch."""
    token_s: float = 0.00005
    """Addition for each verified token: K + 1 per request that drafted, else 1."""
    draft_s: float = 0.0004
    """The drafter, independent of K."""
    depth_s: float = 0.0008
    """Addition for each depth drafted."""
    depth_sequence_s: float = 0.00001
    """Addition for each depth and request."""
    prefill_token_s: float = 0.0001
    """Time to the first token for each token of the prompt."""
    noise: float = 0.05
    """Standard deviation of the logarithm of a measured time."""

    def verify_s(self, batch: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the time of target and sampling in a step that verifies `tokens` in total."""
        return self.base_s + self.sequence_s * batch + self.token_s * tokens

    def drafting_s(self, chains: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the time of the drafter in a step that drafts `chains` of K tokens."""
        drafted_s = self.draft_s + k * (self.depth_s + self.depth_sequence_s * chains)
        return np.where(chains > 0, drafted_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """A simulated run; defaults are a drifting EAGLE-3 drafter with K = 7."""

    k: int = 7
    requests: int = 200
    """Number of requests on all replicas together."""
    rounds: int = 50
    """Mean number of decode steps per request."""
    rounds_spread: float = 0.5
    """Spread of the rounds: a request has between 1 - this and 1 + this times as many."""
    prompts: tuple[Prompts, ...] = (Prompts(),)
    prompts_seed: int = 11
    """Seed of the prompts: kind, length, difficulty, number of rounds."""
    seed: int = 7
    """Seed of everything else."""

    conditional: tuple[float, ...] = (0.8, 0.72, 0.66, 0.6, 0.55, 0.5, 0.46)
    """Probability of acceptance at each depth, given the one before, for a request and round
    without shift; at least K values."""
    between: float = 0.6
    """Standard deviation of a request's logit shift, which correlates rounds of one request."""
    repeats: int = 1
    """Number of requests of each prompt, spread over the run; what repeats is the prompt's kind,
    length, number of rounds and `between`."""
    sessions: int = 0
    """Number of sessions, each of them a sequence of requests; 0: there are none."""
    kind_by_session: bool = False
    """Whether all prompts of a session are of one kind."""
    alike: float = 0.0
    """Standard deviation of a session's logit shift."""
    digests: bool = True
    """Whether request rows have digests of prompts, as of a probe of this version."""
    within: float = 0.8
    """Standard deviation of a round's own logit shift, independent at each depth."""
    decay: float = 0.0
    """Logit shift at the end of the run, reached linearly over its requests."""
    change: tuple[float, float] | None = None
    """Pair (share of the requests after which acceptance changes, logit shift from there on)."""
    updates: tuple[float, ...] = ()
    """Shares of the requests after which the served weights are updated."""
    longer: tuple[float, float] | None = None
    """Pair (share of the requests after which answers are longer, how many times as long)."""
    context: float = 0.0
    """Logit shift for each doubling of the context over 1,024 tokens."""
    regions: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Share of an answer's blocks, before all shares are scaled to sum to 1, and logit shift, by
    region; empty: regions are not recorded."""
    attends: float = 0.0
    """Rise of the attention on the chain in rounds that draft text of the last region, as a share
    of it."""
    along: float = 0.0
    """Logit shift for each doubling of the place in the answer, from its first token."""
    in_order: bool = False
    """Whether the last third of each answer is of the last region, and none is before."""
    block_tokens: int = 24
    """Tokens of each block."""
    boundary: float = 0.0
    """Logit shift of rounds that draft from the first 4 tokens of a block, unless it is the
    answer's first."""
    among_best: float | None = None
    """Share of the rejected tokens at which the target's own is among the drafter's best 4; None:
    it is not recorded."""
    miscalibration: float = 0.0
    """Miscalibration: the drafter's confidence is a + this * (1 - a), where a is the round's own
    probability of acceptance at the depth; 0 is calibrated."""
    miscalibrated_from: float = 0.0
    """Share of the requests from which on it is so."""

    sink: tuple[float, float] = (0.30, 0.05)
    """Sink mass at depth 1 and K; linear between."""
    self_last: float = 0.45
    """Mass on the chain at depth K; 0 at depth 1, linear between."""
    near: float = 0.0
    """Mean mass at depth 1 on the last K - 1 slots; the chain takes their place with depth, so that
    the near shift at depth K is `self_last` minus this. 0: masses by distance are not recorded."""

    layers: int = 1
    sink_slots: tuple[int, ...] = (0,)
    fed_state: str | None = None
    """`Manifest.fed_state` of an MTP head, which reads the target's own state, of RMS 2; None: an
    EAGLE-3 drafter."""
    fed: float = 4.0
    """RMS of the state fed forward from depth 1."""
    growth: float = 2.5
    """Ratio of that RMS at depth K to depth 1; geometric between."""
    rms_batch: float = 0.0
    """Exponent of the batch size by which every RMS is multiplied, equal at all depths."""
    norm_output: bool = False
    samples_wrongly: bool = False
    verification: str | None = None
    """Whether the engine verifies sampled requests at wrong temperatures."""
    aux: tuple[float, ...] = (1.0, 4.0, 9.0)
    """RMS of the captured target layers."""
    aux_norm: tuple[float, ...] | None = None
    """RMS of the captured layers after the norm before the fc; None without such a norm."""
    spread: float = 0.2
    """Width of the noise: masses and RMS lie within this share of their mean, half of it by
    request, half by chain."""

    batches: tuple[int, ...] = (8,)
    """Numbers of requests that start together, used in rotation; the requests end one by one."""
    batch: float = 0.0
    """Logit shift for each doubling of the batch over 1."""
    k_by_batch: tuple[tuple[int, int], ...] = ()
    """Pairs (largest batch, K) for ranges of batch sizes, smallest first; () if K does not depend
    on the batch."""
    k_from: tuple[tuple[float, int], ...] = ()
    """Pairs (share of the requests after which K changes, K from there on), if K changes while the
    server runs."""
    k_zero_above: int | None = None
    """Batch size above which nothing is drafted, deliberately."""
    undrafted: Mapping[str, float] = field(default_factory=dict)
    """Share of the other decode steps that have no draft, by reason."""
    cost: Cost = Cost()
    slowdown: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Shares of the requests between which steps are slower, and how many times as long they
    take."""
    gap_s: float = 0.0
    """Idle time between one batch and the next, in seconds."""
    rates: tuple[float, ...] = (1.0,)
    """Sampling rates, used one after the other over equal parts of the requests."""
    replicas: int = 1
    kind_by_replica: bool = False
    """Whether each replica serves one kind of prompt."""
    replica_shift: float = 0.0
    """Logit shift of the last replica."""
    rank_state: float | None = None
    """RMS of the state fed forward on a second tensor-parallel rank, as a multiple of that on the
    first; None: there is one rank."""
    target: str = "simulated-target"
    drafter: str = "simulated-drafter"
    runner: str = "v2"
    mode: str = "eager"
    eager_above: int | None = None
    """Batch size above which a step runs eagerly in any mode: larger than every CUDA graph."""

    def __post_init__(self) -> None:
        most = (1 + self.spread) * float((self.sinks() + self.selves()).max())
        if len(self.conditional) < self.k or most > 1 or self.spread >= 1:
            raise ValueError("a truth needs K conditional rates, and masses that leave something")

    @property
    def mixed(self) -> bool:
        """Whether chains may have different K."""
        return bool(self.k_by_batch or self.k_from)

    def k_of(self, batch: NDArray[np.int64], progress: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the K of steps with these batch sizes, after these shares of the requests."""
        k = np.full(len(batch), self.k)
        for largest, smaller_k in reversed(self.k_by_batch):
            k[batch <= largest] = smaller_k
        for share, later_k in self.k_from:
            k[progress >= share] = later_k
        return k

    def marginal_at(self, batch: int) -> NDArray[np.float64]:
        """Return the true marginal acceptance, [K], of rounds in batches of this size, drafted in
        full."""
        shares = self.shares()
        shift = self.batch * float(np.log2(batch))
        lengths = np.array([self._marginal_of(kind.shift + shift) for kind in self.prompts])
        return np.asarray(shares @ lengths)

    def sinks(self) -> NDArray[np.float64]:
        """Return the mean sink mass, [K]."""
        return np.linspace(*self.sink, self.k)

    def selves(self) -> NDArray[np.float64]:
        """Return the mean mass on the chain, [K]."""
        return np.linspace(0.0, self.self_last, self.k)

    def states(self) -> NDArray[np.float64]:
        """Return the mean RMS of the state fed forward, [K]."""
        return self.fed * self.growth ** (np.arange(self.k) / max(self.k - 1, 1))

    def shares(self) -> NDArray[np.float64]:
        """Return the share of each kind of prompts; they sum to 1."""
        shares = np.array([kind.share for kind in self.prompts])
        return shares / shares.sum()

    def logits(self) -> NDArray[np.float64]:
        """Return the logits of the conditional rates, [K]."""
        rate = np.array(self.conditional[: self.k])
        return np.log(rate / (1.0 - rate))

    def marginal(self, kind: int | None = None) -> NDArray[np.float64]:
        """Return the true marginal acceptance, [K], of all prompts, or of one kind.

        It holds for a run without decay, change or effect of the context, in the limit of many
        requests and rounds, drafted in full.
        """
        changing = (self.decay, self.change, self.context, self.batch, self.regions)
        if any(changing):
            raise ValueError("the truth of a run that changes as it goes has no closed form")
        if kind is not None:
            return self._marginal_of(self.prompts[kind].shift)
        marginals = np.array([self._marginal_of(prompt.shift) for prompt in self.prompts])
        return np.asarray(self.shares() @ marginals)

    def _marginal_of(self, shift: float) -> NDArray[np.float64]:
        node, weight = np.polynomial.hermite_e.hermegauss(_NODES)
        weight = weight / weight.sum()
        logit = self.logits()[:, None, None] + shift
        spread = np.hypot(self.between, self.alike)
        rates = 1 / (1 + np.exp(-(logit + spread * node[:, None] + self.within * node)))
        survived = np.cumprod(rates @ weight, axis=0)
        return np.asarray(survived @ weight)

    def mean_length(self, kind: int | None = None) -> float:
        """Return the true acceptance length, under the conditions of `marginal`."""
        return 1.0 + float(self.marginal(kind).sum())
