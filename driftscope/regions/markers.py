"""Marks with which chat templates enclose tool calls and thinking.

Each mark is one that a parser of vLLM 0.32 looks for (vllm/tool_parsers, vllm/reasoning,
vllm/parser).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from driftscope.vocabulary import Region


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """A pair of marks and the region between them."""

    region: str
    opening: str
    closing: tuple[str, ...]
    """Marks that end it, any of them; none: it lasts to the end of the answer."""


def _tool(opening: str, *closing: str) -> Enclosure:
    return Enclosure(region=Region.JSON, opening=opening, closing=closing)


def _thinking(opening: str, *closing: str) -> Enclosure:
    return Enclosure(region=Region.THINKING, opening=opening, closing=closing)


ENCLOSURES: Sequence[Enclosure] = (
    _tool("<tool_call>", "</tool_call>"),  # Hermes, Qwen
    _tool("<|python_tag|>"),  # Llama 3
    _tool("[TOOL_CALLS]"),  # Mistral
    _tool("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),  # Kimi
    _tool("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),  # DeepSeek
    _tool("<|tool_call|>"),  # Granite
    _tool("<function=", "</function>"),  # Qwen 3 Coder, Seed
    _thinking("<think>", "</think>"),  # DeepSeek, Qwen
    _thinking("[THINK]", "[/THINK]"),  # Mistral
    _thinking("<seed:think>", "</seed:think>"),  # Seed
    _thinking("<|channel|>analysis<|message|>", "<|end|>", "<|return|>"),  # gpt-oss
)
OPENED_BY: Mapping[str, Enclosure] = {each.opening: each for each in ENCLOSURES}
CLOSING = tuple(sorted({mark for each in ENCLOSURES for mark in each.closing}))
