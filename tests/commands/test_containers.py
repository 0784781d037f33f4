"""The containers of examples/containers, as far as they can be checked without Docker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.distributions import CHECKOUT, PROJECTS, SOURCES
from support.prometheus import promtool

from driftscope.cli.dashboards import FILES, RULES

EXAMPLE = CHECKOUT / "examples" / "containers"
OURS = "driftscope"
SHARED = "/monitoring"
"""Folder in which the containers see what `driftscope dashboards` wrote."""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    found: dict[str, Any] = compose["services"]
    for service in found.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source.startswith((".", "$")) or source in compose["volumes"]
    return found


def test_every_service_has_an_image_by_version_or_is_built_here(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if service["image"] == OURS:
            built = service["build"]
            assert (EXAMPLE / built["context"]).resolve() == CHECKOUT
            assert (CHECKOUT / built["dockerfile"]) == EXAMPLE / "Dockerfile"
        else:
            assert re.search(r":v?\d+\.\d+", service["image"]), name


def test_every_file_that_is_mounted_exists(services: dict[str, Any]) -> None:
    sources = [v.split(":")[0] for s in services.values() for v in s.get("volumes", ())]
    files = [source for source in sources if source.startswith("./")]
    assert files
    for source in files:
        assert (EXAMPLE / source).exists(), source


def test_no_port_is_open_to_other_machines(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_what_is_read_is_what_is_written(services: dict[str, Any]) -> None:
    assert services["dashboards"]["command"] == ["dashboards", "-o", SHARED]
    (rules,) = yaml.safe_load((EXAMPLE / "prometheus.yml").read_text())["rule_files"]
    provider = EXAMPLE / "provisioning" / "dashboards" / "driftscope.yaml"
    (folder,) = yaml.safe_load(provider.read_text())["providers"]
    for path in (rules, folder["options"]["path"]):
        assert (FILES / Path(path).relative_to(SHARED)).exists(), path
    for name in ("prometheus", "grafana"):
        assert any(volume.endswith(f":{SHARED}:ro") for volume in services[name]["volumes"])
        assert "dashboards" in services[name]["depends_on"]


@pytest.mark.prometheus
def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    text = (EXAMPLE / "prometheus.yml").read_text()
    path = tmp_path / "prometheus.yml"
    path.write_text(text.replace(f"{SHARED}/{RULES}", str(FILES / RULES)))
    assert str(FILES) in path.read_text()
    assert "SUCCESS" in promtool("check", "config", path)


def test_the_image_gets_what_the_wheels_are_built_from() -> None:
    lines = (EXAMPLE / "Dockerfile.dockerignore").read_text().splitlines()
    assert tuple(line[1:] for line in lines if line.startswith("!")) == SOURCES
    assert "*" in lines


def test_the_image_builds_every_project_and_installs_both_halves() -> None:
    text = (EXAMPLE / "Dockerfile").read_text()
    (projects,) = re.findall(r"for project in (.*?);", text)
    assert set(projects.split()) == set(PROJECTS.values())
    installed = set(re.findall(r"/wheels/(\w+)-\*\.whl", text))
    assert installed == {"driftscope", "driftscope_probe"}
    assert 'ENTRYPOINT ["driftscope"]' in text and "USER 1000:1000" in text


def test_the_readme_lists_every_file() -> None:
    readme = (EXAMPLE / "README.md").read_text()
    for path in EXAMPLE.iterdir():
        assert path.name == "README.md" or f"`{path.name}" in readme, path.name
