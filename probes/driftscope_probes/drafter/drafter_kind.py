"""A kind of drafter: the properties that the probe needs to record its chains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.trace.format.manifest import BY_DEPTH, BY_QUERY
from driftscope.vocabulary import RMS_BY_DEPTH

NOT_SERVED = "vLLM has none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of drafter: how to recognise it, where its states are, and how far it was checked."""

    name: str
    methods: tuple[str, ...]
    """vLLM's names of the speculation methods."""
    drafters: tuple[str, ...] = ()
    """vLLM's drafter classes; (): any class."""
    parallel: bool = False
    """Whether this is the method's `parallel_drafting` variant."""
    modules: bool = False
    """Whether each depth has its own module, on a runner that supports this."""
    attention: bool = True
    """Whether the drafter has attention layers, whose masses are recorded."""
    model: bool = True
    """Whether a neural network drafts; otherwise only acceptance and timing are recorded."""
    fed: bool = True
    """Whether the input is the target's hidden state and, from depth 2 on, the drafter's own."""
    outputs: Mapping[str, int] = field(default_factory=dict)
    """Outputs of a forward: RMS column -> index in its tuple; one tensor is a 1-tuple."""
    norms: tuple[str, ...] = ()
    """Paths, which may contain *, of the modules whose input is the pre-norm residual stream."""
    block: bool = False
    """Whether all K tokens come from one forward with K queries per request, without depths."""
    heads: bool = False
    """Whether a list of K states is computed from one row per request."""
    causal: bool = True
    """Whether a query sees only slots up to its own; otherwise it sees all queries of its block."""
    lead: int = 0
    """Number of verified slots after p: 1 for a drafter whose slot i holds token i, because it then
    also has a slot for the newest token."""
    ahead: int = 0
    """Number of slots from the last verified one to that of the first query."""
    v1: str = NOT_SERVED
    """Kind of check done on vLLM's V1 runner."""
    v2: str = NOT_SERVED
    note: str = ""

    @property
    def chained(self) -> bool:
        """Whether later depths have one row per request, fed with the previous depth's output."""
        return self.fed and not (self.block or self.heads or self.modules)

    @property
    def query_kind(self) -> str:
        """Value of `Manifest.query_kind`."""
        return BY_QUERY if self.block else BY_DEPTH

    @property
    def recorded(self) -> tuple[str, ...]:
        """Recorded quantities, in words."""
        if not self.model:
            return ("acceptance", "timing")
        rms = [name.removesuffix("_rms") for name in self.columns]
        return (
            *(["masses"] if self.attention else []),
            f"RMS ({', '.join(rms)})",
            "confidence",
            "acceptance",
            "timing",
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """RMS columns by depth that are written, in the order of the network."""
        there = {*self.outputs, *(["in_rms"] if self.fed else [])}
        if self.norms:
            there.add("prenorm_rms")
        return tuple(name for name in RMS_BY_DEPTH if name in there)
