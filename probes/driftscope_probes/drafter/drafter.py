"""The interface of a loaded drafter that the probe needs, independent of engine and runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from driftscope_probes.drafter.attention_layer import AttentionLayer
from driftscope_probes.drafter.drafter_kind import Kind


class Drafter(Protocol):
    """A drafter that an engine has loaded; no property changes while it serves."""

    @property
    def model(self) -> Any:
        """The engine's drafter module, such as vLLM's Eagle3LlamaForCausalLM."""

    @property
    def layers(self) -> Mapping[str, AttentionLayer]:
        """Attention layers by name, in order of depth in the network."""

    @property
    def device(self) -> torch.device:
        """Device that the drafter runs on."""

    @property
    def kind(self) -> Kind:
        """Kind of the drafter."""

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the drafter's activations."""

    @property
    def k(self) -> int:
        """Largest chain length."""

    @property
    def compiled(self) -> bool:
        """Whether the engine compiles models."""

    @property
    def samples(self) -> bool:
        """Whether the engine may change logits in place after it receives them."""

    @property
    def max_requests(self) -> int:
        """Largest number of requests in a step."""

    @property
    def max_slots(self) -> int:
        """Number of slots in the longest context; drafts beyond it do not count."""

    @property
    def queries(self) -> int:
        """Number of queries measured per request and forward: 1, or K for a block drafter."""

    @property
    def shares_cache(self) -> bool:
        """Whether other layers may write to the memory that holds the drafter's keys."""

    @property
    def final_norms(self) -> tuple[Any, ...]:
        """Modules whose input is the pre-norm residual stream; one per head, if any."""

    @property
    def aux_states(self) -> int:
        """Number of captured target layers that are combined for the drafter."""

    @property
    def aux_norms(self) -> tuple[Any, ...]:
        """Norms whose output is the input of fc."""

    def forward_mode(self) -> str:
        """Return the execution mode of the forward in progress, one of `Execution`."""

    def offer_lse(self) -> bool:
        """Make the attention kernel return its log-sum-exp; return False if it has none."""
