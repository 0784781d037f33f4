"""Options for serving the shipped trio on a machine without a GPU."""

from __future__ import annotations

OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--dtype", "float32"),
    ("--max-model-len", "1024"),
    ("--max-num-seqs", "16"),
    ("--served-model-name", "tiny"),
    ("--enforce-eager",),
)
"""Options of vLLM. CPUs compute float32; eager, because compiling costs more than such small models
gain; 1024 is the longest context that the models were trained on."""
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
