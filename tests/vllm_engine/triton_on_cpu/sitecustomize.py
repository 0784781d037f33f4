"""Lets vLLM's V2 model runner, whose kernels are Triton's, run on a CPU in Triton's interpreter.

vLLM decides whether Triton is usable when it is first imported, by asking for an active backend, so
one has to be there before. Put this folder on PYTHONPATH of the engine's processes; tests only.
"""

import os

if os.environ.get("DRIFTSCOPE_TRITON_ON_CPU") == "1":
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.backends

    class _Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    triton.backends.backends.setdefault(
        "cpu", triton.backends.Backend(compiler=None, driver=_Driver)
    )
