"""A repository is read from the local cache, and downloaded into it only where permitted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkpoints import changed
from support.hub import cached, hub

from driftscope.errors import EXIT_ERROR, EXIT_OK

pytestmark = pytest.mark.process
NAME = "someone/drafter"


def _inspect(
    cache: Path, *options: str, endpoint: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Inspect the repository in a process of its own: huggingface_hub reads its settings once."""
    settings = {"HF_HUB_CACHE": str(cache), "HF_HOME": str(cache / "home")}
    settings |= {"HF_ENDPOINT": endpoint} if endpoint else {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "driftscope", "inspect", NAME, "--json", *options]
    return subprocess.run(
        command,
        env={**os.environ, **settings, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_cached_repository_needs_no_permission(tmp_path: Path) -> None:
    cached(tmp_path / "cache", NAME, changed(tmp_path / "a"))
    for options in ((), ("--download",)):  # offline, permission changes nothing
        done = _inspect(tmp_path / "cache", *options)
        assert done.returncode == EXIT_OK, done.stderr
        assert json.loads(done.stdout)["drafter"] == NAME


def test_without_cache_and_permission_the_error_names_the_option(tmp_path: Path) -> None:
    done = _inspect(tmp_path / "cache")
    assert done.returncode == EXIT_ERROR
    assert "--download" in done.stderr
    assert done.stderr.count("\n") == 1


def test_offline_a_download_is_one_error(tmp_path: Path) -> None:
    done = _inspect(tmp_path / "cache", "--download")
    assert done.returncode == EXIT_ERROR
    assert "cannot be downloaded" in done.stderr
    assert done.stderr.count("\n") == 1


def test_with_permission_weights_are_downloaded_and_pickles_are_not(tmp_path: Path) -> None:
    source = changed(tmp_path / "a")
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with hub(NAME, source) as (endpoint, asked):
        done = _inspect(tmp_path / "cache", "--download", endpoint=endpoint)
        assert done.returncode == EXIT_OK, done.stderr
        assert sorted(asked) == ["config.json", "model.safetensors"]
    assert json.loads(done.stdout)["sizes"]["parameters"] > 1_000_000
    assert _inspect(tmp_path / "cache").returncode == EXIT_OK


def test_a_repository_that_the_hub_does_not_have_is_one_error(tmp_path: Path) -> None:
    with hub("someone/else", changed(tmp_path / "a")) as (endpoint, _):
        done = _inspect(tmp_path / "cache", "--download", endpoint=endpoint)
    assert done.returncode == EXIT_ERROR
    assert done.stderr.count("\n") == 1
