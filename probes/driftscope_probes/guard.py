"""The border between the probe and its host: methods of the engine are hooked, and exceptions that
hooks raise are caught and counted here.

The wrappers are plain functions. A step's hooks run between two forwards, when none of their code
is in the processor's caches; there the object that `wrapt` binds for each call takes as long as the
rest of an unrecorded step. As with `functools.wraps`, inspection of a hooked method shows the
original signature, and `__wrapped__` is the original.
"""

from __future__ import annotations

import functools
import inspect
import operator
import time
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from driftscope.trace.writer import TraceWriter

T = TypeVar("T")


class Account(Protocol):
    """Object that accumulates the time spent in hooks, such as a TraceWriter."""

    probe_s: float


class _Core:
    probe_s = 0.0


CORE: Account = _Core()
"""Time of the engine core's hooks, if the engine core shares this process with a worker."""


class InjectedError(Exception):
    """Raised inside every hook if DRIFTSCOPE_TEST_RAISE is set."""


class Guard:
    """Runs hooks: measures their time, swallows and counts the exceptions that they raise.

    Values that callers read or set at every step are plain attributes.
    """

    def __init__(
        self, writer: TraceWriter, *, test_raise: str = "", adds_to: tuple[Account, ...] = ()
    ) -> None:
        """`adds_to`: further accounts that the time is added to."""
        self._writer, self._test_raise, self._adds_to = writer, test_raise, adds_to
        self.taken_s = 0.0
        """Total time spent in hooks, in seconds, on the thread that runs them."""
        self.failed = False
        """Whether a hook has raised since the last reset: the captured data is then incomplete."""

    def succeeds(self, hook: str, action: Callable[..., None], *args: Any) -> bool:
        """Run `action(*args)`; return False if it raised."""
        self.failed = False
        self.run(hook, action, *args)
        return not self.failed

    def run(self, hook: str, action: Callable[..., T], *args: Any) -> T | None:
        """Return the value of `action(*args)`, or None if it raised."""
        start = time.perf_counter()
        try:
            return self._tested(hook, action, args) if self._test_raise else action(*args)
        except Exception as error:  # the serving path never raises
            self.failed = True
            self._writer.count_error(hook, error)
            return None
        finally:
            seconds = time.perf_counter() - start
            self.taken_s += seconds
            for account in self._adds_to:
                account.probe_s += seconds

    def run_all(self, calls: Iterable[tuple[Any, ...]]) -> None:
        """Run several hooks, each given as the arguments of `run`; one that raises ends no other.

        They are timed together: between two forwards, reading the clock for each of them takes as
        long as a short hook.
        """
        if self._test_raise:
            for call in calls:
                self.run(*call)
            return
        start = time.perf_counter()
        for hook, action, *args in calls:
            try:
                action(*args)
            except Exception as error:  # the serving path never raises
                self.failed = True
                self._writer.count_error(hook, error)
        seconds = time.perf_counter() - start
        self.taken_s += seconds
        for account in self._adds_to:
            account.probe_s += seconds

    def _tested(self, hook: str, action: Callable[..., T], args: tuple[Any, ...]) -> T:
        if self._test_raise == "before":
            raise InjectedError(hook)
        action(*args)
        raise InjectedError(hook)


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


def is_hooked(holder: Any, method: str) -> bool:
    """Return whether the method of an object's class is replaced, and not overridden below it;
    False if the class has no such method."""
    return hasattr(inspect.getattr_static(type(holder), method, None), MARK)


def hook_unhooked(holder: Any, method: str, around: Around) -> None:
    """Replace a method of one object unless its class's method is replaced; raises
    AttributeError if it is missing."""
    if not is_hooked(holder, method):
        hook_object(holder, method, around)


def _in_place_of(original: Any, around: Around) -> Callable[..., Any]:
    hooked = functools.wraps(original)(around(original))
    setattr(hooked, MARK, True)
    return hooked
