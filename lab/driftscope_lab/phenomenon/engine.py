"""Child process that records one drafter under every condition in vLLM.

python -m driftscope_lab.phenomenon.engine WEIGHTS DRAFTER [PROMPTS]
"""

from __future__ import annotations

import sys
from pathlib import Path

from driftscope_lab.demo.vllm_engine import Load, Request, serve
from driftscope_lab.phenomenon.recording import items
from driftscope_lab.trio import encode, load_prompts

K = 8
MAX_TOKENS = 96
LOAD = Load(k=K, max_tokens=MAX_TOKENS, at_once=8, context=2048)


def main() -> None:
    """Serve every prompt in every condition; the plugin records."""
    weights, drafter = Path(sys.argv[1]), Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else None
    requests = [
        Request(label=item.condition, session=item.prompt, token_ids=encode(item.text, weights))
        for item in items(load_prompts(weights)[:count], lambda text: len(encode(text, weights)))
    ]
    serve(weights / "target", drafter, requests, LOAD)


if __name__ == "__main__":
    main()
