"""engine_main.py in a process where one function of the probe raises.

DRIFTSCOPE_TEST_BREAK has the function as module:name and the exception that it raises.
"""

from __future__ import annotations

import builtins
import importlib
import operator
import os
import runpy
from pathlib import Path
from typing import Any


def main() -> None:
    function, error = os.environ["DRIFTSCOPE_TEST_BREAK"].split(" ")
    module, _, name = function.partition(":")
    owner, _, attribute = name.rpartition(".")
    holder: Any = importlib.import_module(module)
    holder = operator.attrgetter(owner)(holder) if owner else holder

    def fail(*_: Any, **__: Any) -> None:
        raise getattr(builtins, error)(f"made by a test in {function}")

    setattr(holder, attribute, fail)
    runpy.run_path(str(Path(__file__).with_name("engine_main.py")), run_name="__main__")


if __name__ == "__main__":
    main()
