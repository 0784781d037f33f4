"""What the probe needs of a loaded drafter, the same for every engine and runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from driftscope_probes.drafter.attention_layer import AttentionLayer
from driftscope_probes.drafter.drafter_kind import Kind


class Drafter(Protocol):
    """A drafter that an engine has loaded; none of this changes while it serves."""

    @property
    def model(self) -> Any:
        """The engine's drafter module, such as vLLM's Eagle3LlamaForCausalLM."""

    @property
    def layers(self) -> Mapping[str, AttentionLayer]:
        """Its attention layers by name, in order of depth in the network."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    @property
    def kind(self) -> Kind:
        """The kind of drafter that it is."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of its activations."""

    @property
    def k(self) -> int:
        """Longest chain."""

    @property
    def compiled(self) -> bool:
        """Whether the engine compiles models."""

    @property
    def samples(self) -> bool:
        """Whether the engine may change logits in place once it has them."""

    @property
    def max_requests(self) -> int:
        """Most requests in a step."""

    @property
    def max_slots(self) -> int:
        """Slots of the longest context; what a drafter drafts past it does not count."""

    @property
    def queries(self) -> int:
        """Queries of a request in one forward that are measured: 1, or K for a block drafter."""

    @property
    def shares_cache(self) -> bool:
        """Whether other layers may write where the drafter's keys lie."""

    @property
    def final_norms(self) -> tuple[Any, ...]:
        """The modules whose input is the pre-norm residual stream; one for each head, if any."""

    @property
    def aux_states(self) -> int:
        """Number of captured target layers that are combined for the drafter."""

    @property
    def aux_norms(self) -> tuple[Any, ...]:
        """The norms whose output goes to fc."""

    def forward_mode(self) -> str:
        """Return how the forward under way runs, one of `Execution`."""

    def offer_lse(self) -> bool:
        """Make the attention kernel hand out its log-sum-exp; False where it has none."""
