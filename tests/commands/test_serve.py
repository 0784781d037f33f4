"""`driftscope serve` refuses what would record nothing, and else becomes vLLM's server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from driftscope_lab.trio import trio_path
from driftscope_probes.server.start import DEV_MODE, DRAIN_S, LABEL_HEADER

Driftscope = Callable[..., "subprocess.CompletedProcess[str]"]
SPECULATION = ("--speculative-config", '{"method": "eagle3"}')
SERVER = """
import json, os, sys
environ = {k: v for k, v in os.environ.items() if k.startswith(("DRIFTSCOPE_", "VLLM_"))}
environ.pop("DRIFTSCOPE_RUN_ID", None)
print(json.dumps({"argv": sys.argv[1:], "environ": environ, "pid": os.getpid()}))
sys.exit(7)
"""


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """A vLLM whose servers say how they were started, under both their module names."""
    folder = tmp_path / "packages"
    for module in ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"):
        path = folder.joinpath(*module.split("."))
        path.parent.mkdir(parents=True)
        path.with_suffix(".py").write_text(f"print({module!r})\n" + SERVER)
        for package in path.relative_to(folder).parents[:-1]:
            (folder / package / "__init__.py").touch()
    return folder


def _fails(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("driftscope: error: ")
    for word in words:
        assert word in line


def test_without_vllm(without_engines: Driftscope) -> None:
    _fails(
        without_engines("serve", "model", *SPECULATION),
        1,
        "vLLM is not installed here",
        "install driftscope",
    )


def test_without_a_drafter(without_engines: Driftscope, vllm: Path) -> None:
    done = without_engines("serve", "model", "--port", "8000", before=vllm)
    _fails(done, 2, "no --speculative-config", '"method": "eagle3"')


def test_into_a_directory_that_holds_a_run(
    without_engines: Driftscope, vllm: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    done = without_engines("serve", "model", *SPECULATION, "--trace", "run", before=vllm)
    _fails(done, 1, str(tmp_path / "run"), "already holds a run", "--trace")


def test_into_a_directory_that_cannot_be_written(
    without_engines: Driftscope, vllm: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = without_engines("serve", "model", *SPECULATION, "--trace", "file/run", before=vllm)
    _fails(done, 1, str(tmp_path / "file"), "cannot write a trace there", "--trace")


def test_a_start_that_never_loaded_a_drafter_is_named(
    without_engines: Driftscope, vllm: Path
) -> None:
    done = without_engines("serve", "model", *SPECULATION, "--trace", "run", before=vllm)
    assert "will record to" in done.stderr
    done = without_engines("analyze", "run")
    assert done.returncode == 1
    assert "no server got as far as loading its drafter" in done.stderr


def test_strict_may_be_turned_off_and_the_probe_too(
    without_engines: Driftscope, vllm: Path
) -> None:
    done = without_engines("serve", "model", *SPECULATION, before=vllm, DRIFTSCOPE_STRICT="0")
    environ = _started(done)[1]["environ"]
    assert isinstance(environ, dict)
    assert environ["DRIFTSCOPE_STRICT"] == "0"
    done = without_engines("serve", "model", *SPECULATION, before=vllm, DRIFTSCOPE_DISABLE="yes!")
    assert _started(done)
    (line,) = done.stderr.splitlines()
    assert line == "driftscope: the probe is off (DRIFTSCOPE_DISABLE is set): nothing is recorded"


@pytest.mark.parametrize(
    "option",
    [["--every", "0"], ["--sink-tokens", "0"], ["--sink-tokens", "some"], ["--every", "x"]],
)
def test_a_bad_option_of_ours(without_engines: Driftscope, vllm: Path, option: list[str]) -> None:
    done = without_engines("serve", "model", *SPECULATION, *option, before=vllm)
    assert done.returncode == 2
    assert done.stdout == ""
    assert option[0] in done.stderr


def _started(done: subprocess.CompletedProcess[str]) -> tuple[str, dict[str, object]]:
    module, call = done.stdout.splitlines()
    return module, json.loads(call)


def test_it_becomes_the_server(without_engines: Driftscope, vllm: Path, tmp_path: Path) -> None:
    done = without_engines(
        "serve",
        "some/model",
        *SPECULATION,
        "--port",
        "8123",
        "--trace",
        "runs/{time}",
        "--every",
        "16",
        "--token-ids",
        "--sink-tokens",
        "auto",
        before=vllm,
    )
    assert done.returncode == 7, "the exit code is the server's"
    module, call = _started(done)
    assert module == "vllm.entrypoints.openai.api_server"
    assert call["argv"] == [
        "--model",
        "some/model",
        *SPECULATION,
        "--port",
        "8123",
        "--middleware",
        LABEL_HEADER,
        "--shutdown-timeout",
        DRAIN_S,
    ]
    environ = call["environ"]
    assert isinstance(environ, dict)
    trace = environ.pop("DRIFTSCOPE_TRACE")
    assert re.fullmatch("[0-9a-f]{32}", environ.pop("DRIFTSCOPE_REQUEST_KEY"))
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/runs/\d{{8}}-\d{{6}}", trace)
    assert environ == {
        "DRIFTSCOPE_EVERY": "16",
        "DRIFTSCOPE_SINK_TOKENS": "auto",
        "DRIFTSCOPE_STRICT": "1",
        "DRIFTSCOPE_TOKEN_IDS": "1",
    }
    assert done.stderr.splitlines() == [
        f"driftscope: will record to {trace} once the drafter is loaded",
        f"driftscope: while it serves, run: driftscope probe status {trace}",
        f"driftscope: end it with Ctrl-C, then run: driftscope analyze {trace}",
    ]


def test_a_vllm_with_its_own_name_is_started_by_its_command(
    without_engines: Driftscope, vllm: Path
) -> None:
    info = vllm / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    done = without_engines("serve", "some/model", *SPECULATION, before=vllm)
    module, call = _started(done)
    assert module == "vllm.entrypoints.cli.main"
    argv = call["argv"]
    assert isinstance(argv, list)
    assert argv[:2] == ["serve", "some/model"]


@pytest.mark.parametrize("given", ["--shutdown-timeout=3", "--shutdown_timeout=3"])
def test_the_users_own_drain_time_stays(
    without_engines: Driftscope, vllm: Path, given: str
) -> None:
    _, call = _started(without_engines("serve", "m", *SPECULATION, given, before=vllm))
    assert call["argv"] == ["--model", "m", *SPECULATION, given, "--middleware", LABEL_HEADER]


@pytest.mark.parametrize("option", ["--speculative_config={}", "-sc={}", "--config=serve.yaml"])
def test_other_spellings_of_the_drafter(
    without_engines: Driftscope, vllm: Path, option: str
) -> None:
    assert without_engines("serve", "m", option, before=vllm).returncode == 7


def test_disabled_it_still_serves(without_engines: Driftscope, vllm: Path) -> None:
    done = without_engines("serve", "m", *SPECULATION, before=vllm, DRIFTSCOPE_DISABLE="1")
    assert done.returncode == 7
    assert "recording" not in done.stderr
    assert LABEL_HEADER not in done.stdout


def _settings(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 7, done.stderr
    environ = _started(done)[1]["environ"]
    assert isinstance(environ, dict)
    del environ["DRIFTSCOPE_TRACE"]
    assert environ.pop("DRIFTSCOPE_STRICT") == "1"
    assert re.fullmatch("[0-9a-f]{32}", environ.pop("DRIFTSCOPE_REQUEST_KEY"))
    return environ


def test_unless_told_otherwise_a_governor_sets_the_rate(
    without_engines: Driftscope, vllm: Path
) -> None:
    assert _settings(without_engines("serve", "m", *SPECULATION, before=vllm)) == {}


def test_a_budget_and_labels(without_engines: Driftscope, vllm: Path) -> None:
    done = without_engines(
        "serve",
        "m",
        *SPECULATION,
        "--budget",
        "2%",
        "--label",
        "a",
        "--label",
        "b",
        before=vllm,
        DRIFTSCOPE_EVERY="4",
    )
    assert _settings(done) == {
        "DRIFTSCOPE_BUDGET": "2%",
        "DRIFTSCOPE_LABELS": "a,b",
        "DRIFTSCOPE_EVERY": "",
    }


def test_where_figures_go(without_engines: Driftscope, vllm: Path) -> None:
    done = without_engines(
        "serve",
        "m",
        *SPECULATION,
        "--otlp",
        "http://collector:4318",
        "--prometheus",
        "9464",
        before=vllm,
    )
    assert _settings(done) == {
        "DRIFTSCOPE_OTLP": "http://collector:4318",
        "DRIFTSCOPE_PROMETHEUS": "9464",
    }
    wrong = without_engines("serve", "m", *SPECULATION, "--otlp", "collector", before=vllm)
    _fails(wrong, 1, "give the collector's URL")


def test_control_opens_vllms_endpoints_and_says_what_that_means(
    without_engines: Driftscope, vllm: Path
) -> None:
    done = without_engines("serve", "m", *SPECULATION, "--control", before=vllm)
    assert _settings(done) == {DEV_MODE: "1"}
    (warning,) = [line for line in done.stderr.splitlines() if "--control" in line]
    for word in ("any method of the workers", "sleep", "weights", "API key", "private"):
        assert word in warning


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budget", "0"], "--budget '0': give a share"),
        (["--budget", "1%", "--every", "2"], "give one of the two"),
        (["--label", "a,b"], "--label: a label with a comma"),
    ],
)
def test_options_that_cannot_be_used(
    without_engines: Driftscope, vllm: Path, options: list[str], words: str
) -> None:
    _fails(without_engines("serve", "m", *SPECULATION, *options, before=vllm), 2, words)


def test_the_name_of_a_run_has_the_drafter(without_engines: Driftscope, vllm: Path) -> None:
    config = '{"method": "eagle3", "model": "org/EAGLE3-8B"}'
    done = without_engines("serve", "m", "--speculative-config", config, before=vllm)
    environ = _started(done)[1]["environ"]
    assert isinstance(environ, dict)
    assert re.search(r"/driftscope-runs/\d{8}-\d{6}-EAGLE3-8B$", environ["DRIFTSCOPE_TRACE"])


def test_the_shipped_models_are_served_as_typed(without_engines: Driftscope, vllm: Path) -> None:
    """`driftscope serve trio` needs no other option, and takes little memory."""
    done = without_engines("serve", "trio", before=vllm)
    _, call = _started(done)
    argv, environ = call["argv"], call["environ"]
    assert isinstance(argv, list) and isinstance(environ, dict)
    assert argv[:2] == ["--model", str(trio_path() / "target")]
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config["model"] == str(trio_path() / "eagle31")
    assert config["num_speculative_tokens"] == 4
    assert "--enforce-eager" in argv and argv[argv.index("--max-model-len") + 1] == "2048"
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "1", "no share of the machine's memory is asked for"
    assert environ["DRIFTSCOPE_TRACE"].endswith("-eagle31")


def test_a_user_s_options_for_the_shipped_models_win(
    without_engines: Driftscope, vllm: Path
) -> None:
    config = '{"method": "eagle3", "model": "eagle3", "num_speculative_tokens": 8}'
    done = without_engines(
        "serve",
        "trio",
        f"--speculative-config={config}",
        "--max_model_len=512",
        before=vllm,
        VLLM_CPU_KVCACHE_SPACE="2",
    )
    _, call = _started(done)
    argv, environ = call["argv"], call["environ"]
    assert isinstance(argv, list) and isinstance(environ, dict)
    (given,) = [each for each in argv if each.startswith("--speculative-config")]
    assert json.loads(given.partition("=")[2]) == {
        "method": "eagle3",
        "model": str(trio_path() / "eagle3"),
        "num_speculative_tokens": 8,
    }
    assert "--max-model-len" not in argv
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "2"
