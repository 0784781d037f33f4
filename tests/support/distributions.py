"""Builds the wheels of this checkout, and environments with nothing but them."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from collections.abc import Collection, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PROJECTS = {"driftscope": ".", "driftscope-probe": "probes", "driftscope-lab": "lab"}
"""Folder of each distribution's pyproject.toml."""
SOURCES = (
    "LICENSE",
    "README.md",
    "driftscope",
    "hatch_build.py",
    "lab",
    "probes",
    "pyproject.toml",
    "reports/driftscope_reports",
)
"""Everything that the wheels are built from."""
PATHS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
EPOCH = "1700000000"
"""Time of change of every file in the wheels, in seconds."""
LIMIT_S = 600


def clean_environ() -> dict[str, str]:
    """Return the environment variables without those that lead to this checkout."""
    return {
        k: v for k, v in os.environ.items() if k not in PATHS and not k.startswith("DRIFTSCOPE_")
    }


def attempt(
    *command: object, cwd: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command away from the checkout, whatever its exit code."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**clean_environ(), "NO_COLOR": "1", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def run(
    *command: object, cwd: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command away from the checkout; it must succeed."""
    done = attempt(*command, cwd=cwd, environ=environ)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def build_wheels(
    folder: Path, checkout: Path = CHECKOUT, environ: Mapping[str, str] | None = None
) -> dict[str, Path]:
    """Build the wheel of every distribution into `folder`; return them by distribution."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder)
    for project in PROJECTS.values():
        epoch = {"SOURCE_DATE_EPOCH": EPOCH, **(environ or {})}
        run(*command, checkout / project, cwd=folder, environ=epoch)
    found = {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}
    assert set(found) == set(PROJECTS)
    return found


def new_environment(folder: Path, *requirements: object) -> Path:
    """Make a virtual environment with what is given; return its `bin`."""
    venv.create(folder, with_pip=True)
    # Compiling every file of the dependencies takes longer than all that the tests then import.
    install = ("-m", "pip", "install", "--quiet", "--no-compile", *requirements)
    run(folder / "bin" / "python", *install, cwd=folder)
    return folder / "bin"


def lent_packages(environment: Path, folder: Path, without: Collection[str] = ()) -> dict[str, str]:
    """Return a PYTHONPATH of this environment's packages that `environment` lacks, but for some.

    An engine takes gigabytes and minutes to install. Nothing of driftscope is lent. `without` are
    beginnings of names.
    """
    folder.mkdir()
    (own,) = environment.parent.glob("lib/python*/site-packages")
    has = {_name(entry) for entry in own.iterdir()}
    for packages in map(Path, site.getsitepackages()):
        for entry in packages.iterdir():
            name = _name(entry)
            ours = name.startswith(("_driftscope", "driftscope", *without))
            if entry.suffix != ".pth" and name not in has and not ours:
                (folder / entry.name).symlink_to(entry)
    return {"PYTHONPATH": str(folder)}


def _name(entry: Path) -> str:
    """Return the package of an entry of site-packages, whatever its version."""
    return entry.name.partition(".dist-info")[0].partition("-")[0].lower()
