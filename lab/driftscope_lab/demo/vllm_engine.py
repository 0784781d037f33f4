"""Child process of the demonstration: one drafter in vLLM, with the probe started by environment.

python -m driftscope_lab.demo.vllm_engine DRAFTER PROMPTS
"""

from __future__ import annotations

import sys

from driftscope_lab.demo import BATCH, CONTEXT, MAX_TOKENS, K, requests
from driftscope_lab.demo.closed_loop import Load, Request, serve
from driftscope_lab.trio import trio_path


def main() -> None:
    """Serve every request; the plugin records."""
    items = [
        Request(label=item.label, token_ids=item.token_ids) for item in requests(int(sys.argv[2]))
    ]
    load = Load(k=K, max_tokens=MAX_TOKENS, at_once=BATCH, context=CONTEXT)
    serve(trio_path() / "target", trio_path() / sys.argv[1], items, load)


if __name__ == "__main__":
    main()
