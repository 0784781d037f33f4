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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.command import run_command
from support.hostile.server import hostile_server, page_of

from driftscope.regions import text_regions
from verification.cases.catalogue import CASES, INPUTS, KINDS, Case, Step
from verification.cases.checkpoints import write_checkpoints

REGIONS = "regions"
"""First word of a step that labels answers, which no command does."""
WIDTH = 100


@contextmanager
def prepared(folder: Path) -> Iterator[str]:
    """Write the inputs of all cases into a folder, and yield the URL that serves each NAME.prom at
    /NAME/metrics."""
    for file in INPUTS.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    write_checkpoints(folder)
    pages = {file.stem: page_of(file.read_text()) for file in INPUTS.glob("*.prom")}
    with hostile_server(**pages) as server:
        yield server.url("").rstrip("/")


def answer(case: Case, folder: Path, url: str) -> tuple[list[str], list[str]]:
    """Run the commands of a case in `folder`, which has its inputs. Return the output of each
    command, and what is absent from the outputs or should be."""
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
    return printed, faults


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
    """Run the cases that are asked for; print each, and the table by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NUMBER", nargs="*", help="numbers of cases")
    parser.add_argument("--quick", action="store_true", help="without cases that take a minute")
    options = parser.parse_args()
    right = {}
    with tempfile.TemporaryDirectory() as folder, prepared(Path(folder)) as url:
        for name, case in CASES.items():
            if (options.only and name.split()[0] not in options.only) or (
                options.quick and case.slow
            ):
                continue
            printed, faults = answer(case, Path(folder), url)
            right[name] = not faults
            print(f"\n{name}: {'wrong' if faults else 'right'}\n  right:   {case.right}")
            for step, text in zip(case.steps, printed, strict=True):
                print(f"  typed:   {' '.join(step.words)}"[: WIDTH + 60])
                print(f"  printed: {_shown(step, text)}")
            for fault in faults:
                print(f"  WRONG    {fault}")
    print()
    for kind, cases in KINDS.items():
        if asked := [right[name] for name in cases if name in right]:
            print(f"{kind:22} {sum(asked):3} of {len(asked):3} right")
    print(f"{sum(right.values())} of {len(right)} right")
    return int(not all(right.values()))


if __name__ == "__main__":
    sys.exit(main())
