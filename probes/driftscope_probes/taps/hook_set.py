"""The set of hooks on a drafter's modules, which is installed and removed as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Remove = Callable[[], None]
"""Function that removes one installed hook."""
Hook = Callable[[], Remove]
"""Function that installs one hook."""


class HookSet:
    """The hooks of one drafter.

    ===================  =======================================================================
    `attach(hooks)`      install the hooks for the first time
    `uninstall()`        remove them during a step that is not recorded, if they may be removed
    `install()`          install them again
    `detach()`           remove them for good
    ===================  =======================================================================
    """

    def __init__(self, *, removable: bool) -> None:
        """`removable`: no graph or compiled code has captured the hooks."""
        self._removable = removable
        self._hooks: tuple[Hook, ...] = ()
        self._installed: list[Remove] = []

    def attach(self, hooks: Iterable[Hook]) -> None:
        """Install `hooks`, which are this set's from now on."""
        self._hooks = tuple(hooks)
        self.install()

    def install(self) -> None:
        """Install the hooks for a step that is recorded."""
        if not self._installed:
            for hook in self._hooks:
                self._installed.append(hook())  # removed if a later one fails

    def uninstall(self) -> None:
        """Remove the hooks for a step that is not recorded: even idle hooks cost time."""
        if self._removable:
            self._remove_all()

    def detach(self) -> None:
        """Remove every hook for good, in reverse order."""
        self._hooks = ()
        self._remove_all()

    def _remove_all(self) -> None:
        while self._installed:
            self._installed.pop()()
