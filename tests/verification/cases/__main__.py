"""Public cases of people whose speculation did not pay, typed as they would type them, with the
right answer beside what is printed: `make cases`.

The files are those of public threads rebuilt small. A case is right if each of its commands prints
what leads to the thread's cause, prints nothing that misleads, and ends with the right exit code.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.command import run_command

from driftscope.regions import text_regions
from verification.cases.catalogue import CASES, INPUTS, Case, Step
from verification.cases.checkpoints import write_checkpoints

REGIONS = "regions"
"""First word of a step that labels answers, which no command does."""
WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A case with what was printed."""

    case: Case
    printed: tuple[str, ...]
    """Output of each command."""
    faults: tuple[str, ...]
    """What is absent from the output, or should be; () if the case is right."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve each NAME.prom of a folder at /NAME/metrics, and yield the URL."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file = folder / f"{self.path.strip('/').removesuffix('/metrics')}.prom"
            body = file.read_bytes() if file.exists() else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def prepared(folder: Path) -> Iterator[str]:
    """Write the inputs of all cases into a folder, and yield the URL that serves the pages."""
    for file in INPUTS.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    write_checkpoints(folder)
    with served(folder) as url:
        yield url


def answer(case: Case, folder: Path, url: str) -> Answered:
    """Run the commands of a case in `folder`, which has its inputs."""
    printed, faults = list[str](), list[str]()
    for step in case.steps:
        words = [word.replace("URL", url) for word in step.words]
        if words[0] == REGIONS:
            code, text = 0, labels(folder / words[1])
        else:
            done = run_command(*words, cwd=folder, warned="ignore", COLUMNS="200")
            code, text = done.returncode, f"{done.stdout}\n{done.stderr}"
        printed.append(text)
        faults += [f"{step.words[0]}: {fault}" for fault in _faults(step, code, text)]
    return Answered(case=case, printed=tuple(printed), faults=tuple(faults))


def labels(path: Path) -> str:
    """Return what each answer's argument, "Oslo", is labelled."""
    lines = []
    for name, text in json.loads(path.read_text()).items():
        at = text.find("Oslo")
        before = [region.region for region in text_regions(text) if region.start <= at]
        lines.append(f"{name} {before[-1] if before else 'none'}")
    return "\n".join(lines)


def _faults(step: Step, code: int, text: str) -> Iterator[str]:
    flat = " ".join(text.split())
    if code != step.code:
        yield f"exit code {code}, not {step.code}"
    for wanted in step.says:
        if not re.search(wanted, flat):
            yield f"does not print {wanted!r}"
    for unwanted in step.never:
        if found := re.search(unwanted, flat):
            yield f"prints {found[0]!r}"


def show(answers: Sequence[Answered]) -> None:
    """Print each case, and the table by kind."""
    for one in answers:
        case = one.case
        print(f"\n{case.number} {case.source}: {'wrong' if one.faults else 'right'}")
        print(f"  right:   {case.right}")
        for step, text in zip(case.steps, one.printed, strict=True):
            print(f"  typed:   {' '.join(step.words)}"[: WIDTH + 60])
            print(f"  printed: {_shown(step, text)}")
        for fault in one.faults:
            print(f"  WRONG    {fault}")
    right = Counter(one.case.kind for one in answers if not one.faults)
    print()
    for kind, cases in Counter(one.case.kind for one in answers).items():
        print(f"{kind:22} {right[kind]:3} of {cases:3} right")
    print(f"{right.total()} of {len(answers)} right")


def _shown(step: Step, text: str) -> str:
    """Return the part of an output that has what is wanted of it."""
    flat = " ".join(text.split())
    parts = []
    for wanted in step.says or (".",):
        if found := re.search(wanted, flat):
            start = max(flat.rfind(". ", 0, found.start()) + 2, found.start() - WIDTH // 2, 0)
            parts.append(flat[start : found.end() + WIDTH // 2])
    return " ... ".join(parts)


def main() -> int:
    """Run the cases that are asked for, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NUMBER", nargs="*", help="numbers of cases")
    parser.add_argument("--quick", action="store_true", help="without cases that take a minute")
    options = parser.parse_args()
    chosen = [
        case
        for case in CASES
        if (not options.only or case.number in options.only) and not (options.quick and case.slow)
    ]
    with tempfile.TemporaryDirectory() as name, prepared(Path(name)) as url:
        answers = [answer(case, Path(name), url) for case in chosen]
    show(answers)
    return int(any(one.faults for one in answers))


if __name__ == "__main__":
    sys.exit(main())
