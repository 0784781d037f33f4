"""A stand-in for a runner's drafter that shows every forward to the taps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wrapt


class TappedModel(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """Replaces a runner's drafter and lets the taps see every forward.

    It is a proxy because vLLM's compiled classes replace `__call__`, so that module hooks never
    fire.
    """

    def __init__(self, model: Any, around: Callable[..., Any]) -> None:
        super().__init__(model)
        self._self_around = around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a forward of the drafter."""
        return self._self_around(self.__wrapped__, *args, **kwargs)
