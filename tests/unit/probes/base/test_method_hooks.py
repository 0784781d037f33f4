"""A hooked method is the original to whoever looks at it, and is called as it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from driftscope_probes.guard import hook_method, hook_object


class Base:
    def step(self, tokens: int, *, draft: bool = False) -> tuple[int, bool]:
        """Return the arguments."""
        return tokens, draft


class Derived(Base):
    pass


def _doubled(original: Any) -> Callable[..., Any]:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return 2 * original(self, *args, **kwargs)

    return step


@pytest.fixture
def module() -> SimpleNamespace:
    return SimpleNamespace(Base=type("Base", (Base,), {"step": Base.step}), Derived=Derived)


def test_every_object_of_a_hooked_class_calls_the_hook(module: SimpleNamespace) -> None:
    before = module.Base()
    hook_method(module, "Base.step", _doubled)
    assert before.step(3, draft=True) == (3, True, 3, True)
    assert module.Base.step(before, 1) == (1, False, 1, False)
    assert Base().step(3) == (3, False), "only of the class that was named"


def test_a_hooked_method_looks_like_the_original(module: SimpleNamespace) -> None:
    hook_method(module, "Base.step", _doubled)
    hooked = module.Base.step
    assert inspect.signature(hooked) == inspect.signature(Base.step)
    assert (hooked.__name__, hooked.__doc__) == ("step", Base.step.__doc__)
    assert hooked.__wrapped__ is Base.step


def test_an_inherited_method_is_hooked_for_the_derived_class_alone() -> None:
    derived = type("Derived", (Base,), {})
    hook_method(SimpleNamespace(Derived=derived), "Derived.step", _doubled)
    assert derived().step(1) == (1, False, 1, False)
    assert Base().step(1) == (1, False)


def test_one_object_is_hooked_and_no_other() -> None:
    one, other = Derived(), Derived()
    hook_object(one, "step", _doubled)
    assert one.step(2) == (2, False, 2, False)
    assert other.step(2) == (2, False)


@pytest.mark.parametrize("name", ["Base.gone", "Gone.step"])
def test_what_is_not_there_cannot_be_hooked(module: SimpleNamespace, name: str) -> None:
    with pytest.raises(AttributeError):
        hook_method(module, name, _doubled)
    with pytest.raises(AttributeError):
        hook_object(Derived(), "gone", _doubled)
