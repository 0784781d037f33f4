"""Serving image: what an operator installs beside vLLM, driftscope-probe, in an empty venv."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.distributions import attempt, new_environment, run
from support.runs import Spec, write_run

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

ANALYSIS = {"duckdb", "ibis-framework", "pandas", "plotly", "scipy", "sqlglot", "driftscope"}
OF_THE_OTHER_HALF = (
    ("analyze", "run"),
    ("check", "run", "--fail-on", "high"),
    ("advise", "run"),
    ("compare", "run", "run"),
    ("findings",),
    ("pays", "trio"),
    ("demo",),
)
SIZE_MIB = 200
"""Largest size of what the serving half adds to an engine's environment."""
NOT_OF_VLLM = ("driftscope-probe", "pyarrow", "wrapt")


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the probe's wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("serving") / "venv"
    return new_environment(folder, wheels["driftscope-probe"])


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", Spec(requests=30))


def test_the_analysis_is_not_installed(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "python", "-m", "pip", "list", "--format=json", cwd=tmp_path)
    found = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert set(NOT_OF_VLLM) <= found
    assert not found & ANALYSIS
    run(installed / "python", "-m", "pip", "check", cwd=tmp_path)


def test_what_it_adds_to_an_engine_is_small(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys, importlib.metadata as m; "
        "print(sum(f.locate().stat().st_size for n in sys.argv[1:] for f in m.files(n) "
        "if f.locate().is_file()))"
    )
    added = int(run(installed / "python", "-c", code, *NOT_OF_VLLM, cwd=tmp_path).stdout)
    assert added <= SIZE_MIB * 2**20


def test_every_command_has_its_help(installed: Path, tmp_path: Path) -> None:
    overview = run(installed / "driftscope", "--help", cwd=tmp_path).stdout
    commands = re.findall(r"^│ ([a-z]+) ", overview, re.MULTILINE)
    assert {"serve", "probe", "doctor", "watch", "analyze", "demo"} <= set(commands)
    for command in commands:
        assert "Usage" in run(installed / "driftscope", command, "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize("command", OF_THE_OTHER_HALF, ids=lambda command: command[0])
def test_a_command_of_the_other_half_says_what_to_install(
    installed: Path, recorded: Path, command: tuple[str, ...]
) -> None:
    done = attempt(installed / "driftscope", *command, cwd=recorded.parent)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("driftscope: error: driftscope-probe alone is installed")
    assert "pip install driftscope," in line


@pytest.mark.parametrize("call", ["load('run')", "check('run', fail_on=['high'])"])
def test_from_python_too(installed: Path, recorded: Path, call: str) -> None:
    code = f"import driftscope; driftscope.{call}"
    done = attempt(installed / "python", "-c", code, cwd=recorded.parent)
    assert done.stderr.splitlines()[-1].startswith(
        "driftscope.errors.UsageError: driftscope-probe alone is installed"
    )


def test_a_run_can_be_watched(installed: Path, recorded: Path) -> None:
    done = run(installed / "driftscope", "watch", "run", "--once", "--json", cwd=recorded.parent)
    assert json.loads(done.stdout)["rounds"] == 300


def test_runs_are_listed_without_their_findings(installed: Path, recorded: Path) -> None:
    done = run(installed / "driftscope", "ls", ".", "--json", cwd=recorded.parent)
    (listed,) = json.loads(done.stdout)["runs"]
    assert listed["rounds"] == 300 and listed["finding"] is None


def test_the_probe_of_a_run_can_be_asked(installed: Path, recorded: Path) -> None:
    done = run(installed / "driftscope", "probe", "status", "run", "--json", cwd=recorded.parent)
    assert json.loads(done.stdout)["processes"]


def test_dashboards_are_written(installed: Path, tmp_path: Path) -> None:
    run(installed / "driftscope", "dashboards", "-o", "monitoring", cwd=tmp_path)
    assert (tmp_path / "monitoring" / "prometheus" / "driftscope.rules.yml").is_file()


def test_doctor_finds_the_plugin_and_no_engine(installed: Path, tmp_path: Path) -> None:
    done = attempt(installed / "driftscope", "doctor", "--json", cwd=tmp_path)
    assert done.returncode == 1
    checks = {check["topic"]: check for check in json.loads(done.stdout)}
    assert checks["plugin"]["ok"] is True
    assert checks["driftscope"]["detail"] == "not installed"
    assert "driftscope-probe in the environment of your vLLM" in checks["vLLM"]["hint"]


def test_serve_says_that_it_needs_vllm(installed: Path, tmp_path: Path) -> None:
    done = attempt(installed / "driftscope", "serve", "model", cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "vllm" in line.lower()


def test_the_plugin_loads_and_does_nothing(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from importlib.metadata import entry_points; "
        "(plugin,) = entry_points(group='vllm.general_plugins', name='driftscope'); "
        "plugin.load()(); "
        "print(*sorted({'pyarrow', 'numpy', 'opentelemetry', 'pydantic'} & set(sys.modules)))"
    )
    assert run(installed / "python", "-c", code, cwd=tmp_path).stdout == "\n"
