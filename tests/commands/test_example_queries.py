"""The files of examples/, as far as they can be checked without an engine or Docker."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import yaml
from support.command import run_command, run_process
from support.distributions import CHECKOUT, PROJECTS, SOURCES
from support.prometheus import promtool, tool
from support.runs import Spec, write_run
from support.simulate import Prompts, Truth, simulate

from driftscope.analysis.query.record_views import open_run
from driftscope.analysis.summary.run_summary import RunSummary
from driftscope.cli.dashboards import FILES, RULES
from driftscope.pipeline import summarise

FOLDER = Path(__file__).parents[2] / "examples" / "queries"
TWO = (Prompts(label="chat"), Prompts(label="code", shift=-0.5))
RUNS = {
    "recorded": None,
    "post-norm, two layers, drafts missing": Truth(
        requests=20,
        rounds=10,
        layers=2,
        norm_output=True,
        prompts=TWO,
        rates=(0.5, 0.25),
        undrafted={"no_draft": 0.1, "preempted": 0.05},
    ),
}


@pytest.fixture(scope="module")
def queries() -> ModuleType:
    spec = importlib.util.spec_from_file_location("queries", FOLDER / "queries.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _expected(run: RunSummary) -> dict[str, list[object]]:
    labels = sorted(run.groups.label, key=lambda group: group.name)
    assert run.hidden.fed_rms is not None and run.attention.self_mass is not None
    return {
        "acceptance": list(run.acceptance.marginal),
        "by_label": [group.mean_length for group in labels],
        "undrafted": [run.fallback.by_reason[name] for name in sorted(run.fallback.by_reason)],
        "hidden": list(run.hidden.fed_rms),
        "attention": list(run.attention.self_mass),
    }


@pytest.mark.parametrize("name", RUNS)
def test_both_answers_are_those_of_analyze(queries: ModuleType, tmp_path: Path, name: str) -> None:
    truth = RUNS[name]
    run = FOLDER / "run" if truth is None else simulate(tmp_path / "run", truth)
    expected = _expected(summarise(open_run(run), "run"))
    answers = queries.ask(run)
    assert set(answers) == set(expected)
    for question, both in answers.items():
        for answer in both:
            found = answer.iloc[:, -1].tolist()
            assert found == pytest.approx(expected[question], rel=1e-6, abs=1e-9), question
        pd.testing.assert_frame_equal(*both, check_dtype=False)


@pytest.mark.process
def test_the_script_runs_as_written(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" -W error "$@"\n')
    (bin_ / "python3").chmod(0o755)
    path = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    done = run_process(FOLDER / "run.sh", cwd=tmp_path, PATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("DuckDB:") == done.stdout.count("pandas:") == 5


EXAMPLE = CHECKOUT / "examples" / "containers"
OURS = "driftscope"
SHARED = "/monitoring"
"""Folder in which the containers see what `driftscope dashboards` wrote."""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    found: dict[str, Any] = compose["services"]
    sources = [v.split(":")[0] for s in found.values() for v in s.get("volumes", ())]
    assert {source for source in sources if source[0] not in ".$"} <= compose["volumes"].keys()
    files = [EXAMPLE / source for source in sources if source.startswith("./")]
    assert files and all(file.exists() for file in files)
    return found


def test_every_service_has_an_image_by_version_or_is_built_here(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if service["image"] == OURS:
            built = service["build"]
            assert (EXAMPLE / built["context"]).resolve() == CHECKOUT
            assert (CHECKOUT / built["dockerfile"]) == EXAMPLE / "Dockerfile"
        else:
            assert re.search(r":v?\d+\.\d+", service["image"]), name


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


def test_the_image_builds_every_project_and_installs_both_halves() -> None:
    lines = (EXAMPLE / "Dockerfile.dockerignore").read_text().splitlines()
    assert tuple(line[1:] for line in lines if line.startswith("!")) == SOURCES
    assert "*" in lines
    text = (EXAMPLE / "Dockerfile").read_text()
    (projects,) = re.findall(r"for project in (.*?);", text)
    assert set(projects.split()) == set(PROJECTS.values())
    installed = set(re.findall(r"/wheels/(\w+)-\*\.whl", text))
    assert installed == {"driftscope", "driftscope_probe"}
    assert 'ENTRYPOINT ["driftscope"]' in text and "USER 1000:1000" in text


MONITORING = CHECKOUT / "examples" / "monitoring"


@pytest.mark.parametrize("folder", [EXAMPLE, MONITORING])
def test_the_readme_lists_every_file(folder: Path) -> None:
    readme = (folder / "README.md").read_text()
    for path in folder.iterdir():
        assert path.name == "README.md" or f"`{path.name}" in readme, path.name
    assert all(yaml.safe_load(path.read_text()) for path in folder.rglob("*.y*ml"))


MOUNTED = "/etc/prometheus/rules/driftscope.rules.yml"


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("file", "rules"),
    [
        (EXAMPLE / "prometheus.yml", f"{SHARED}/{RULES}"),
        (MONITORING / "prometheus.yml", MOUNTED),
        (MONITORING / "scrape.yml", MOUNTED),
    ],
    ids=lambda value: "/".join(Path(value).parts[-2:]),
)
def test_prometheus_accepts_its_configuration(tmp_path: Path, file: Path, rules: str) -> None:
    text = file.read_text()
    assert rules in text
    (tmp_path / file.name).write_text(text.replace(rules, str(FILES / RULES)))
    assert "SUCCESS" in promtool("check", "config", tmp_path / file.name)


@pytest.mark.process
@pytest.mark.prometheus
def test_alertmanager_accepts_its_configuration() -> None:
    done = run_process(tool("amtool"), "check-config", MONITORING / "alertmanager.yml")
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_the_collector_s_pipelines_name_what_there_is() -> None:
    config = yaml.safe_load((MONITORING / "collector.yaml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(config[part])


def test_no_service_is_open_to_other_machines(services: dict[str, Any]) -> None:
    """Except what a container of it must reach, the engine, and that is said."""
    monitoring = yaml.safe_load((MONITORING / "compose.yaml").read_text())["services"]
    ports = [p for s in (*services.values(), *monitoring.values()) for p in s.get("ports", ())]
    assert len(ports) > len(monitoring) and all(port.startswith("127.0.0.1:") for port in ports)
    assert "--prometheus 0.0.0.0:9464" in (MONITORING / "README.md").read_text()


KUBERNETES = (CHECKOUT / "docs" / "kubernetes.md").read_text()


def _yaml_of_kubernetes() -> list[Any]:
    return list(map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", KUBERNETES, re.DOTALL)))


def test_the_page_on_kubernetes_names_what_there_is() -> None:
    settings = (CHECKOUT / "docs" / "configuration.md").read_text()
    values, monitor, sidecar = _yaml_of_kubernetes()
    (model,) = values["servingEngineSpec"]["modelSpec"]
    given = {entry["name"]: entry["value"] for entry in model["env"]}
    for name in re.findall(r"DRIFTSCOPE_\w+", KUBERNETES):
        assert f"`{name}`" in settings, name
    (mount,) = model["extraVolumeMounts"]
    assert given["DRIFTSCOPE_TRACE"].startswith(mount["mountPath"])
    assert [mount["name"]] == [volume["name"] for volume in model["extraVolumes"]]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (address,) = endpoint["relabelings"]
    (sidecar_mount,) = sidecar[0]["volumeMounts"]
    assert {**mount, "readOnly": True} == sidecar_mount
    host, _, port = given["DRIFTSCOPE_PROMETHEUS"].rpartition(":")
    assert host == "0.0.0.0", "Prometheus is in another pod"
    assert address["replacement"].endswith(f":{port}")


@pytest.mark.process
def test_the_sidecar_of_the_page_exports_a_run_that_analyze_reads(tmp_path: Path) -> None:
    *_, (sidecar,) = _yaml_of_kubernetes()
    (script,) = sidecar["args"]
    write_run(tmp_path / "runs" / "one", Spec())
    script = script.replace("/driftscope/", f"{tmp_path}/runs/").replace("sleep 300", "exit")
    script = script.replace("s3://fleet/rollups", f"{tmp_path}/store")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    made = run_process(*sidecar["command"], script, PATH=path, POD_NAME="pod-7")
    assert made.returncode == 0, made.stderr
    (day,) = (tmp_path / "store").iterdir()
    done = run_command("analyze", day, "-o", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    assert "pod-7" in done.stdout


@pytest.mark.process
def test_the_rules_fit_a_manifest_by_the_page_s_own_command(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path / "monitoring")
    (command,) = re.findall(r"\{ printf.*?(?= \| kubectl)", KUBERNETES, re.DOTALL)
    made = run_process("bash", "-ec", command, cwd=tmp_path)
    manifest = yaml.safe_load(made.stdout)
    assert manifest["kind"] == "PrometheusRule"
    assert manifest["spec"] == yaml.safe_load((FILES / RULES).read_text())
