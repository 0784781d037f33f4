"""The example's configuration, as far as the real tools can check it here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.prometheus import promtool, tool

from driftscope.cli.dashboards import FILES, RULES

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "monitoring"


@pytest.mark.prometheus
@pytest.mark.parametrize("name", ["prometheus.yml", "scrape.yml"])
def test_prometheus_accepts_its_configuration(tmp_path: Path, name: str) -> None:
    text = (EXAMPLE / name).read_text()
    inside = "/etc/prometheus/rules/driftscope.rules.yml"
    assert inside in text
    (tmp_path / name).write_text(text.replace(inside, str(FILES / RULES)))
    assert "SUCCESS" in promtool("check", "config", tmp_path / name)


@pytest.mark.process
@pytest.mark.prometheus
def test_alertmanager_accepts_its_configuration() -> None:
    command = [tool("amtool"), "check-config", str(EXAMPLE / "alertmanager.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_every_file_of_the_example_is_yaml_and_is_listed() -> None:
    readme = (EXAMPLE / "README.md").read_text()
    for path in EXAMPLE.rglob("*.y*ml"):
        assert yaml.safe_load(path.read_text())
        listed = path.relative_to(EXAMPLE).parts[0]
        assert f"`{listed}" in readme, listed


def test_the_collector_s_pipelines_name_what_there_is() -> None:
    config = yaml.safe_load((EXAMPLE / "collector.yaml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(config[part])


def test_no_service_of_the_example_is_open_to_other_machines() -> None:
    """Except what a container of it must reach, the engine, and that is said."""
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    assert "--prometheus 0.0.0.0:9464" in (EXAMPLE / "README.md").read_text()


def test_the_page_on_kubernetes_names_what_there_is() -> None:
    page, settings = (
        (ROOT / "docs" / name).read_text() for name in ("kubernetes.md", "configuration.md")
    )
    values, monitor = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    (model,) = values["servingEngineSpec"]["modelSpec"]
    given = {entry["name"]: entry["value"] for entry in model["env"]}
    for name in re.findall(r"DRIFTSCOPE_\w+", page):
        assert f"`{name}`" in settings, name
    (mount,) = model["extraVolumeMounts"]
    assert given["DRIFTSCOPE_TRACE"].startswith(mount["mountPath"])
    assert [mount["name"]] == [volume["name"] for volume in model["extraVolumes"]]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (address,) = endpoint["relabelings"]
    host, _, port = given["DRIFTSCOPE_PROMETHEUS"].rpartition(":")
    assert host == "0.0.0.0", "Prometheus is in another pod"
    assert address["replacement"].endswith(f":{port}")


@pytest.mark.process
def test_the_rules_fit_a_manifest_by_the_page_s_own_command(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path / "monitoring")
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (command,) = re.findall(r"\{ printf.*?(?= \| kubectl)", page, re.DOTALL)
    made = subprocess.run(
        ["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    manifest = yaml.safe_load(made.stdout)
    assert manifest["kind"] == "PrometheusRule"
    assert manifest["spec"] == yaml.safe_load((FILES / RULES).read_text())
