"""`driftscope serve` refuses what would record nothing, and else becomes the engine's server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.command import Driftscope, assert_fails
from support.standin_engine import write_engine

from driftscope_lab.smollm2 import drafters_folder
from driftscope_lab.trio import trio_path
from driftscope_probes.server.start import DRAIN_S, LABEL_HEADER

SPECULATION = ("--speculative-config", '{"method": "eagle3"}')
SGLANG = ("--engine", "sglang", "some/model")
SGLANG_SPECULATION = (
    *("--speculative-algorithm", "EAGLE3"),
    *("--speculative-draft-model-path", "a/drafter-1"),
)
SERVER = """
import os, sys
print(*sys.argv[1:])
print(os.environ["DRIFTSCOPE_TRACE"])
sys.exit(7)
"""


@pytest.fixture
def serve(driftscope: Driftscope, monkeypatch: pytest.MonkeyPatch) -> Driftscope:
    """`driftscope serve` where both engines are installed; in place of the server there is a line
    of JSON about its start, and exit code 7."""

    def becomes(_: str, command: list[str]) -> NoReturn:
        environ = {k: v for k, v in os.environ.items() if k.startswith(("DRIFTSCOPE_", "VLLM_"))}
        environ.pop("DRIFTSCOPE_RUN_ID", None)
        print(json.dumps({"module": command[2], "argv": command[3:], "environ": environ}))
        sys.exit(7)

    def found(name: str, package: str | None = None) -> object:
        return object() if name in ("vllm", "sglang") else find_spec(name, package)

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", found)
    monkeypatch.setattr(os, "execv", becomes)
    return lambda *arguments, **environ: driftscope("serve", *arguments, **environ)


def _started(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 7, done.stderr
    call: dict[str, Any] = json.loads(done.stdout)
    return call


def test_without_an_engine(without_engines: Driftscope) -> None:
    for engine, given in ("vLLM", ("m", *SPECULATION)), ("SGLang", (*SGLANG, *SGLANG_SPECULATION)):
        assert_fails(without_engines("serve", *given), 1, f"{engine} is not installed here")


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("vllm.entrypoints.openai.api_server", ("model", *SPECULATION)),
        ("sglang.launch_server", (*SGLANG, *SGLANG_SPECULATION)),
    ],
)
def test_the_process_itself_becomes_the_server(
    without_engines: Driftscope, tmp_path: Path, module: str, options: tuple[str, ...]
) -> None:
    """Its exit code is the server's; a run that never began is named by `analyze`."""
    packages = write_engine(tmp_path / "packages", module, SERVER)
    done = without_engines("serve", *options, "--trace", "run", before=packages)
    assert done.returncode == 7, done.stderr
    argv, trace = done.stdout.splitlines()
    assert options[-1] in argv and trace == str(tmp_path / "run")


def test_a_start_that_never_loaded_a_drafter_is_named(
    serve: Driftscope, driftscope: Driftscope
) -> None:
    assert "will record to" in serve("model", *SPECULATION, "--trace", "run").stderr
    done = driftscope("analyze", "run")
    assert_fails(done, 1, "no server got as far as loading its models")


def test_into_a_directory_that_cannot_be_used(serve: Driftscope, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    (tmp_path / "file").touch()
    for run, words in ("run", "already holds a run"), ("file/run", "cannot write a trace there"):
        done = serve("model", *SPECULATION, "--trace", run)
        assert_fails(done, 1, str(tmp_path / run.split("/")[0]), words, "--trace")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["model", "--port", "8000"], 2, "no --speculative-config: name the drafter, or give"),
        (["m", *SPECULATION, "--no-speculation"], 2, "--no-speculation and --speculative-config"),
        (["m", *SPECULATION, "--budget", "0"], 2, "--budget '0': give a share"),
        (["m", *SPECULATION, "--budget", "1%", "--every", "2"], 2, "give one of the two"),
        (["m", *SPECULATION, "--label", "a,b"], 2, "--label: a label with a comma"),
        (["m", *SPECULATION, "--every", "0"], 2, "--every"),
        (["m", *SPECULATION, "--sink-tokens", "0"], 2, "--sink-tokens"),
        (["m", *SPECULATION, "--otlp", "collector"], 1, "give the collector's URL"),
        ([*SGLANG], 2, "no --speculative-algorithm"),
        ([*SGLANG, *SGLANG_SPECULATION, "--no-speculation"], 2, "exclude each other"),
    ],
)
def test_options_that_cannot_be_used(
    serve: Driftscope, options: list[str], code: int, words: str
) -> None:
    assert_fails(serve(*options), code, words)


def test_strict_may_be_turned_off_and_the_probe_too(serve: Driftscope) -> None:
    done = serve("model", *SPECULATION, DRIFTSCOPE_STRICT="0")
    assert _started(done)["environ"]["DRIFTSCOPE_STRICT"] == "0"
    done = serve("model", *SPECULATION, DRIFTSCOPE_DISABLE="yes!")
    assert LABEL_HEADER not in _started(done)["argv"]
    (line,) = done.stderr.splitlines()
    assert line == "driftscope: the probe is off (DRIFTSCOPE_DISABLE is set): nothing is recorded"


def test_the_command_and_environment_of_vllm(serve: Driftscope, tmp_path: Path) -> None:
    ours = ("--trace", "runs/{time}", "--every", "16", "--token-ids", "--sink-tokens", "auto")
    done = serve("some/model", *SPECULATION, "--port", "8123", *ours)
    call = _started(done)
    assert call["module"] == "vllm.entrypoints.openai.api_server"
    assert call["argv"] == [
        *("--model", "some/model", *SPECULATION, "--port", "8123"),
        *("--middleware", LABEL_HEADER, "--shutdown-timeout", DRAIN_S),
    ]
    environ = call["environ"]
    trace, key = (environ.pop(f"DRIFTSCOPE_{name}") for name in ("TRACE", "REQUEST_KEY"))
    assert re.fullmatch("[0-9a-f]{32}", key)
    assert re.fullmatch(rf"{re.escape(str(tmp_path))}/runs/\d{{8}}-\d{{6}}", trace)
    assert environ == {
        "DRIFTSCOPE_EVERY": "16",
        "DRIFTSCOPE_SINK_TOKENS": "auto",
        "DRIFTSCOPE_STRICT": "1",
        "DRIFTSCOPE_TOKEN_IDS": "1",
    }
    assert done.stderr.splitlines() == [
        f"driftscope: will record to {trace} once its models are loaded",
        f"driftscope: while it serves, run: driftscope probe status {trace}",
        f"driftscope: end it with Ctrl-C, then run: driftscope analyze {trace}",
    ]


@pytest.mark.parametrize("engine", [("model",), SGLANG], ids=["vllm", "sglang"])
def test_a_server_without_a_drafter(serve: Driftscope, engine: tuple[str, ...]) -> None:
    call = _started(serve(*engine, "--no-speculation", "--trace", "{drafter}"))
    assert not [option for option in call["argv"] if "spec" in option]
    assert call["environ"]["DRIFTSCOPE_TRACE"].endswith("/no-speculation")


def test_the_command_and_environment_of_sglang(serve: Driftscope, tmp_path: Path) -> None:
    trace = tmp_path / "runs" / "{drafter}"
    ours = ("--trace", trace, "--every", "4")
    call = _started(serve(*SGLANG, *SGLANG_SPECULATION, *ours, "--port", "1"))
    assert call["argv"] == ["--model-path", "some/model", *SGLANG_SPECULATION, "--port", "1"]
    environ = call["environ"]
    assert environ["DRIFTSCOPE_TRACE"] == str(tmp_path / "runs" / "drafter-1")
    assert (environ["DRIFTSCOPE_EVERY"], environ["DRIFTSCOPE_STRICT"]) == ("4", "1")


def test_a_vllm_with_its_own_name_is_started_by_its_command(
    serve: Driftscope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.32.0")
    call = _started(serve("some/model", *SPECULATION))
    assert call["module"] == "vllm.entrypoints.cli.main"
    assert call["argv"][:2] == ["serve", "some/model"]


@pytest.mark.parametrize("given", ["--shutdown-timeout=3", "--shutdown_timeout=3"])
def test_the_users_own_drain_time_stays(serve: Driftscope, given: str) -> None:
    call = _started(serve("m", *SPECULATION, given))
    assert call["argv"] == ["--model", "m", *SPECULATION, given, "--middleware", LABEL_HEADER]


@pytest.mark.parametrize(
    ("options", "environ", "settings"),
    [
        ([], {}, {}),  # a governor sets the rate
        (
            ["--budget", "2%", "--label", "a", "--label", "b"],
            {"DRIFTSCOPE_EVERY": "4"},
            {"DRIFTSCOPE_BUDGET": "2%", "DRIFTSCOPE_LABELS": "a,b", "DRIFTSCOPE_EVERY": ""},
        ),
        (
            ["--otlp", "http://collector:4318", "--prometheus", "9464"],
            {},
            {"DRIFTSCOPE_OTLP": "http://collector:4318", "DRIFTSCOPE_PROMETHEUS": "9464"},
        ),
    ],
)
def test_options_become_settings(
    serve: Driftscope, options: list[str], environ: dict[str, str], settings: dict[str, str]
) -> None:
    found = _started(serve("m", *SPECULATION, *options, **environ))["environ"]
    assert found.pop("DRIFTSCOPE_STRICT") == "1"
    del found["DRIFTSCOPE_TRACE"], found["DRIFTSCOPE_REQUEST_KEY"]
    assert found == settings


def test_the_name_of_a_run_has_the_drafter_unless_the_environment_names_it(
    serve: Driftscope, tmp_path: Path
) -> None:
    done = serve("m", *SPECULATION, DRIFTSCOPE_TRACE=str(tmp_path / "mine"))
    assert _started(done)["environ"]["DRIFTSCOPE_TRACE"] == str(tmp_path / "mine")
    config = '{"method": "eagle3", "model": "org/EAGLE3-8B"}'
    environ = _started(serve("m", "--speculative-config", config))["environ"]
    assert re.search(r"/driftscope-runs/\d{8}-\d{6}-EAGLE3-8B$", environ["DRIFTSCOPE_TRACE"])


def test_the_shipped_models_are_served_as_typed(serve: Driftscope) -> None:
    """`driftscope serve trio` needs no other option, and takes little memory."""
    call = _started(serve("trio"))
    argv, environ = call["argv"], call["environ"]
    given = dict(pairwise(argv))
    config = json.loads(given["--speculative-config"])
    drafter = (config["model"], config["num_speculative_tokens"])
    assert drafter == (str(trio_path() / "eagle31"), 4)
    assert (given["--model"], given["--max-model-len"]) == (str(trio_path() / "target"), "2048")
    assert "--enforce-eager" in argv
    assert environ["VLLM_CPU_KVCACHE_SPACE"] == "1", "no share of the machine's memory is asked for"
    assert environ["DRIFTSCOPE_TRACE"].endswith("-eagle31")


def test_smollm2_is_served_from_the_users_cache(
    serve: Driftscope, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "smollm2-135m-instruct"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr("driftscope_lab.smollm2.fetch.target_folder", lambda: folder)
    call = _started(serve("smollm2"))
    assert call["argv"][:2] == ["--model", str(folder)]
    assert call["environ"]["VLLM_CPU_KVCACHE_SPACE"] == "2"
    assert str(drafters_folder() / "eagle31") in " ".join(call["argv"])


def test_a_user_s_options_for_the_shipped_models_win(serve: Driftscope) -> None:
    config = '{"method": "eagle3", "model": "eagle3", "num_speculative_tokens": 8}'
    options = (f"--speculative-config={config}", "--max_model_len=512")
    call = _started(serve("trio", *options, VLLM_CPU_KVCACHE_SPACE="2"))
    argv = call["argv"]
    (given,) = [option for option in argv if option.startswith("--speculative-config")]
    assert json.loads(given.partition("=")[2]) == {
        "method": "eagle3",
        "model": str(trio_path() / "eagle3"),
        "num_speculative_tokens": 8,
    }
    assert "--max-model-len" not in argv
    assert call["environ"]["VLLM_CPU_KVCACHE_SPACE"] == "2"
