"""How the shipped trio is served on a machine without a GPU."""

from __future__ import annotations

OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--dtype", "float32"),
    ("--max-model-len", "1024"),
    ("--max-num-seqs", "16"),
    ("--served-model-name", "tiny"),
    ("--enforce-eager",),
)
"""Of vLLM. float32, because CPUs compute it; eager, because the models are smaller than what
compiling them costs; 1024 is the longest context that they were trained on."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
