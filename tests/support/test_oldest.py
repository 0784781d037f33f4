"""The pins of `make oldest` are the lower bounds of pyproject.toml."""

from __future__ import annotations

import pytest
from support.oldest import dependencies, main, oldest_of


def test_a_lower_bound_becomes_a_pin() -> None:
    assert oldest_of(["numpy>=1.26", "ibis-framework[duckdb]>=10"]) == [
        "numpy==1.26",
        "ibis-framework[duckdb]==10",
    ]


@pytest.mark.parametrize("requirement", ["numpy", "numpy>=1.26,<2", "numpy~=1.26", "numpy>="])
def test_a_requirement_without_a_lower_bound_alone_is_refused(requirement: str) -> None:
    with pytest.raises(ValueError, match="has no lower bound alone"):
        oldest_of([requirement])


def test_every_base_dependency_is_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    pins = capsys.readouterr().out.splitlines()
    assert [pin.replace("==", ">=") for pin in pins] == dependencies()
    names = {pin.partition("==")[0] for pin in pins}
    assert {"pyarrow", "wrapt", "duckdb", "scipy"} <= names
