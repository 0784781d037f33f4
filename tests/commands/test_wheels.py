"""The wheels of all distributions: which files each has, its metadata, and that it builds alike."""

from __future__ import annotations

import email
import email.message
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.distributions import CHECKOUT, PROJECTS, SOURCES, build_wheels

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


def test_each_package_is_typed(contents: dict[str, Wheel]) -> None:
    names = {name for wheel in contents.values() for name in wheel.sizes}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


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


def test_the_trio_is_in_the_labs_wheel_and_small(contents: dict[str, Wheel]) -> None:
    sizes = contents["driftscope-lab"].sizes
    for model in ("target", "eagle3", "eagle31"):
        for file in ("model.safetensors", "config.json", "MODEL_CARD.md"):
            assert sizes[f"{WEIGHTS}{model}/{file}"] > 0
    assert {f"{WEIGHTS}prompts.json", f"{WEIGHTS}target/tokenizer.json"} <= set(sizes)
    assert sum(n for name, n in sizes.items() if name.startswith(WEIGHTS)) <= SHIPPED_BYTES
    others = [name for key in ("driftscope", "driftscope-probe") for name in contents[key].sizes]
    assert not [name for name in others if name.endswith(".safetensors")]


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
