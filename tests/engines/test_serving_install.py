"""A real vLLM with `driftscope-probe` from its wheel, without the packages of the analysis.

What it records is read here, by another install: that of this checkout.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.distributions import attempt, lent_packages, new_environment, run
from support.engine_process.serving import Server, serve

from driftscope.pipeline import summarise
from driftscope.trace.reader import read_trace

pytestmark = [pytest.mark.vllm, pytest.mark.nightly]

ANALYSIS = ("duckdb", "ibis", "pandas", "plotly", "scipy", "sqlglot")
"""Beginnings of the names of what only the distribution `driftscope` installs."""
REQUESTS = 4
TOKENS = 32
STOP_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A serving environment."""

    bin: Path
    environ: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def image(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    environment = new_environment(folder / "venv", wheels["driftscope-probe"])
    environ = lent_packages(environment, folder / "lent", without=ANALYSIS)
    return Image(bin=environment, environ=environ, folder=folder)


@pytest.fixture(scope="module")
def recorded(image: Image) -> Iterator[Server]:
    """A server that answered some requests and was stopped."""
    command = (str(image.bin / "driftscope"),)
    with serve(image.folder, command=command, environ=image.environ) as server:
        for number in range(REQUESTS):
            server.complete(f"r{number}", prompt=[5, 6, 7, number + 8], max_tokens=TOKENS)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(STOP_S)
        yield server


def test_the_image_has_the_engine_and_not_the_analysis(image: Image) -> None:
    code = (
        "import sys; from importlib.util import find_spec; import driftscope; "
        "print(driftscope.__file__, *[n for n in sys.argv[1:] if find_spec(n)])"
    )
    names = ("vllm", "driftscope_reports", "driftscope_lab", *ANALYSIS)
    done = run(image.bin / "python", "-c", code, *names, cwd=image.folder, environ=image.environ)
    path, *found = done.stdout.split()
    assert Path(path).is_relative_to(image.folder / "venv")
    assert found == ["vllm"]


def test_doctor_finds_every_hook(image: Image) -> None:
    done = attempt(
        image.bin / "driftscope", "doctor", "--json", cwd=image.folder, environ=image.environ
    )
    checks = json.loads(done.stdout)
    assert not [check for check in checks if check["ok"] is False], done.stdout
    assert done.returncode == 0
    assert [check for check in checks if check["topic"].startswith("hook")]


def test_every_request_is_recorded(recorded: Server) -> None:
    summary = summarise(read_trace(recorded.run), "image")
    assert summary.recording.broken_chains == 0
    assert summary.requests == REQUESTS
    assert summary.attention.sink_mass is not None
    assert summary.hidden.growth > 0


def test_the_run_is_watched_where_it_was_recorded(image: Image, recorded: Server) -> None:
    watch = (image.bin / "driftscope", "watch", recorded.run, "--once", "--json")
    done = run(*watch, cwd=image.folder, environ=image.environ)
    assert json.loads(done.stdout)["rounds"] == read_trace(recorded.run).verify.num_rows
