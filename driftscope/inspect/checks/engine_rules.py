"""Engines and trainers whose rules the checks quote, and what each means by a norm flag."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagMeaning:
    """Use that one engine or trainer makes of one field of the config."""

    field: str
    by: str
    meaning: str
    absent: str
    """Its behaviour if the field is absent."""


FLAG_MEANINGS = (
    FlagMeaning(
        field="norm_output",
        by="vLLM, SGLang, speculators, SpecForge since #879",
        meaning="the next depth gets the state after the final norm",
        absent="false",
    ),
    FlagMeaning(
        field="norm_output",
        by="SpecForge 0.2.0, before #879",
        meaning="the head reads the state after the final norm; the next depth gets it un-normed",
        absent="true",
    ),
    FlagMeaning(
        field="fc_norm",
        by="vLLM, SGLang, speculators since #670",
        meaning="one RMSNorm per captured state before fc: fc_norm.N.weight",
        absent="false",
    ),
    FlagMeaning(
        field="norm_before_fc",
        by="vLLM, SGLang since #32334, speculators",
        meaning="one RMSNorm over all captured states together before fc: input_norm.weight",
        absent="false; vLLM reads eagle_config first",
    ),
    FlagMeaning(
        field="norm_before_residual",
        by="vLLM, for its own format",
        meaning="the residual stream starts from the normed state",
        absent="false",
    ),
    FlagMeaning(
        field="norm_before_residual",
        by="vLLM and speculators, for the speculators format",
        meaning="the residual stream starts from the normed state",
        absent="true",
    ),
    FlagMeaning(
        field="eagle_aux_hidden_state_layer_ids",
        by="vLLM",
        meaning="outputs of these layers, counted from 1, sorted, each once",
        absent="2, half of the layers, and the third last",
    ),
    FlagMeaning(
        field="eagle_aux_hidden_state_layer_ids",
        by="SGLang since #25454",
        meaning="as vLLM; if the first is 1, each is one layer later",
        absent="as vLLM",
    ),
)
"""Meaning of the fields that engines and trainers read differently. Sources: the engines' code, and
the pull requests that are named."""
