"""Child process of the demonstration without vLLM: one drafter in the reference engine.

python -m driftscope_lab.demo.reference_engine DRAFTER PROMPTS RUN
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from driftscope_lab.demo import MAX_TOKENS, K, requests
from driftscope_lab.trio import trio_path


def main() -> None:
    """Generate each prompt in both conditions and record it."""
    import torch

    from driftscope.inspect.reference.engine import ReferenceRun

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    weights = trio_path()
    with ReferenceRun(Path(sys.argv[3]), weights / "target", weights / sys.argv[1], k=K) as run:
        for item in requests(int(sys.argv[2])):
            run.generate(item.token_ids, max_tokens=MAX_TOKENS, label=item.label)


if __name__ == "__main__":
    main()
