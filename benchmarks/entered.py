"""Count what the product is made of, and what its two main commands enter: `make size`.

Prints the lines and modules of each room, then how many of the product's files and functions
`analyze` and `check` of a recorded run enter. A function is entered if it is called at least once,
at import or later; a class body and a module are none.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).parents[1]
PRODUCT = ("driftscope", "probes", "reports", "lab", "benchmarks")
RUN = ROOT / "reports" / "gallery" / "traces" / "drifting"
_NO_FUNCTIONS = ("<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


def lines_by_room() -> Iterator[tuple[str, int, int]]:
    """Yield the name, lines and non-empty modules of each room."""
    lines, modules = Counter[str](), Counter[str]()
    for top in PRODUCT:
        for path in (ROOT / top).rglob("*.py"):
            folders = path.relative_to(ROOT).parts[:-1]
            room = "/".join(folders[:2] if top == "driftscope" else folders[:1])
            number = len(path.read_text(encoding="utf-8").splitlines())
            lines[room] += number
            modules[room] += number > 0
    for room in sorted(lines):
        yield room, lines[room], modules[room]


def entered(arguments: list[str]) -> tuple[int, int]:
    """Run a command in this process; return how many of the product's files and functions it
    enters."""
    from driftscope.cli.app import main

    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.argv = ["driftscope", *arguments]
    streams = (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()))
    with streams[0], streams[1], warnings.catch_warnings(), contextlib.suppress(SystemExit):
        warnings.simplefilter("ignore")
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            main()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    folders = tuple(f"{ROOT / top}/" for top in PRODUCT[:-1])
    own_codes = [code for code in codes if code.co_filename.startswith(folders)]
    named = [code for code in own_codes if code.co_name not in _NO_FUNCTIONS]
    functions = {code for code in named if code.co_flags & 0x2}  # has its own locals: no class body
    return len({code.co_filename for code in functions}), len(functions)


def main_command() -> None:
    """Print both tables."""
    total = Counter[str]()
    for room, lines, modules in lines_by_room():
        print(f"{room:32}{lines:8,} lines{modules:6,} modules")
        total.update(lines=lines, modules=modules)
    print(f"{'product':32}{total['lines']:8,} lines{total['modules']:6,} modules")
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "analyze": ["analyze", str(RUN), "-q", "-o", f"{folder}/report.html"],
            "check": ["check", str(RUN), "--fail-on", "high"],
        }
        for name, arguments in commands.items():
            # A process each: what another command has imported or cached is not entered again.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                files, functions = process.submit(entered, arguments).result()
            print(f"{name} enters {files} files and {functions} functions")


if __name__ == "__main__":
    main_command()
