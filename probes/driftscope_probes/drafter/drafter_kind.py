"""A kind of drafter: what the probe has to know of it to record a chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.trace.format.manifest import BY_DEPTH, BY_QUERY

NOT_SERVED = "vLLM has none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of drafter: how to recognise it, where its states lie, and how far it was checked."""

    name: str
    methods: tuple[str, ...]
    """vLLM's speculation methods."""
    drafters: tuple[str, ...] = ()
    """vLLM's drafter classes; none: any."""
    parallel: bool = False
    """The method's `parallel_drafting` variant."""
    modules: bool = False
    """One module for each depth, on a runner that knows them."""
    attention: bool = True
    """It has attention layers: their masses are recorded."""
    model: bool = True
    """Something neural drafts; else acceptance and timing are all there is."""
    fed: bool = True
    """The target's hidden state goes in and, from depth 2 on, the drafter's own."""
    outputs: Mapping[str, int] = field(default_factory=dict)
    """What a forward returns: RMS column -> index in its tuple; one tensor is a tuple of one."""
    norms: tuple[str, ...] = ()
    """Paths, with *, of the modules whose input is the pre-norm residual stream."""
    block: bool = False
    """All K tokens come from one forward of K queries for each request: no depth, a query index."""
    heads: bool = False
    """A list of K states comes from one row for each request."""
    causal: bool = True
    """A query sees no later slot; else all queries of its block."""
    lead: int = 0
    """Verified slots after p: a drafter whose slot i holds token i has the newest token's too."""
    ahead: int = 0
    """Slots from the last verified one to the first query's."""
    v1: str = NOT_SERVED
    """How it was checked on vLLM's V1 runner."""
    v2: str = NOT_SERVED
    note: str = ""

    @property
    def chained(self) -> bool:
        """One row per request from depth 2 on, fed with what the depth before returned."""
        return self.fed and not (self.block or self.heads or self.modules)

    @property
    def query_kind(self) -> str:
        """For `Manifest.query_kind`."""
        return BY_QUERY if self.block else BY_DEPTH

    @property
    def recorded(self) -> tuple[str, ...]:
        """In words."""
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
        """The RMS columns by depth that are written, in the order of the network."""
        there = {*self.outputs, *(["in_rms"] if self.fed else [])}
        if self.norms:
            there.add("prenorm_rms")
        order = ("in_rms", "prenorm_rms", "postnorm_rms", "fed_rms")
        return tuple(name for name in order if name in there)
