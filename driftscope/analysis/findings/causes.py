"""Causes of lost acceptance, by the way in which it is lost, the most frequent first.

The order is that of public reports (SpecForge#879, vllm#46488, speculators#610 and #670,
sglang#32334, vllm-ascend#5974, LLMKube#1423, vllm#54997, speculators#684).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from driftscope.analysis.findings import evidence
from driftscope.analysis.findings.acceptance_losses import Loss
from driftscope.analysis.findings.evidence import Look, Scene
from driftscope.vocabulary import CHOOSES_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A possible cause of lost acceptance."""

    words: str
    check: str
    """Command or config field that confirms or excludes it."""
    look: Callable[[Scene], Look] = evidence.unseen
    """Function that looks in the run itself for evidence for or against it."""


NORM_FLAG = Cause(
    words="the norm flags are wrong, missing or not applied",
    check="compare fc_norm, norm_output, norm_before_fc and norm_before_residual in the drafter's "
    "config.json with its training; norm_flags in the run's manifest.json shows what was loaded",
    look=evidence.norm_flags,
)
LAYERS = Cause(
    words="the captured target layers are not those of the training",
    check="compare eagle_aux_hidden_state_layer_ids in the drafter's config.json with its "
    "training; aux_layers in the run's manifest.json shows what was captured",
    look=evidence.captured_layers,
)
TOKEN_IDS = Cause(
    words="draft ids are mapped to the wrong target ids (d2t), or the head is not the drafter's",
    check="check d2t in the drafter's model.safetensors: id + d2t[id] must be the target's id; "
    "compare draft_vocab_size with the number of rows of lm_head.weight",
    look=evidence.token_ids,
)
EMBEDDING = Cause(
    words="the embedding or the head is not shared with the target as in training",
    check="check whether the drafter's model.safetensors has embed_tokens.weight and "
    "lm_head.weight, and what tie_word_embeddings is in its config.json",
    look=evidence.embedding,
)
ROPE = Cause(
    words="the rotary positions differ from those in training",
    check="compare rope_theta and rope_scaling in the drafter's config.json with its training",
    look=evidence.rotary,
)
TARGET = Cause(
    words="the drafter was trained for another target",
    check="the target named in the drafter's model card; a fine-tuned target counts as another one",
    look=evidence.other_target,
)
QUANTISED = Cause(
    words="the target is quantised differently",
    check="record a run without --quantization and --kv-cache-dtype, then use driftscope compare",
    look=evidence.quantised_target,
)
GRAPH = Cause(
    words="the drafter fails only in a graph, or only when compiled",
    check="record a run with --enforce-eager, then use driftscope compare",
    look=evidence.execution,
)
TEMPLATE = Cause(
    words="the chat template renders prompts differently from training",
    check="run driftscope replay --suite template, which shows acceptance by chat template",
    look=evidence.prompts,
)
SAMPLING = Cause(
    words="the target is sampled while the drafter drafts greedily",
    check="record a run at temperature 0, or on vLLM's V2 runner",
    look=evidence.sampling,
)
CACHE = Cause(
    words="the drafter's KV cache holds wrong entries",
    check="use driftscope analyze --where 'prompt_tokens < 2000', and record a run without prefix "
    "caching and chunked prefill",
    look=evidence.drafter_cache,
)
POSITIONS = Cause(
    words="positions do not advance along the chain, or the drafter's sliding window is ignored",
    check="check sliding_window and rope_scaling in the drafter's config.json; try another version "
    "of the engine",
)
TRAINED_DEPTHS = Cause(
    words="the drafter was trained for fewer depths",
    check="compare the number of speculative steps in its training (ttt_length, "
    "num_speculative_steps) with num_speculative_tokens",
    look=evidence.depths_trained,
)
LIMIT = Cause(
    words="something ends chains at this depth",
    check="check the drafter's max_position_embeddings, num_speculative_tokens_per_batch_size and "
    "the sizes of captured graphs",
)

CAUSES: Mapping[Loss, tuple[Cause, ...]] = {
    Loss.NOTHING: (NORM_FLAG, LAYERS, TOKEN_IDS, EMBEDDING, ROPE, TARGET, QUANTISED, GRAPH),
    Loss.LOW: (
        LAYERS,
        NORM_FLAG,
        TEMPLATE,
        TARGET,
        QUANTISED,
        SAMPLING,
        EMBEDDING,
        ROPE,
        CACHE,
        GRAPH,
    ),
    Loss.FALLS: (NORM_FLAG, TRAINED_DEPTHS, POSITIONS, ROPE, LAYERS, CACHE, GRAPH),
    Loss.STOPS: (TRAINED_DEPTHS, LIMIT, GRAPH, NORM_FLAG, CACHE),
}
"""Causes by the way in which acceptance is lost."""
WITHOUT_WEIGHTS = CHOOSES_LENGTH
"""vLLM's methods that look drafts up without model weights; none of these causes applies to
them."""
