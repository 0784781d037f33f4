"""Pin the oldest base dependencies that pyproject.toml files allow, one requirement per line."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]


def oldest_of(requirements: Iterable[str]) -> list[str]:
    """Return each `name>=version` as `name==version`; raises ValueError for any other form."""
    return [_oldest(requirement) for requirement in requirements]


def _oldest(requirement: str) -> str:
    name, found, version = requirement.partition(">=")
    if not found or not version or set(version) - set("0123456789."):
        raise ValueError(
            f"pyproject.toml: {requirement!r} has no lower bound alone; give name>=1.2"
        )
    return f"{name}=={version}"


def dependencies() -> list[str]:
    """Return what both halves depend on, sorted."""
    probe = _pyproject("probes/pyproject.toml")["project"]
    whole = _pyproject("pyproject.toml")["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    return sorted([*probe["dependencies"], *whole["dependencies"]])


def _pyproject(path: str) -> dict[str, Any]:
    return tomllib.loads((CHECKOUT / path).read_text(encoding="utf-8"))


def main() -> None:
    """Print the pins."""
    sys.stdout.write("\n".join(oldest_of(dependencies())) + "\n")


if __name__ == "__main__":
    main()
