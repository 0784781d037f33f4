"""Wraps methods of vLLM in functions of driftscope.

The wrappers are plain functions. A step's hooks run between two forwards, when none of their code
is in the processor's caches; there the object that `wrapt` binds for each call takes as long as the
rest of an unrecorded step. As with `functools.wraps`, inspection of a hooked method shows the
original signature, and `__wrapped__` is the original.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any

Around = Callable[[Any], Callable[..., Any]]
"""Function that takes the original, whose first argument is `self`, and returns the replacement."""
MARK = "__driftscope__"
"""Attribute that marks a replaced method."""


def hook_method(module: Any, name: str, around: Around) -> None:
    """Replace `Class.method` of `module` for all instances; raises AttributeError."""
    owner_name, _, method = name.rpartition(".")
    owner = operator.attrgetter(owner_name)(module)
    setattr(owner, method, _in_place_of(inspect.getattr_static(owner, method), around))


def hook_object(holder: Any, method: str, around: Around) -> None:
    """Replace a method of one object; raises AttributeError if it is missing."""
    original = inspect.getattr_static(type(holder), method)
    setattr(holder, method, types.MethodType(_in_place_of(original, around), holder))


def hook_unhooked(holder: Any, method: str, around: Around) -> None:
    """Replace a method of one object unless its class's method is replaced; raises
    AttributeError if it is missing."""
    if not hasattr(inspect.getattr_static(type(holder), method), MARK):
        hook_object(holder, method, around)


def _in_place_of(original: Any, around: Around) -> Callable[..., Any]:
    hooked = functools.wraps(original)(around(original))
    setattr(hooked, MARK, True)
    return hooked
