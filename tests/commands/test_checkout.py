"""Files of the checkout that tools read: the checks before a commit, the types, the site."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
HOOKS = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
PYPROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_checks_before_a_commit_need_no_network() -> None:
    assert [repo["repo"] for repo in HOOKS] == ["local"]
    assert {hook["language"] for hook in HOOKS[0]["hooks"]} <= {"system", "pygrep"}


def test_comments_to_the_formatter_are_refused() -> None:
    (pattern,) = (h["entry"] for h in HOOKS[0]["hooks"] if h["language"] == "pygrep")
    assert re.search(pattern, "x = 1  # fmt: " + "skip")
    assert re.search(pattern, "# fmt:" + "off")
    assert not re.search(pattern, "# format: skip")


def test_the_tools_of_the_checks_are_in_the_dev_extra() -> None:
    dev = {
        re.split(r"[<>=\[]", each)[0]
        for each in PYPROJECT["project"]["optional-dependencies"]["dev"]
    }
    assert {"import-linter", "mkdocs-material", "mypy", "pre-commit", "ruff"} <= dev


@pytest.mark.parametrize(
    "package", PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
)
def test_each_package_is_typed(package: str) -> None:
    assert (CHECKOUT / package / "py.typed").exists()
