"""Child process of the demonstration: one drafter in vLLM, with the probe started by environment.

python -m driftscope_lab.demo.vllm_engine DRAFTER PROMPTS
"""

from __future__ import annotations

import sys

from driftscope_lab.demo import BATCH, MAX_TOKENS, K, requests
from driftscope_lab.trio import trio_path
from driftscope_probes.vllm.scheduler.request_label import LABEL


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
    engine, waiting = llm.llm_engine, list(enumerate(requests(int(sys.argv[2]))))[::-1]
    while waiting or engine.has_unfinished_requests():
        # Use a closed loop, so that no request's time to first token includes queueing.
        while waiting and engine.get_num_unfinished_requests() < BATCH:
            number, item = waiting.pop()
            sampling = SamplingParams(
                temperature=0,
                max_tokens=MAX_TOKENS,
                detokenize=False,
                extra_args={LABEL: item.label},
            )
            engine.add_request(str(number), {"prompt_token_ids": item.token_ids}, sampling)
        engine.step()


if __name__ == "__main__":
    main()
