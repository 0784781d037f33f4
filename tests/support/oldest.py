"""Pin the oldest base dependencies that pyproject.toml files allow, one requirement per line."""

from __future__ import annotations

import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def oldest(requirement: str) -> str:
    """Return `name>=version` as `name==version`; raises ValueError for any other form."""
    name, found, version = requirement.partition(">=")
    if not found or not version or set(version) - set("0123456789."):
        raise ValueError(
            f"pyproject.toml: {requirement!r} has no lower bound alone; give name>=1.2"
        )
    return f"{name}=={version}"


def main() -> None:
    """Print the pins of what both halves depend on."""
    probe, whole = (
        tomllib.loads((CHECKOUT / name / "pyproject.toml").read_text(encoding="utf-8"))
        for name in ("probes", ".")
    )
    asked = whole["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]
    for requirement in sorted([*probe["project"]["dependencies"], *asked]):
        print(oldest(requirement))


if __name__ == "__main__":
    main()
