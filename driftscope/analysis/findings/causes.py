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
    check="fc_norm, norm_output, norm_before_fc and norm_before_residual in the drafter's "
    "config.json against its training; norm_flags in the run's manifest.json is what was loaded",
    look=evidence.norm_flags,
)
LAYERS = Cause(
    words="other target layers are captured than in training",
    check="eagle_aux_hidden_state_layer_ids in the drafter's config.json against its training; "
    "aux_layers in the run's manifest.json is what was captured",
    look=evidence.captured_layers,
)
TOKEN_IDS = Cause(
    words="draft ids are mapped to the wrong target ids (d2t), or the head is not the drafter's",
    check="d2t in the drafter's model.safetensors: id + d2t[id] is the target's id; "
    "draft_vocab_size against the rows of lm_head.weight",
    look=evidence.token_ids,
)
EMBEDDING = Cause(
    words="the embedding or the head is not shared as in training",
    check="whether the drafter's model.safetensors has embed_tokens.weight and lm_head.weight, and "
    "tie_word_embeddings in its config.json",
    look=evidence.embedding,
)
ROPE = Cause(
    words="the rotary positions are others than in training",
    check="rope_theta and rope_scaling in the drafter's config.json against its training",
    look=evidence.rotary,
)
TARGET = Cause(
    words="the drafter belongs to another target",
    check="the target that the drafter's model card names; a fine-tuned target is another one",
    look=evidence.other_target,
)
QUANTISED = Cause(
    words="the target is quantised differently",
    check="a run without --quantization and --kv-cache-dtype, then driftscope compare",
    look=evidence.quantised_target,
)
GRAPH = Cause(
    words="the drafter fails in a graph, or where it is compiled, only",
    check="a run with --enforce-eager, then driftscope compare",
    look=evidence.execution,
)
TEMPLATE = Cause(
    words="prompts are rendered in another way than in training",
    check="driftscope replay --suite template: acceptance by chat template",
    look=evidence.prompts,
)
SAMPLING = Cause(
    words="the target is sampled and the drafter guesses greedily",
    check="a run at temperature 0, or on vLLM's V2 runner",
    look=evidence.sampling,
)
CACHE = Cause(
    words="the drafter's cache holds wrong slots",
    check="driftscope analyze --where 'prompt_tokens < 2000', and a run without prefix caching and "
    "chunked prefill",
    look=evidence.drafter_cache,
)
POSITIONS = Cause(
    words="positions do not advance along the chain, or the drafter's sliding window is ignored",
    check="sliding_window and rope_scaling in the drafter's config.json; another version of the "
    "engine",
)
TRAINED_DEPTHS = Cause(
    words="the drafter was trained for fewer depths",
    check="the number of speculative steps of its training (ttt_length, num_speculative_steps) "
    "against num_speculative_tokens",
    look=evidence.depths_trained,
)
LIMIT = Cause(
    words="something cuts chains at this depth",
    check="max_position_embeddings of the drafter, num_speculative_tokens_per_batch_size and the "
    "sizes of captured graphs",
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
WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")
"""vLLM's methods that look drafts up without model weights; none of these causes applies to
them."""
