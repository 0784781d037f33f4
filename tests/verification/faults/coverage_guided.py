"""Feed readers with coverage-guided bytes: `make faults-coverage` (FAULTS_MINUTES=1).

The first byte selects the reader. An error without a clear message ends the process, and libFuzzer
writes the bytes to a file `crash-...`; `python -m verification.faults.coverage_guided FILE` repeats
them.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["driftscope", "sqlglot"]):
    from support.odd_runs import ROOT

    from driftscope.analysis.conditions import condition_of
    from driftscope.errors import DriftscopeError
    from driftscope.trace.manifest import MANIFEST, read_manifest
    from driftscope.trace.status import read_statuses
    from driftscope.trace.streams import read_stream

KILLED = ROOT / "tests/unit/trace/data/run-killed"
_FOLDER = Path(tempfile.mkdtemp(prefix="driftscope-coverage-"))


def _written(name: str, content: bytes) -> Path:
    path = _FOLDER / name
    path.write_bytes(content)
    return path


def _manifest(content: bytes) -> None:
    read_manifest(_written(MANIFEST, content).parent)


def _status(content: bytes) -> None:
    read_statuses(_written("status-worker0-1.json", content).parent)


def _condition(content: bytes) -> None:
    condition_of(content.decode("utf-8", "surrogateescape"))


def _stream(content: bytes) -> None:
    try:
        read_stream(_written("verify-worker0-1-0000.arrows", content))
    except (ValueError, OSError):  # as documented for invalid Arrow streams
        return


READERS: tuple[Callable[[bytes], None], ...] = (_manifest, _status, _condition, _stream)


def read(content: bytes) -> None:
    """Pass the bytes after the first one to the selected reader."""
    if not content:
        return
    try:
        READERS[content[0] % len(READERS)](content[1:])
    except DriftscopeError as error:
        assert "\n" not in str(error), "an error of several lines"


def write_seeds(folder: Path) -> None:
    """Write sound inputs as seeds."""
    seeds = [
        b"\0" + (KILLED / MANIFEST).read_bytes(),
        b"\1" + next(KILLED.glob("status-*.json")).read_bytes(),
        b"\2" + b"label = 'chat' and (context > 4096 or not k in (2, 4)) and batch between 1 and 2",
        *(b"\3" + path.read_bytes() for path in sorted(KILLED.glob("*.arrows"))),
    ]
    for number, content in enumerate(seeds):
        (folder / f"seed-{number}").write_bytes(content)


def main() -> None:
    """Run libFuzzer with the given options."""
    files = [each for each in sys.argv[1:] if not each.startswith("-")]
    arguments = list(sys.argv)
    if not files:
        seeds = tempfile.mkdtemp(prefix="driftscope-seeds-")
        write_seeds(Path(seeds))
        arguments.append(seeds)
    atheris.Setup(arguments, read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
