"""Takes the sum over tensor-parallel ranks out of vLLM's EAGLE-3 drafter, as an engine's bug would.

Each process of an engine reads this from its PYTHONPATH.
"""

from __future__ import annotations

from typing import Any

import wrapt


def _install(module: Any) -> None:
    layer = module.LlamaDecoderLayer
    original = layer.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.mlp.down_proj.reduce_results = False

    layer.__init__ = init


wrapt.register_post_import_hook(_install, "vllm.model_executor.models.llama_eagle3")
