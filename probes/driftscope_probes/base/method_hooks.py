"""Puts functions of driftscope around methods of vLLM.

Plain functions: what a step passes through is called between two forwards, when nothing of it is in
the processor's caches, and there the object that `wrapt` binds for each call takes as long as the
rest of a passed step. As `functools.wraps` does it, who looks at a hooked method sees the original
signature and finds the original as `__wrapped__`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any

Around = Callable[[Any], Callable[..., Any]]
"""Gets the original, which takes its `self` first, and returns what stands in its place."""
MARK = "__driftscope__"
"""Attribute of what stands in a method's place."""


def hook_method(module: Any, name: str, around: Around) -> None:
    """Replace `Class.method` of `module` for all its objects; raises AttributeError."""
    owner_name, _, method = name.rpartition(".")
    owner = operator.attrgetter(owner_name)(module)
    setattr(owner, method, _in_place_of(inspect.getattr_static(owner, method), around))


def hook_object(holder: Any, method: str, around: Around) -> None:
    """Replace a method of one object; raises AttributeError."""
    original = inspect.getattr_static(type(holder), method)
    setattr(holder, method, types.MethodType(_in_place_of(original, around), holder))


def _in_place_of(original: Any, around: Around) -> Callable[..., Any]:
    hooked = functools.wraps(original)(around(original))
    setattr(hooked, MARK, True)
    return hooked
