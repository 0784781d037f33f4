"""Kill a thread from outside, as nothing in Python does by itself."""

from __future__ import annotations

import ctypes
import threading


def kill(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread at the next line that it executes."""
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
