"""The result of one check of a checkpoint's files, and the engines whose rules checks quote."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from driftscope.inspect.checkpoints import DrafterFiles, TargetFiles

UNNAMED = "captured_layers_unnamed"
"""Result that the config names no captured layers: what the files then leave open."""


class CheckLevel(StrEnum):
    """How bad a result is."""

    ERROR = "error"
    """An engine refuses the checkpoint, or accepts next to nothing of its drafts."""
    WARNING = "warning"
    """An engine may accept less than it could."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""


class Certainty(StrEnum):
    """How sure a result is."""

    CERTAIN = "certain"
    """It follows from the files and the engine's source."""
    LIKELY = "likely"
    """Few working checkpoints look like this."""
    POSSIBLE = "possible"
    """Working checkpoints can look like this too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One thing that a check found.

    `rule` names the engine or library, and the part of it, that makes `expected` so.
    """

    id: str
    level: CheckLevel
    title: str
    expected: str
    rule: str
    found: str
    """Content of the files instead."""
    change: str | None = None
    """Change to make, with the exact line of the config if it is one; None if nothing needs to be
    done."""
    certainty: Certainty = Certainty.CERTAIN


error = partial(CheckResult, level=CheckLevel.ERROR)
warning = partial(CheckResult, level=CheckLevel.WARNING)
note = partial(CheckResult, level=CheckLevel.NOTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """A drafter's files, and its target's if they were given."""

    drafter: DrafterFiles
    target: TargetFiles | None = None


VLLM = "vLLM 0.32"
VLLM_LOADER = f"{VLLM}, llama_eagle3.py load_weights"
VLLM_MODEL = f"{VLLM}, llama_eagle3.py LlamaModel"
VLLM_EAGLE1_LOADER = f"{VLLM}, llama_eagle.py load_weights"
VLLM_EAGLE1_MODEL = f"{VLLM}, llama_eagle.py LlamaModel"
VLLM_EAGLE1_NAME = f"{VLLM}, configs/eagle.py: puts Eagle before each name"
SGLANG_EAGLE1 = "SGLang 0.5.23, llama_eagle.py LlamaForCausalLMEagle"
VLLM_CAPTURE = f"{VLLM}, interfaces.py _set_aux_hidden_state_layers"
VLLM_DEFAULT = f"{VLLM}, interfaces.py get_eagle3_default_aux_hidden_state_layers"
VLLM_SPECULATORS = f"{VLLM}, speculators/algos.py update_eagle3"
SGLANG_CAPTURE = "SGLang since sglang#25454, set_eagle3_layers_to_capture"
SPECFORGE = "SpecForge before SpecForge#879"
SPECULATORS = "speculators#670"
