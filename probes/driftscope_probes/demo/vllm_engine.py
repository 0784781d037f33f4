"""Child process of the demonstration: one drafter in a real vLLM; the environment starts the probe.

python -m driftscope_probes.demo.vllm_engine DRAFTER
"""

from __future__ import annotations

import sys

from driftscope_probes.demo import BATCH, MAX_TOKENS, K, requests
from driftscope_probes.trio import trio_path
from driftscope_probes.vllm_engine import LABEL


def main() -> None:
    """Serve every request; the plugin records."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(trio_path() / "target"),
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=BATCH,
        enforce_eager=True,
        speculative_config={
            "method": "eagle3",
            "model": str(trio_path() / sys.argv[1]),
            "num_speculative_tokens": K,
        },
    )
    items = requests()
    sampling = [
        SamplingParams(
            temperature=0, max_tokens=MAX_TOKENS, detokenize=False, extra_args={LABEL: item.label}
        )
        for item in items
    ]
    prompts = [{"prompt_token_ids": item.token_ids} for item in items]
    llm.generate(prompts, sampling, use_tqdm=False)


if __name__ == "__main__":
    main()
